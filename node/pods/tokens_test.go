package pods

// Tests of the times at which the tokens of many pods are requested again.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// issuing is an API that makes tokens with a lifetime and records the times.
type issuing struct {
	life time.Duration

	mu    sync.Mutex // guards the following
	asked []time.Time
}

func (a *issuing) CreateToken(_ context.Context, _, _ string, r *authv1.TokenRequest) (*authv1.TokenRequest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.asked = append(a.asked, now)
	r.Status = authv1.TokenRequestStatus{Token: "t", ExpirationTimestamp: metav1.NewTime(now.Add(a.life))}
	return r, nil
}

// TestTokensRotateWithoutASpike: the tokens of 10,000 pods that started at once, on one node or
// many, are requested again over a tenth of a token's life: each before four fifths of its life
// and a refresh of volumes are over, and not much before seven tenths.
func TestTokensRotateWithoutASpike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			pods    = 10_000
			refresh = time.Minute
			life    = 3607 * time.Second
			window  = 10 * time.Second
			most    = 450 // in a window; 277 is the mean over a tenth of the life
		)
		api := &issuing{life: life}
		began := time.Now()
		ctx, cancel := context.WithDeadline(t.Context(), began.Add(life))
		defer cancel()
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() {
				o := newObjects(&apiclient.API{CreateToken: api.CreateToken}, refresh) // nodes share no cache
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID(fmt.Sprint(i))}}
				for first := true; ctx.Err() == nil; first = false {
					if _, err := o.Token(ctx, pod, &corev1.ServiceAccountTokenProjection{}); err != nil {
						t.Error(err)
					}
					if first { // nothing happens meanwhile
						rest(ctx, life*6/10)
					}
					rest(ctx, jitter(refresh))
				}
			})
		}
		all.Wait()
		var again []time.Duration
		for _, at := range api.asked {
			if at != began {
				again = append(again, at.Sub(began))
			}
		}
		slices.Sort(again)
		if len(again) != pods {
			t.Fatalf("%d tokens were asked for anew, want %d", len(again), pods)
		}
		if first, last := again[0], again[len(again)-1]; first < life*7/10 || last > life*4/5+2*refresh {
			t.Errorf("asked for anew from %v to %v, of a life of %v", first, last, life)
		}
		for i := range again {
			if i+most < len(again) && again[i+most]-again[i] < window {
				t.Fatalf("more than %d were asked for within %v, %v after they were made", most, window, again[i])
			}
		}
	})
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
