// Tests of whether nodes are heard.

package main

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestHear: a node that renews its Lease is heard, whatever time it writes. One that does not renew
// it in time is not. Nothing is said of one that renews it too seldom to wait for.
func TestHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		lease := func(name string, seconds int32) *coordinationv1.Lease {
			at := metav1.NewMicroTime(time.Now().Add(-time.Hour))
			l := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
				Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &at},
			}
			if err := client.Tracker().Add(l); err != nil {
				t.Fatal(err)
			}
			return l
		}
		leases := map[string]*coordinationv1.Lease{"alive": lease("alive", 40), "dead": lease("dead", 40), "seldom": lease("seldom", 400), "heard": lease("heard", 400)}
		lease("other", 40)
		go func() {
			time.Sleep(8 * time.Second) // the bubble's clock
			for _, name := range []string{"alive", "heard", "other"} {
				l, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				*l.Spec.RenewTime = metav1.NewMicroTime(l.Spec.RenewTime.Add(10 * time.Second))
				if _, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
			}
		}()
		began := time.Now()
		heard, err := hear(t.Context(), io.Discard, client, leases)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]*bool{"alive": new(true), "dead": new(false), "seldom": nil, "heard": new(true), "other": nil} {
			if got := heard[name]; (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Errorf("%s: heard is %v", name, heard[name])
			}
		}
		if took := time.Since(began); took != maxHear {
			t.Errorf("took %v", took)
		}
		// They have, since their Leases were read.
		delete(leases, "dead")
		delete(leases, "seldom")
		began = time.Now()
		if heard, err := hear(t.Context(), io.Discard, client, leases); err != nil || len(heard) != 2 || time.Since(began) != 0 {
			t.Errorf("once all are heard: %v, %v after %v", heard, err, time.Since(began))
		}
	})
}
