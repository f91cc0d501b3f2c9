// Registration: the APIServices of the groups that this server serves itself.

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// registrationCheck is the part of /readyz that says whether the groups are registered.
const registrationCheck = "autoregister-completion"

// registrationWorkers is how many APIServices are written at a time.
const registrationWorkers = 5

// Priorities of the groups of definitions, and of one that others may serve, as in
// Kubernetes.
const (
	definedGroupPriority, definedVersionPriority = 1000, 100
	usagePriority                                = 100
)

// groupPriorities order the groups in discovery, as in Kubernetes; groups that have none
// there come last.
var groupPriorities = map[string]int32{
	"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600,
	"autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100,
	"rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800, "apiextensions.k8s.io": 16700, "admissionregistration.k8s.io": 16700,
	"scheduling.k8s.io": 16600, "coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
}

// apiService is that of a group version that this server serves.
func apiService(gv schema.GroupVersion, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version},
	}
}

// served are the group versions that srv, and what is behind it, serves by itself.
func served(srv *genericapiserver.GenericAPIServer) []schema.GroupVersion {
	out := []schema.GroupVersion{{Version: "v1"}}
	for _, path := range srv.ListedPaths() {
		if parts := strings.Split(path, "/"); len(parts) == 4 && parts[1] == "apis" {
			out = append(out, schema.GroupVersion{Group: parts[2], Version: parts[3]})
		}
	}
	return out
}

// register keeps the APIServices of what the chain behind agg serves. The groups of nodes'
// usage may be served by somebody else: whoever writes its APIService is left alone.
func (s *Server) register(agg *aggregatorserver.APIAggregator, client apiregistrationclient.ApiregistrationV1Interface, ext *apiextensionsserver.CustomResourceDefinitions) error {
	services := agg.APIRegistrationInformers.Apiregistration().V1().APIServices()
	auto := autoregister.NewAutoRegisterController(services, client)
	var names []string
	var usage *apiregistrationv1.APIService
	for _, gv := range served(agg.GenericAPIServer) {
		if gv == metricsv1beta1.SchemeGroupVersion {
			usage = apiService(gv, usagePriority, usagePriority)
			continue
		}
		priority, ok := groupPriorities[gv.Group]
		if !ok {
			continue // the aggregator's own group, which has none
		}
		version := int32(15)
		if gv.Group == "" {
			version = 1
		}
		svc := apiService(gv, priority, version)
		agg.GenericAPIServer.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(gv), int(priority), int(version))
		auto.AddAPIServiceToSyncOnStart(svc)
		names = append(names, svc.Name)
	}
	if usage != nil {
		names = append(names, usage.Name)
	}
	crds := ext.Informers.Apiextensions().V1().CustomResourceDefinitions()
	follow, err := followDefinitions(crds.Informer(), crds.Lister(), auto)
	if err != nil {
		return err
	}
	err = agg.GenericAPIServer.AddPostStartHook("hawser-registration", func(c genericapiserver.PostStartHookContext) error {
		if usage != nil {
			go wait.UntilWithContext(c, func(ctx context.Context) {
				s.registerUsage(ctx, services.Lister(), services.Informer().HasSynced, client, usage)
			}, s.cfg.BuiltinPeriod)
		}
		go func() {
			// Else the APIServices of definitions that are not known yet would be deleted.
			if cache.WaitForCacheSync(c.Done(), follow.HasSynced) {
				auto.Run(registrationWorkers, c.Done())
			}
		}()
		return nil
	})
	if err != nil {
		return err
	}
	return agg.GenericAPIServer.AddBootSequenceHealthChecks(healthz.NamedCheck(registrationCheck, registered(services.Lister(), names)))
}

// registered says which of names have no APIService.
func registered(lister apiregistration.APIServiceLister, names []string) func(*http.Request) error {
	return func(*http.Request) error {
		var missing []string
		for _, name := range names {
			if _, err := lister.Get(name); err != nil {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("no APIService yet: %s", strings.Join(missing, ", "))
		}
		return nil
	}
}

// registerUsage makes the APIService of metrics.k8s.io if there is none.
func (s *Server) registerUsage(ctx context.Context, lister apiregistration.APIServiceLister, known cache.InformerSynced, client apiregistrationclient.APIServicesGetter, usage *apiregistrationv1.APIService) {
	if !cache.WaitForCacheSync(ctx.Done(), known) {
		return
	}
	if _, err := lister.Get(usage.Name); !apierrors.IsNotFound(err) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err := client.APIServices().Create(ctx, usage.DeepCopy(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		s.cfg.Log.Warn("cannot register metrics.k8s.io, will try again", "in", s.cfg.BuiltinPeriod, "err", err)
	}
}

// registerTimeout bounds the write of one APIService.
const registerTimeout = 10 * time.Second

// followDefinitions has auto keep an APIService for each group version of which a
// definition serves a kind.
func followDefinitions(informer cache.SharedIndexInformer, lister definitions.CustomResourceDefinitionLister, auto autoregister.AutoAPIServiceRegistration) (cache.ResourceEventHandlerRegistration, error) {
	again := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			return
		}
		all, err := lister.List(labels.Everything())
		if err != nil {
			return // a lister of a cache has no errors
		}
		for _, v := range crd.Spec.Versions {
			gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
			if svc := apiService(gv, definedGroupPriority, definedVersionPriority); servedByAny(all, gv) {
				auto.AddAPIServiceToSync(svc)
			} else {
				auto.RemoveAPIServiceToSync(svc.Name)
			}
		}
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    again,
		UpdateFunc: func(old, obj any) { again(old); again(obj) },
		DeleteFunc: again,
	})
}

// servedByAny tells whether a kind of gv is served.
func servedByAny(all []*apiextensionsv1.CustomResourceDefinition, gv schema.GroupVersion) bool {
	for _, crd := range all {
		if crd.Spec.Group != gv.Group {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Name == gv.Version && v.Served {
				return true
			}
		}
	}
	return false
}
