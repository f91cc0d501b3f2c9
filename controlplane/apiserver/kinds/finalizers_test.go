// The names of finalizers.

package kinds

import (
	"context"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// ofFinalizers are the messages of the finalizers in errs.
func ofFinalizers(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		if e.Detail == "name is neither a standard finalizer name nor is it fully qualified" {
			out = append(out, e.Error())
		}
	}
	return out
}

// TestFinalizers: a finalizer of a kind that Kubernetes' core validation looks at has a domain or is
// a standard one. Those that an object has may stay.
func TestFinalizers(t *testing.T) {
	t.Parallel()
	free := []string{
		"Event", "Lease", "PodDisruptionBudget", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	}
	rows, scheme := All(), runtime.NewScheme()
	for i := range rows {
		r := &rows[i]
		with := func(finalizers ...string) runtime.Object {
			o := r.newObject()
			o.(metav1.Object).SetFinalizers(finalizers)
			return o
		}
		bad := []string{`metadata.finalizers[4]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`}
		if slices.Contains(free, r.kind) {
			bad = nil
		}
		s := newStrategy(scheme, r)
		all := with("kubernetes", "orphan", "foregroundDeletion", "example.com/x", "mine")
		if got := ofFinalizers(s.Validate(t.Context(), all)); !slices.Equal(got, bad) {
			t.Errorf("%s made: %q, want %q", r.kind, got, bad)
		}
		updates := []rest.RESTUpdateStrategy{s}
		if r.status {
			updates = append(updates, statusStrategy{s})
		}
		switch r.newObject().(type) {
		case *corev1.Pod:
			updates = append(updates, ephemeralStrategy{s}, resizeStrategy{s})
		case *certificatesv1.CertificateSigningRequest:
			updates = append(updates, approvalStrategy{s})
		}
		for _, u := range updates {
			if got := ofFinalizers(u.ValidateUpdate(t.Context(), all, with("example.com/x"))); !slices.Equal(got, bad) {
				t.Errorf("%s updated by %T: %q, want %q", r.kind, u, got, bad)
			}
			if got := ofFinalizers(u.ValidateUpdate(t.Context(), all, with("example.com/y", "mine"))); got != nil {
				t.Errorf("%s that has it updated by %T: %q", r.kind, u, got)
			}
		}
	}
	newer := apirequest.WithRequestInfo(context.Background(), &apirequest.RequestInfo{APIGroup: eventsv1.GroupName})
	e, k := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"mine"}}}, events()
	s := newStrategy(scheme, &k)
	if len(ofFinalizers(s.Validate(newer, e))) != 1 || len(ofFinalizers(s.ValidateUpdate(newer, e, &corev1.Event{}))) != 1 || len(ofFinalizers(s.ValidateUpdate(newer, e, e))) != 0 {
		t.Error("an event of events.k8s.io is not held to the rule")
	}
}
