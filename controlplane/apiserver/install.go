// The API groups: the table's resources, their subresources, and the resources
// that are not stored.

package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/hawser-project/hawser/controlplane/apiserver/usage"
)

// Getters read objects from the store, without a request. The namespace
// is the one ctx carries; errors are the API's own (NotFound).
type Getters struct {
	Pod     func(ctx context.Context, name string) (*corev1.Pod, error)
	Node    func(ctx context.Context, name string) (*corev1.Node, error)
	Service func(ctx context.Context, name string) (*corev1.Service, error)
	// EndpointSlices are the slices of a service.
	EndpointSlices func(ctx context.Context, service string) ([]*discoveryv1.EndpointSlice, error)
	// Secret does not read the namespace from ctx.
	Secret                    func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	CertificateSigningRequest func(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error)
}

// storages is the REST storage of everything, by group and by path.
type storages map[schema.GroupVersion]map[string]rest.Storage

func (s storages) add(gv schema.GroupVersion, path string, r rest.Storage) {
	if s[gv] == nil {
		s[gv] = make(map[string]rest.Storage)
	}
	s[gv][path] = r
}

// store is the store of a resource added before.
func (s storages) store(gv schema.GroupVersion, plural string) *genericregistry.Store {
	switch r := s[gv][plural].(type) {
	case resourceREST:
		return r.Store
	case *namespaceREST:
		return r.store
	}
	return nil
}

// storages makes the storage of every resource. What it has made by the time of
// an error is destroyed again.
func (s *Server) storages(b *backend, rows []row) (all storages, err error) {
	all = make(storages)
	defer func() {
		if err != nil {
			all.destroy()
		}
	}()
	for i := range rows {
		r := &rows[i]
		res, err := b.resource(r)
		if err != nil {
			return all, err
		}
		strategy := res.UpdateStrategy.(*strategy)
		if r.plural == "namespaces" {
			all.add(r.gv, r.plural, newNamespaceREST(res))
			all.add(r.gv, "namespaces/finalize", &finalizeREST{sub: newSub(res.Store, finalizeStrategy{strategy})})
		} else {
			all.add(r.gv, r.plural, res)
		}
		if r.status {
			all.add(r.gv, r.plural+"/status", newSub(res.Store, statusStrategy{strategy}))
		}
		addWriters(all, r, res.Store, strategy)
	}
	budgets := all.store(policyv1.SchemeGroupVersion, "poddisruptionbudgets")
	all.add(corev1.SchemeGroupVersion, "pods/eviction", &evictionREST{
		pods: all.store(corev1.SchemeGroupVersion, "pods"), podStatus: all[corev1.SchemeGroupVersion]["pods/status"].(*subREST),
		budgets: budgets, status: all[policyv1.SchemeGroupVersion]["poddisruptionbudgets/status"].(*subREST),
	})
	newServiceAllocator(all.store(corev1.SchemeGroupVersion, "services"), b.client, s.cfg.ServiceCIDR)
	all.add(eventsv1.SchemeGroupVersion, "events", all[corev1.SchemeGroupVersion]["events"])
	if s.cfg.Tokens != nil {
		all.add(corev1.SchemeGroupVersion, "serviceaccounts/token", newTokenREST(s.cfg.Tokens, all))
	}
	for path, r := range authenticationReviews(s.cfg.Authenticator, s.audiences()) {
		all.add(authenticationv1.SchemeGroupVersion, path, r)
	}
	for path, r := range authorizationReviews(s.authz, s.cfg.Rules) {
		all.add(authorizationv1.SchemeGroupVersion, path, r)
	}
	if s.cfg.Connect != nil {
		for path, r := range s.cfg.Connect(getters(all)) {
			all.add(corev1.SchemeGroupVersion, path, r)
		}
	}
	if s.cfg.Usage != nil {
		for path, r := range usage.Storages(usage.Config{
			Ask:   s.cfg.Usage(getters(all)),
			Nodes: lister[corev1.NodeList](all.store(corev1.SchemeGroupVersion, "nodes")),
			Pods:  lister[corev1.PodList](all.store(corev1.SchemeGroupVersion, "pods")),
			Log:   s.cfg.Log,
		}) {
			all.add(metricsv1beta1.SchemeGroupVersion, path, r)
		}
	}
	return all, nil
}

// addWriters adds the subresources of r that are neither a status nor a way into
// a node.
func addWriters(all storages, r *row, store *genericregistry.Store, s *strategy) {
	scales := map[string]func(runtime.Object) scaleParts{
		"deployments": deploymentScale, "replicasets": replicaSetScale, "statefulsets": statefulSetScale,
		"replicationcontrollers": replicationControllerScale,
	}
	if parts, ok := scales[r.plural]; ok {
		all.add(r.gv, r.plural+"/scale", &scaleREST{store: store, parts: parts})
	}
	switch r.plural {
	case "pods":
		binding := &bindingREST{pods: store}
		all.add(r.gv, "pods/binding", binding)
		all.add(r.gv, "bindings", legacyBindingREST{binding})
		all.add(r.gv, "pods/ephemeralcontainers", newSub(store, ephemeralStrategy{s}))
		all.add(r.gv, "pods/resize", newSub(store, resizeStrategy{s}))
	case "certificatesigningrequests":
		all.add(r.gv, r.plural+"/approval", newSub(store, approvalStrategy{s}))
	}
}

