package node

// Tests of a Lease that others write, or make, as well.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
)

// renewed is the times at which a Lease was written, in seconds, while RenewLease ran.
func renewed(t *testing.T, c *fake.Clientset, d time.Duration, uid func(context.Context) (types.UID, error)) (at []float64) {
	t.Helper()
	began := time.Now()
	c.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() != "get" {
			at = append(at, time.Since(began).Round(time.Second).Seconds())
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	RenewLease(ctx, LeaseConfig{API: apiclienttest.From(c), Node: "n", Duration: 40 * time.Second, UID: uid})
	return at
}

func known(context.Context) (types.UID, error) { return "uid", nil }

// TestLeaseOfOthers: a Lease that is there is renewed at once, and one that another has
// written meanwhile is read and written again.
func TestLeaseOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "n"}})
		conflicts := 0
		c.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts == 2 {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "n", nil)
			}
			return false, nil, nil
		})
		if at := renewed(t, c, 15*time.Second, known); len(at) != 3 || at[0] != 0 || at[1] != at[2] {
			t.Errorf("written at %v", at)
		}
	})
}

// TestLeaseMadeByAnother: a Lease that was made between the look and the creation is renewed
// as soon as it is found.
func TestLeaseMadeByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		c.PrependReactor("create", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			create := a.(clienttesting.CreateAction) //nolint:forcetypeassert // of creations
			if err := c.Tracker().Create(a.GetResource(), create.GetObject(), a.GetNamespace()); err != nil {
				t.Error(err)
			}
			return false, nil, nil // which fails
		})
		if at := renewed(t, c, 5*time.Second, known); len(at) != 2 || at[1] != 0 {
			t.Errorf("written at %v, want a creation and an update at once", at)
		}
	})
}

// TestLeaseWithoutOwner: no Lease is made before the Node is there.
func TestLeaseWithoutOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		began := time.Now()
		uid := func(context.Context) (types.UID, error) {
			if time.Since(began) < 5*time.Second {
				return "", nil
			}
			return "uid", nil
		}
		if at := renewed(t, c, 15*time.Second, uid); len(at) != 1 || at[0] != 10 {
			t.Errorf("written at %v, want a creation at the second renewal", at)
		}
	})
}

// TestLeaseThatIsRefused: an update that fails is tried five times, and five times more after the
// Lease was read anew, as in k8s.io/component-helpers; the next renewal is that of the next
// interval. A Lease that cannot be made is tried again after waits of 200 ms, doubled up to 7 s.
func TestLeaseThatIsRefused(t *testing.T) {
	for verb, tt := range map[string]struct {
		have []runtime.Object
		runs time.Duration
		want string
	}{
		"update": {
			[]runtime.Object{&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "n"}}},
			15 * time.Second,
			"0.0 get, 0.0 update x5, 10.x update x5, 10.x get, 10.x update x5",
		},
		"create": {
			nil, 35 * time.Second,
			"0.0 get, 0.0 create, 0.2 get, 0.2 create, 0.6 get, 0.6 create, 1.4 get, 1.4 create, 3.0 get, 3.0 create, 6.2 get, 6.2 create, " +
				"12.6 get, 12.6 create, 19.6 get, 19.6 create, 26.6 get, 26.6 create, 33.6 get, 33.6 create",
		},
	} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := fake.NewClientset(tt.have...)
				began := time.Now()
				var did []string
				times := 0 // of the last
				c.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
					at := fmt.Sprintf("%.1f", time.Since(began).Seconds())
					if verb == "update" && strings.HasPrefix(at, "10.") { // the interval has a jitter of 4 %
						at = "10.x"
					}
					what := at + " " + a.GetVerb()
					if last := len(did) - 1; last >= 0 && (did[last] == what || did[last] == fmt.Sprintf("%s x%d", what, times)) {
						times++
						did[last] = fmt.Sprintf("%s x%d", what, times)
					} else {
						did, times = append(did, what), 1
					}
					if a.GetVerb() != verb {
						return false, nil, nil
					}
					return true, nil, apierrors.NewInternalError(errors.New("no store"))
				})
				ctx, cancel := context.WithTimeout(t.Context(), tt.runs)
				defer cancel()
				RenewLease(ctx, LeaseConfig{API: apiclienttest.From(c), Node: "n", Duration: 40 * time.Second, UID: known})
				if got := strings.Join(did, ", "); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// TestLeaseThroughDeadServer: an API server that takes requests and answers none is left after
// two of them, in time for the node to stay ready; also where the Lease was not known yet.
func TestLeaseThroughDeadServer(t *testing.T) {
	for name, from := range map[string]time.Duration{"from the first": 0, "later on": 15 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := fake.NewClientset()
				began := time.Now()
				var at []time.Duration // when the Lease was written
				moved := false         // to another server
				api := apiclienttest.From(c)
				leases := api.Leases
				api.Leases = func(namespace string) apiclient.Leases {
					return deadLeases{Leases: leases(namespace), dead: func() bool { return !moved && time.Since(began) >= from }}
				}
				c.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if a.GetVerb() != "get" {
						at = append(at, time.Since(began))
					}
					return false, nil, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), from+35*time.Second)
				defer cancel()
				RenewLease(ctx, LeaseConfig{API: api, Node: "n", Duration: 40 * time.Second, UID: known, CloseConnections: func() { moved = true }})
				if len(at) == 0 || at[len(at)-1] <= from {
					t.Fatalf("written at %v: not through the other server", at)
				}
				last := time.Duration(0)
				for _, next := range at {
					if next-last > 35*time.Second {
						t.Errorf("written at %v", at)
					}
					last = next
				}
			})
		})
	}
}

// deadLeases answer nothing while the server is dead.
type deadLeases struct {
	apiclient.Leases
	dead func() bool
}

func (d deadLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if d.dead() {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return d.Leases.Get(ctx, name, o)
}

func (d deadLeases) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if d.dead() {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return d.Leases.Update(ctx, l, o)
}
