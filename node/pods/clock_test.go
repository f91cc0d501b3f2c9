package pods

// Tests of a machine whose clock is wrong.

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node/runtime"
)

// TestBackOffOfAnotherClock: a container that ended by a clock that was hours ahead, and has been set
// since, does not wait for hours.
func TestBackOffOfAnotherClock(t *testing.T) {
	now := time.Now()
	for ahead, waits := range map[time.Duration]bool{8 * time.Hour: false, -time.Second: true, -time.Minute: false} {
		f := fact{spec: &corev1.Container{Name: "main"}, newest: &runtime.ContainerStatus{State: runtime.Exited, EndedAt: now.Add(ahead)}, delay: 10 * time.Second}
		s, in := situation{pod: newPod("a", nil), now: now, facts: []fact{f}, prepared: true}, intent{waiting: map[string]blocked{}}
		s.start(&in, &s.facts[0])
		if got := in.start == nil; got != waits {
			t.Errorf("ended %v ahead: it waits until %v", ahead, in.next)
		}
	}
}

// A skewed API makes tokens of an hour by a clock that is ahead of the node's.
type skewed struct {
	ahead time.Duration
	asked int
}

func (a *skewed) CreateToken(_ context.Context, _, _ string, r *authv1.TokenRequest) (*authv1.TokenRequest, error) {
	a.asked++
	life := time.Duration(*r.Spec.ExpirationSeconds) * time.Second
	r.Status = authv1.TokenRequestStatus{Token: fmt.Sprint(a.asked), ExpirationTimestamp: metav1.NewTime(time.Now().Add(a.ahead + life))}
	return r, nil
}

// TestTokenOfWrongClock: on a machine whose clock is hours off, a token is renewed before it ends.
func TestTokenOfWrongClock(t *testing.T) {
	for _, ahead := range []time.Duration{8 * time.Hour, -8 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			api, pod := &skewed{ahead: ahead}, newPod("a", nil)
			o := newObjects(&apiclient.API{CreateToken: api.CreateToken}, time.Minute)
			for range 59 {
				if _, err := o.Token(t.Context(), pod, &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](3600)}, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute) // the bubble's clock
			}
			if api.asked != 2 {
				t.Errorf("%v ahead: asked %d times in an hour", ahead, api.asked)
			}
		})
	}
}
