package servers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A running registry.
type running struct {
	stop context.CancelFunc
	err  error // once done is closed
	done chan struct{}
	cut  atomic.Bool // its requests fail
	log  bytes.Buffer

	alone atomic.Int64 // when Alone was called, in Unix nanoseconds; zero if it was not

	mu   sync.Mutex // guards the following
	told []string   // the latest, as ID=ADDRESS
}

func (r *running) others() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.told, " ")
}

func start(t *testing.T, store *fake.Clientset, id, addr, token string) *running {
	t.Helper()
	return startAs(t, store, id, addr, token, &running{done: make(chan struct{})})
}

func startAs(t *testing.T, store *fake.Clientset, id, addr, token string, r *running) *running {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if r.cut.Load() {
			return true, nil, errors.New("unreachable")
		}
		o, err := store.Invokes(a, nil)
		return true, o, err
	})
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := store.InvokesWatch(a)
		return true, w, err
	})
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	reg := New(Config{
		Client: client, Server: Server{ID: id, Address: addr}, Started: time.Now().Add(-time.Second), Token: token, Authorities: func() string { return "CA of " + id },
		Log:   slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &r.log), nil)),
		Alone: func() { r.alone.Store(time.Now().UnixNano()) },
		Changed: func(all []Server) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = nil
			for _, s := range all {
				r.told = append(r.told, s.ID+"="+s.Address)
				if s.Authorities != "CA of "+s.ID {
					t.Errorf("the authorities of %s are %q", s.ID, s.Authorities)
				}
			}
			slices.Sort(r.told)
		},
	})
	go func() { r.err = reg.Run(ctx); close(r.done) }()
	t.Cleanup(func() { r.stop(); <-r.done })
	pass(time.Second)
	return r
}

// pass lets fake time pass and what it sets off settle.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func TestServersSeeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fake.NewClientset()
		a := start(t, store, "a", "a:1", "ta")
		if a.others() != "" {
			t.Errorf("a sees %s", a.others())
		}
		b := start(t, store, "b", "b:1", "tb")
		if a.others() != "b=b:1" || b.others() != "a=a:1" {
			t.Errorf("a sees %q, b sees %q", a.others(), b.others())
		}
		lease, err := store.CoordinationV1().Leases(Namespace).Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil || lease.Annotations[Started] != time.Now().Add(-2*time.Second).UTC().Format(time.RFC3339Nano) {
			t.Errorf("b was started at %s, by %v, %v", time.Now(), lease, err)
		}
		pass(20 * Duration)
		if a.others() != "b=b:1" {
			t.Errorf("after 20 lives of a lease a sees %q", a.others())
		}
		b.stop()
		synctest.Wait()
		if a.others() != "" {
			t.Errorf("a sees %q, which has left", a.others())
		}
		c := start(t, store, "c", "c:1", "tc")
		pass(time.Second)
		c.cut.Store(true) // as if it had been killed
		pass(Duration + renewEvery)
		if a.others() != "" {
			t.Errorf("a sees %q, which is dead", a.others())
		}
		c.cut.Store(false)
		pass(renewEvery)
		if a.others() != "c=c:1" {
			t.Errorf("a sees %q, want c, which is back", a.others())
		}
	})
}

// The Lease of a server that was killed is deleted an hour later, by those that have watched it for
// that long, and not while the store was away: then nobody could renew.
func TestLeaseOfKilledServerIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fake.NewClientset()
		a, b, dead := start(t, store, "a", "a:1", "ta"), start(t, store, "b", "b:1", "tb"), start(t, store, "dead", "c:1", "tc")
		there := func() (names string) {
			all, err := store.CoordinationV1().Leases(Namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range all.Items {
				names += l.Name + " "
			}
			return names
		}
		for _, r := range []*running{a, b, dead} {
			r.cut.Store(true)
		}
		pass(forgetAfter)
		a.cut.Store(false)
		if pass(2 * forgetEvery); there() != "a b dead " {
			t.Errorf("after an outage of an hour there are %s", there())
		}
		b.cut.Store(false)
		dead.cut.Store(false)
		pass(time.Minute)
		dead.cut.Store(true)
		dead.stop()
		if pass(forgetAfter - time.Minute); there() != "a b dead " {
			t.Errorf("within the hour there are %s", there())
		}
		if pass(2*forgetEvery + time.Minute); there() != "a b " {
			t.Errorf("after the hour there are %s", there())
		}
	})
}

// TestStoreIsAway: while nobody can renew, nobody is gone. Who does not renew afterwards is.
func TestStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fake.NewClientset()
		a, b := start(t, store, "a", "a:1", "ta"), start(t, store, "b", "b:1", "tb")
		dead := start(t, store, "c", "c:1", "tc")
		dead.cut.Store(true)
		pass(Duration + renewEvery)
		a.cut.Store(true)
		b.cut.Store(true)
		for range 60 {
			if pass(time.Second); a.others() != "b=b:1" || b.others() != "a=a:1" {
				t.Fatalf("while nobody can renew a sees %q, b sees %q", a.others(), b.others())
			}
		}
		a.cut.Store(false)
		if pass(Duration - time.Second); a.others() != "b=b:1" {
			t.Errorf("a sees %q before b has had time to renew", a.others())
		}
		if pass(2 * renewEvery); a.others() != "" {
			t.Errorf("a sees %q, which does not renew", a.others())
		}
		b.cut.Store(false)
		if pass(2 * renewEvery); a.others() != "b=b:1" || b.others() != "a=a:1" {
			t.Errorf("in the end a sees %q, b sees %q", a.others(), b.others())
		}
	})
}

