package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestUnderway: the stop waits for the last request, whatever has become of its connection,
// and no longer than it may.
func TestUnderway(t *testing.T) {
	for name, tc := range map[string]struct{ lasts, bound, want time.Duration }{
		"none":     {0, time.Minute, 0},
		"one":      {20 * time.Second, time.Minute, 20 * time.Second},
		"too long": {time.Hour, time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var u underway
				h := u.count(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(tc.lasts) }))
				ended := make(chan struct{})
				go func() {
					h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
					close(ended)
				}()
				synctest.Wait()
				began := time.Now()
				u.drain(began.Add(tc.bound))
				if d := time.Since(began); d != tc.want {
					t.Errorf("waited %v, want %v", d, tc.want)
				}
				<-ended
			})
		})
	}
}