func (s storages) destroy() {
	for _, group := range s {
		for _, r := range group {
			r.Destroy()
		}
	}
}

// install serves all.
func (all storages) install(srv *genericapiserver.GenericAPIServer, scheme *runtime.Scheme, codecs serializer.CodecFactory) error {
	parameters := runtime.NewParameterCodec(scheme)
	var named []*genericapiserver.APIGroupInfo
	for _, gv := range slices.SortedFunc(maps.Keys(all), func(a, b schema.GroupVersion) int { return strings.Compare(a.Group, b.Group) }) {
		info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, scheme, parameters, codecs)
		info.VersionedResourcesStorageMap[gv.Version] = all[gv]
		if gv.Group == corev1.GroupName {
			if err := srv.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
				return fmt.Errorf("install the core group: %w", err)
			}
			continue
		}
		named = append(named, &info)
	}
	if err := srv.InstallAPIGroups(named...); err != nil {
		return fmt.Errorf("install the API groups: %w", err)
	}
	return nil
}

func getters(all storages) Getters {
	v1 := corev1.SchemeGroupVersion
	slicesStore := all.store(discoveryv1.SchemeGroupVersion, "endpointslices")
	secret := getter[corev1.Secret](all.store(v1, "secrets"))
	return Getters{
		Pod:     getter[corev1.Pod](all.store(v1, "pods")),
		Node:    getter[corev1.Node](all.store(v1, "nodes")),
		Service: getter[corev1.Service](all.store(v1, "services")),
		EndpointSlices: func(ctx context.Context, service string) ([]*discoveryv1.EndpointSlice, error) {
			of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
			obj, err := slicesStore.List(ctx, &metainternalversion.ListOptions{LabelSelector: of, ResourceVersion: "0"})
			if err != nil {
				return nil, err
			}
			items := obj.(*discoveryv1.EndpointSliceList).Items
			out := make([]*discoveryv1.EndpointSlice, len(items))
			for i := range items {
				out[i] = &items[i]
			}
			return out, nil
		},
		Secret: func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
			return secret(asking(ctx, "secrets", namespace, name), name)
		},
		CertificateSigningRequest: getter[certificatesv1.CertificateSigningRequest](all.store(certificatesv1.SchemeGroupVersion, "certificatesigningrequests")),
	}
}

// remembered reads nodes from the watch cache of store, which may be a moment behind.
func remembered(store *genericregistry.Store) func(ctx context.Context, name string) (*corev1.Node, error) {
	return func(ctx context.Context, name string) (*corev1.Node, error) {
		obj, err := store.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		n, ok := obj.(*corev1.Node)
		if !ok {
			return nil, fmt.Errorf("store of nodes holds a %T", obj)
		}
		return n, nil
	}
}

// limitRanges lists a namespace's from the watch cache of store, which may be a moment
// behind.
func limitRanges(store *genericregistry.Store) func(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
	list := lister[corev1.LimitRangeList](store)
	return func(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
		l, err := list(request.WithNamespace(ctx, namespace), &metainternalversion.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		return l.Items, nil
	}
}

// storedQuotas looks for a namespace's resource quotas without reading them.
func storedQuotas(client *clientv3.Client) func(ctx context.Context, namespace string) (bool, error) {
	return func(ctx context.Context, namespace string) (bool, error) {
		got, err := client.Get(ctx, keyPrefix+"/resourcequotas/"+namespace+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return false, storeStatus(err)
		}
		return got.Count > 0, nil
	}
}

// lister lists objects of store.
func lister[T any, P object[T]](store *genericregistry.Store) func(context.Context, *metainternalversion.ListOptions) (P, error) {
	return func(ctx context.Context, o *metainternalversion.ListOptions) (P, error) {
		obj, err := store.List(ctx, o)
		if err != nil {
			return nil, err
		}
		p, ok := obj.(P)
		if !ok {
			return nil, fmt.Errorf("store of %s lists a %T", store.DefaultQualifiedResource, obj)
		}
		return p, nil
	}
}

// getter reads one object from store.
func getter[T any, P object[T]](store *genericregistry.Store) func(context.Context, string) (P, error) {
	return func(ctx context.Context, name string) (P, error) {
		obj, err := store.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		p, ok := obj.(P)
		if !ok {
			return nil, fmt.Errorf("store of %s holds a %T", store.DefaultQualifiedResource, obj)
		}
		return p, nil
	}
}