func TestSameID(t *testing.T) {
	const other, copied = "another server with the ID a runs at ", "another server runs with a copy of this one's data directory, at "
	for name, tc := range map[string]struct {
		id, addr, token string
		killed          bool   // the first, without a word
		says            string // what the second ends with
		within          time.Duration
		alone           time.Duration // when the second knows that it is; below zero if it never does
	}{
		"two servers":                         {"a", "b:1", "tb", false, other + "a:1: give one of them another --server-id", 2*renewEvery + time.Second, -1},
		"a copied data directory":             {"a", "b:1", "ta", false, copied + "a:1 (Lease hawser-servers/a): give each", 2*renewEvery + time.Second, -1},
		"a copy by another ID":                {"b", "b:1", "ta", false, copied + "a:1 (Lease hawser-servers/a): give each", 2*renewEvery + time.Second, -1},
		"two strangers":                       {"b", "b:1", "tb", false, "", Duration, 0},
		"started again":                       {"a", "a:1", "ta", true, "", 0, 0},
		"started again at another address":    {"a", "b:1", "ta", true, "", 0, Duration},
		"started again by another ID":         {"b", "b:1", "ta", true, "", Duration, Duration},
		"another in the place of a dead one":  {"a", "b:1", "tb", true, "", Duration + renewEvery, Duration},
		"a copy in the place of a dead one":   {"b", "a:1", "ta", true, "", Duration, Duration},
		"a copy that claims the same address": {"a", "a:1", "ta", false, copied + "a:1 (Lease hawser-servers/a): give each", 2*renewEvery + time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := fake.NewClientset()
				first := start(t, store, "a", "a:1", "ta")
				watcher := start(t, store, "w", "w:1", "tw")
				pass(time.Second)
				first.cut.Store(tc.killed)
				began := time.Now()
				second := start(t, store, tc.id, tc.addr, tc.token)
				pass(tc.within)
				if first.ended() {
					t.Errorf("the first has ended: %v", first.err)
				}
				if second.ended() != (tc.says != "") || second.ended() && (second.err == nil || !strings.HasPrefix(second.err.Error(), tc.says)) {
					t.Errorf("the second has ended: %v, %v", second.ended(), second.err)
				}
				if !tc.killed && tc.id == "a" && !second.ended() {
					t.Error("there are two")
				}
				pass(2 * Duration)
				switch at := second.alone.Load(); {
				case tc.alone < 0 && at != 0:
					t.Error("the second was told that it is alone")
				case tc.alone >= 0 && (at == 0 || time.Unix(0, at).Sub(began) < tc.alone-time.Second || time.Unix(0, at).Sub(began) > tc.alone+renewEvery):
					t.Errorf("the second was told that it is alone %v after its start, want %v", time.Unix(0, at).Sub(began), tc.alone)
				}
				want := tc.id + "=" + tc.addr
				if tc.says != "" {
					want = "a=a:1"
				} else if !tc.killed {
					want = "a=a:1 " + want
				}
				if watcher.others() != want {
					t.Errorf("others see %q, want %q", watcher.others(), want)
				}
			})
		})
	}
}

// TestRestoredStore: a store that has this server's Lease from before does not end it, unless
// a process from before renews that Lease.
func TestRestoredStore(t *testing.T) {
	for name, tc := range map[string]struct{ killed, renewed bool }{
		"nobody renews it":                      {killed: true},
		"nobody renews it after an orderly end": {},
		"somebody renews it":                    {killed: true, renewed: true},
	} {
		t.Run(name, func(t *testing.T) {
			renewed := tc.renewed
			synctest.Test(t, func(t *testing.T) {
				store := fake.NewClientset()
				leases := store.CoordinationV1().Leases(Namespace)
				first := start(t, store, "a", "a:1", "ta")
				old, err := leases.Get(t.Context(), "a", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if tc.killed {
					first.cut.Store(true)
				} else {
					first.stop()
					<-first.done
				}
				second := start(t, store, "a", "a:1", "ta")
				pass(Duration)
				for i := range 20 {
					if i > 0 && !renewed {
						break
					}
					now := metav1.NowMicro()
					old.Spec.RenewTime = &now
					if _, err := leases.Update(t.Context(), old, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
					pass(time.Second)
				}
				pass(Duration + 2*renewEvery)
				if second.ended() != renewed {
					t.Errorf("it has ended: %v, %v", second.ended(), second.err)
				}
				l, err := leases.Get(t.Context(), "a", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if mine := l.Annotations[Process] != old.Annotations[Process]; mine == renewed {
					t.Errorf("the Lease is of the process from before: %v", !mine)
				}
			})
		})
	}
}

// TestLeasesNotToBeHad: a server that may not read Leases goes on, and says once what it
// cannot tell.
func TestLeasesNotToBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &running{done: make(chan struct{})}
		r.cut.Store(true)
		began := time.Now()
		startAs(t, fake.NewClientset(), "a", "a:1", "ta", r)
		pass(time.Minute)
		if at := r.alone.Load(); at == 0 || time.Unix(0, at).Sub(began) > 2*renewEvery {
			t.Errorf("it waits for %v", time.Unix(0, at).Sub(began))
		}
		if n := strings.Count(r.log.String(), "\n"); n != 1 || !strings.Contains(r.log.String(), "unreachable") {
			t.Errorf("the log says\n%s", &r.log)
		}
	})
}
