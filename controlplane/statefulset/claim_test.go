package statefulset

// Tests of the claims that go with ordinals.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
)

// TestClaims: each ordinal has its own, which stay, or go with the set or its ordinal.
func TestClaims(t *testing.T) {
	const keep, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	run(t, func(w *world) {
		w.claims("0")
		w.up(3)
		w.claims("0 1 2")
		p := w.pods()[1]
		if v := p.Spec.Volumes; len(v) != 1 || v[0].Name != "data" || v[0].PersistentVolumeClaim.ClaimName != "data-s-1" {
			t.Errorf("volumes %+v", v)
		}
		if e := apitest.Events(w.events); !slices.Contains(e, "Normal SuccessfulCreate Create Claim data-s-1 Pod s-1 in StatefulSet s success") {
			t.Errorf("events %q", e)
		}
		claim, err := w.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data-s-1", metav1.GetOptions{})
		w.Must(err)
		if claim.Labels["app"] != "s" || claim.Labels["own"] != "label" {
			t.Errorf("labels %v", claim.Labels)
		}
		w.edit(replicas(2))
		w.gone()
		w.claims("0 1 2")
		w.edit(claiming(remove, keep))
		w.claims("0:s 1:s 2")
		w.edit(claiming(remove, remove), replicas(1))
		w.claims("0:s 1:s-1 2")
		w.edit(claiming(keep, keep), replicas(2)) // before the pod is gone
		w.claims("0 1 2")
	}, set(claiming(keep, keep)))
}

// TestDeletedClaim: a claim that is deleted while the pod does not run yet is made again; that of
// a pod that runs is not.
func TestDeletedClaim(t *testing.T) {
	const keep = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	run(t, func(w *world) {
		claims := w.Client.CoreV1().PersistentVolumeClaims("ns")
		w.Must(claims.Delete(t.Context(), "data-s-0", metav1.DeleteOptions{}))
		w.settle(0)
		w.claims("0")
		w.up(2)
		w.claims("0 1 2")
		for i := range 3 {
			w.Must(claims.Delete(t.Context(), fmt.Sprintf("data-s-%d", i), metav1.DeleteOptions{}))
		}
		w.settle(0)
		w.claims("2")
	}, set(claiming(keep, keep)))
}

// TestRefusedClaim: a claim that the server refuses is told, and so is the pod that misses it.
func TestRefusedClaim(t *testing.T) {
	const keep = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	run(t, func(w *world) {
		w.up(1)
		w.Client.PrependReactor("create", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no")
		})
		w.edit(replicas(2))
		w.has("0=one*")
		e := apitest.Events(w.events)
		for _, want := range []string{
			"Warning FailedCreate Create Claim data-s-1 for Pod s-1 in StatefulSet s failed error: no",
			"Warning FailedCreate Create Pod s-1 in StatefulSet s failed error: create claim data-s-1: no",
		} {
			if !slices.Contains(e, want) {
				t.Errorf("no event %q in %q", want, e)
			}
		}
	}, set(replicas(1), claiming(keep, keep)))
}

// TestClaimOfPodBefore: an ordinal that is wanted again waits until the claim that goes with
// its last pod is gone, so that the claim does not go with the new one.
func TestClaimOfPodBefore(t *testing.T) {
	const keep, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	run(t, func(w *world) {
		w.up(2)
		w.edit(replicas(1))
		w.gone()
		w.claims("0 1:s-1")
		w.edit(replicas(2))
		w.has("0=one*")
		w.claims("0 1:s-1")
		w.Must(w.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "data-s-1", metav1.DeleteOptions{})) // as the garbage collector does
		w.settle(time.Minute)
		w.has("0=one* 1=one")
		w.claims("0 1")
		for _, e := range apitest.Events(w.events) {
			if strings.HasPrefix(e, corev1.EventTypeWarning) {
				t.Errorf("event %q", e)
			}
		}
	}, set(replicas(2), claiming(keep, remove)))
}

// TestClaimOfOtherController: a claim that another controller has, such as an operator that has
// restored it, gets no second one. That is told when the pod is made or loses the claim.
func TestClaimOfOtherController(t *testing.T) {
	const keep, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	const conflict = "Warning ConflictingController PersistentVolumeClaim data-s-0 has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim"
	restored := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Restore", Name: "r", UID: "r", Controller: ptr.To(true)}
	other := func() *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-s-0", Namespace: "ns", UID: "c", OwnerReferences: []metav1.OwnerReference{restored}}}
	}
	told := func(w *world, step string, want int) {
		w.Helper()
		n := 0
		for _, e := range apitest.Events(w.events) {
			if e == conflict {
				n++
			}
		}
		if n != want {
			w.Errorf("%s: told %d times, want %d", step, n, want)
		}
	}
	run(t, func(w *world) {
		oneController(w)
		w.up(1)
		told(w, "all is kept", 0)
		w.edit(claiming(remove, keep))
		w.up(3)
		w.has("0=one* 1=one* 2=one*")
		w.claims("0:r 1:s 2:s")
		told(w, "changed", 0)
		w.edit(claiming(remove, remove), replicas(0))
		for range 3 {
			w.gone()
		}
		w.has("")
		w.claims("0:r 1:s-1 2:s-2")
		told(w, "made smaller", 0)
	}, set(claiming(keep, keep)), other())
	run(t, func(w *world) {
		oneController(w)
		w.has("0=one")
		w.claims("0:r")
		told(w, "made", 1)
	}, set(replicas(1), claiming(remove, keep)), other())
	run(t, func(w *world) {
		oneController(w)
		w.claims("0:s")
		claims := w.Client.CoreV1().PersistentVolumeClaims("ns")
		claim, err := claims.Get(w.Context(), "data-s-0", metav1.GetOptions{})
		w.Must(err)
		claim.OwnerReferences = append(claim.OwnerReferences, restored)
		claim.OwnerReferences[0].Controller = nil
		_, err = claims.Update(w.Context(), claim, metav1.UpdateOptions{})
		w.Must(err)
		w.settle(0)
		w.up(1)
		w.claims("0:r")
		told(w, "taken over", 1)
	}, set(replicas(1), claiming(remove, keep)))
}

// oneController has updates of claims refused that would have two controllers, as the API does.
func oneController(w *world) {
	w.Client.PrependReactor("update", "persistentvolumeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c := a.(clienttesting.UpdateAction).GetObject().(*corev1.PersistentVolumeClaim) //nolint:forcetypeassert // by what it reacts to
		if errs := validation.ValidateOwnerReferences(c.OwnerReferences, field.NewPath("metadata", "ownerReferences")); len(errs) > 0 {
			return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim").GroupKind(), c.Name, errs)
		}
		return false, nil, nil
	})
}
