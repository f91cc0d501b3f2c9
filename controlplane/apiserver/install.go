// The API groups: the kinds that are stored, and the resources that are not.

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
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
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

// storages makes the storage of everything.
func (s *Server) storages(b *backend) (kinds.Storages, error) {
	all, err := kinds.NewStorages(kinds.Config{Scheme: b.scheme, Options: b, EventTTL: s.cfg.EventTTL, Tokens: s.cfg.Tokens})
	if err != nil {
		return nil, err
	}
	newServiceAllocator(all.Store(corev1.SchemeGroupVersion, "services"), b.client, s.cfg.ServiceCIDR)
	for path, r := range authenticationReviews(s.cfg.Authenticator, s.audiences()) {
		all.Add(authenticationv1.SchemeGroupVersion, path, r)
	}
	for path, r := range authorizationReviews(s.authz, s.cfg.Rules) {
		all.Add(authorizationv1.SchemeGroupVersion, path, r)
	}
	if s.cfg.Connect != nil {
		for path, r := range s.cfg.Connect(getters(all)) {
			all.Add(corev1.SchemeGroupVersion, path, r)
		}
	}
	if s.cfg.Usage != nil {
		for path, r := range usage.Storages(usage.Config{
			Ask:   s.cfg.Usage(getters(all)),
			Nodes: kinds.Lister[corev1.NodeList](all.Store(corev1.SchemeGroupVersion, "nodes")),
			Pods:  kinds.Lister[corev1.PodList](all.Store(corev1.SchemeGroupVersion, "pods")),
			Log:   s.cfg.Log,
		}) {
			all.Add(metricsv1beta1.SchemeGroupVersion, path, r)
		}
	}
	return all, nil
}

// install serves all.
func install(all kinds.Storages, srv *genericapiserver.GenericAPIServer, scheme *runtime.Scheme, codecs serializer.CodecFactory) error {
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

func getters(all kinds.Storages) Getters {
	v1 := corev1.SchemeGroupVersion
	slicesStore := all.Store(discoveryv1.SchemeGroupVersion, "endpointslices")
	secret := kinds.Getter[corev1.Secret](all.Store(v1, "secrets"))
	return Getters{
		Pod:     kinds.Getter[corev1.Pod](all.Store(v1, "pods")),
		Node:    kinds.Getter[corev1.Node](all.Store(v1, "nodes")),
		Service: kinds.Getter[corev1.Service](all.Store(v1, "services")),
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
			return secret(kinds.Asking(ctx, "secrets", namespace, name), name)
		},
		CertificateSigningRequest: kinds.Getter[certificatesv1.CertificateSigningRequest](all.Store(certificatesv1.SchemeGroupVersion, "certificatesigningrequests")),
	}
}

// limitRanges lists a namespace's from the watch cache of store, which may be a moment
// behind.
func limitRanges(store *genericregistry.Store) func(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
	list := kinds.Lister[corev1.LimitRangeList](store)
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
