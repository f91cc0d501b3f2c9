// Tests of how a hub beside another API server waits before it stops.

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/controlplane/statuspage"
)

// TestStopIsDelayed: a hub that is told to stop fails /readyz at once and goes on for as long
// as load balancers are given to notice.
func TestStopIsDelayed(t *testing.T) {
	o, err := parse(t, "--kubeconfig", "x", "--shutdown-delay-duration", "10s")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := &hubBeside{o: o, ready: make(chan struct{}), stopping: make(chan struct{}), tunnels: &tunnels{page: &statuspage.Page{}}}
		pages := h.pages()
		readyz := func(want int) {
			t.Helper()
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
			if w.Code != want {
				t.Errorf("/readyz: %d, want %d", w.Code, want)
			}
		}
		readyz(http.StatusInternalServerError)
		close(h.ready)
		readyz(http.StatusOK)
		told, tell := context.WithCancel(t.Context())
		began := time.Now()
		longer, end := h.delayed(told)
		defer end()
		tell()
		<-h.stopping
		readyz(http.StatusInternalServerError)
		<-longer.Done()
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it went on for %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) { // what fails is not waited for
		h := &hubBeside{o: o, stopping: make(chan struct{})}
		told, tell := context.WithCancel(t.Context())
		began := time.Now()
		_, end := h.delayed(told)
		tell()
		<-h.stopping
		end()
		synctest.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// TestNamesAreKeptToTheEnd: a hub that drains learns for as long as it has sessions who has lost
// a name. What fails ends all.
func TestNamesAreKeptToTheEnd(t *testing.T) {
	fault := errors.New("fault")
	for _, failing := range []string{"", "upper", "tunnels", "names"} {
		t.Run("failing "+failing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told, tell := context.WithCancel(t.Context())
				var (
					mu    sync.Mutex // guards ended
					ended []string
				)
				part := func(name string) func(context.Context) error {
					return func(ctx context.Context) error {
						var fails <-chan time.Time
						if name == failing {
							fails = time.After(time.Second)
						}
						select {
						case <-fails:
							return fault
						case <-ctx.Done():
						}
						<-time.After(time.Minute) // it drains
						mu.Lock()
						defer mu.Unlock()
						ended = append(ended, name)
						return nil
					}
				}
				if failing == "" {
					defer time.AfterFunc(time.Second, tell).Stop()
				}
				defer tell()
				err := runInOrder(told, part("upper"), part("tunnels"), part("names"))
				if (failing == "") != (err == nil) || err != nil && !errors.Is(err, fault) {
					t.Errorf("it ended with %v", err)
				}
				want := slices.DeleteFunc([]string{"upper", "tunnels", "names"}, func(name string) bool { return name == failing })
				if failing != "tunnels" && !slices.Equal(ended, want) || len(ended) != len(want) {
					t.Errorf("in order %q, want %q", ended, want)
				}
			})
		})
	}
}
