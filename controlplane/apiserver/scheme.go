// The scheme: which Go type stands for which kind.

package apiserver

import (
	"fmt"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
)

// groups are the API groups served, each with its only version.
func groups() map[schema.GroupVersion]func(*runtime.Scheme) error {
	return map[schema.GroupVersion]func(*runtime.Scheme) error{
		admissionv1.SchemeGroupVersion:      admissionv1.AddToScheme,
		appsv1.SchemeGroupVersion:           appsv1.AddToScheme,
		authenticationv1.SchemeGroupVersion: authenticationv1.AddToScheme,
		authorizationv1.SchemeGroupVersion:  authorizationv1.AddToScheme,
		autoscalingv1.SchemeGroupVersion:    autoscalingv1.AddToScheme,
		batchv1.SchemeGroupVersion:          batchv1.AddToScheme,
		certificatesv1.SchemeGroupVersion:   certificatesv1.AddToScheme,
		coordinationv1.SchemeGroupVersion:   coordinationv1.AddToScheme,
		corev1.SchemeGroupVersion:           corev1.AddToScheme,
		discoveryv1.SchemeGroupVersion:      discoveryv1.AddToScheme,
		eventsv1.SchemeGroupVersion:         eventsv1.AddToScheme,
		flowcontrolv1.SchemeGroupVersion:    flowcontrolv1.AddToScheme,
		metricsv1beta1.SchemeGroupVersion:   metricsv1beta1.AddToScheme,
		networkingv1.SchemeGroupVersion:     networkingv1.AddToScheme,
		nodev1.SchemeGroupVersion:           nodev1.AddToScheme,
		policyv1.SchemeGroupVersion:         policyv1.AddToScheme,
		rbacv1.SchemeGroupVersion:           rbacv1.AddToScheme,
		schedulingv1.SchemeGroupVersion:     schedulingv1.AddToScheme,
		storagev1.SchemeGroupVersion:        storagev1.AddToScheme,
	}
}

// versionedScheme knows every served kind under the version clients see.
func versionedScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for gv, add := range groups() {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("register %s: %w", gv, err)
		}
		if err := s.SetVersionPriority(gv); err != nil {
			return nil, fmt.Errorf("register %s: %w", gv, err)
		}
	}
	return s, nil
}

// newScheme is versionedScheme with every v1 type registered a second time as
// the internal version of its kind, so that nothing is converted between the
// wire, memory and the store. The one exception is Event: both API groups that
// have it share one storage, whose type is the core group's.
func newScheme() (*runtime.Scheme, error) {
	s, err := versionedScheme()
	if err != nil {
		return nil, err
	}
	for gv := range groups() {
		if gv == eventsv1.SchemeGroupVersion {
			continue
		}
		internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
		for kind, t := range s.KnownTypes(gv) {
			if ownKind(t) {
				s.AddKnownTypeWithName(internal.WithKind(kind), reflect.New(t).Interface().(runtime.Object))
			}
		}
	}
	if err := kubelet.AddToScheme(s); err != nil {
		return nil, err
	}
	if err := kinds.AddToScheme(s); err != nil {
		return nil, err
	}
	if err := addCopies(s); err != nil {
		return nil, err
	}
	return s, nil
}

// addCopies lets admission convert an object to its version, which is its own type: by
// a deep copy, since webhooks change what they are given.
func addCopies(s *runtime.Scheme) error {
	done := map[reflect.Type]bool{}
	for gvk, t := range s.AllKnownTypes() {
		if done[t] || !ownKind(t) {
			continue
		}
		done[t] = true
		example := reflect.New(t).Interface()
		err := s.AddConversionFunc(example, example, func(in, out any, _ conversion.Scope) error {
			reflect.ValueOf(out).Elem().Set(reflect.ValueOf(in.(runtime.Object).DeepCopyObject()).Elem())
			return nil
		})
		if err != nil {
			return fmt.Errorf("copies of %s: %w", gvk, err)
		}
	}
	return nil
}

// ownKind tells a group's own kinds from the option and meta types that
// apimachinery registers with every group.
func ownKind(t reflect.Type) bool {
	return strings.HasPrefix(t.PkgPath(), "k8s.io/api/") || strings.HasPrefix(t.PkgPath(), "k8s.io/metrics/")
}
