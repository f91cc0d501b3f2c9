package pods

// Tests of the times at which tokens are requested again.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node/runtime/memory"
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

// TestTokensRotateWithoutASpike: the tokens of 4,000 pods that started at once, on one node or
// many, are requested again over a tenth of a token's life: each before four fifths of its life
// and a refresh of volumes are over, and not much before seven tenths.
func TestTokensRotateWithoutASpike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			pods    = 4_000
			refresh = time.Minute
			life    = 3607 * time.Second
			window  = 10 * time.Second
			most    = 200 // in a window; 111 is the mean over a tenth of the life
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
					if _, err := o.Token(ctx, pod, &corev1.ServiceAccountTokenProjection{}, nil); err != nil {
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

// TestOneFailingObjectStopsNoOther: a pod's token is renewed and its other Secret refreshed while
// the server has an internal error for one of its Secrets, or does not get it across in time.
func TestOneFailingObjectStopsNoOther(t *testing.T) {
	const life = 10 * time.Minute
	internal := func() error { return apierrors.NewInternalError(errors.New("unable to transform key")) }
	for name, tt := range map[string]struct {
		fail    func() error
		freshly bool // the other Secret is refreshed, too
	}{
		"internal error": {internal, true},
		"too slow":       {func() error { <-time.After(answerTimeout); return context.DeadlineExceeded }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, memory.Options{}, func(w *world) {
				var tokens, others, failing atomic.Int32
				w.addInputs()
				w.api.PrependReactor("create", "serviceaccounts", func(k8stesting.Action) (bool, apiruntime.Object, error) {
					return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{
						Token: fmt.Sprint("token ", tokens.Add(1)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(life)),
					}}, nil
				})
				w.api.PrependReactor("get", "secrets", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
					switch a.(k8stesting.GetAction).GetName() {
					case "keys":
						if failing.Load() > 0 {
							failing.Add(1)
							return true, nil, tt.fail()
						}
					case "other":
						others.Add(1)
						return true, &corev1.Secret{Data: map[string][]byte{"a": nil}}, nil
					}
					return false, nil, nil
				})
				w.create(newPod("a", func(p *corev1.Pod) {
					withInputs(p)
					other := corev1.Volume{Name: "other", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "other"}}}
					p.Spec.Volumes = slices.Insert(p.Spec.Volumes, 1, other) // the token stays the last
					c := &p.Spec.Containers[0]
					c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "other", MountPath: "/other"})
				}))
				advance(time.Minute)
				w.wantPhase("a", corev1.PodRunning)
				failing.Store(1)
				tokens.Store(0)
				others.Store(0)
				const spans = 6
				advance(spans * life)
				if got := tokens.Load(); got < spans {
					t.Errorf("%d tokens in %v, each lives for %v", got, spans*life, life)
				}
				if got := others.Load(); tt.freshly && got < spans*int32(life/time.Minute)/2 {
					t.Errorf("the other Secret was read %d times in %v", got, spans*life)
				}
				if got := failing.Load() - 1; got < spans || got > spans*int32(life/(30*time.Second)) {
					t.Errorf("the failing Secret was read %d times in %v", got, spans*life)
				}
			})
		})
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
