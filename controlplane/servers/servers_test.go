package servers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
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
	r := &running{done: make(chan struct{})}
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
		Client: client, Server: Server{id, addr}, Token: token, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Changed: func(all []Server) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = nil
			for _, s := range all {
				r.told = append(r.told, s.ID+"="+s.Address)
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
		pass(time.Hour)
		if a.others() != "b=b:1" {
			t.Errorf("after an hour a sees %q", a.others())
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

func TestSameID(t *testing.T) {
	for name, tc := range map[string]struct {
		addr, token string
		killed      bool   // the first, without a word
		loser       string // whose Run fails
		within      time.Duration
	}{
		"two servers":                        {"b:1", "tb", false, "second", 2*renewEvery + time.Second},
		"a copied data directory":            {"b:1", "ta", false, "first", renewEvery + time.Second},
		"started again":                      {"a:1", "ta", true, "", 0},
		"started again at another address":   {"b:1", "ta", true, "", 0},
		"another in the place of a dead one": {"b:1", "tb", true, "", Duration + renewEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := fake.NewClientset()
				first := start(t, store, "a", "a:1", "ta")
				watcher := start(t, store, "w", "w:1", "tw")
				pass(time.Second)
				first.cut.Store(tc.killed)
				second := start(t, store, "a", tc.addr, tc.token)
				pass(tc.within)
				all := map[string]*running{"first": first, "second": second}
				for who, r := range all {
					if r.ended() != (who == tc.loser) {
						t.Errorf("%s has ended: %v", who, r.ended())
					}
				}
				if l := all[tc.loser]; l != nil && l.ended() {
					winner := "a:1"
					if tc.loser == "first" {
						winner = tc.addr
					}
					if want := "another server with the ID a runs at " + winner + ": give one of them another --server-id"; l.err == nil || l.err.Error() != want {
						t.Errorf("%v, want %s", l.err, want)
					}
				}
				if tc.killed && watcher.others() != "a="+tc.addr {
					t.Errorf("others see %q", watcher.others())
				}
			})
		})
	}
}
