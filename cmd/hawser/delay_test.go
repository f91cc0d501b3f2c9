// Tests of how a hub beside another API server waits before it stops.

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
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
