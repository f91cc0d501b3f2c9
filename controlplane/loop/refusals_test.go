package loop

// Tests of how often a refusal is in the log.

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A thousand objects that fail for one cause have one line a minute, however often each
// is tried. Those that fail for causes of their own have a line each.
func TestRefusedQueue(t *testing.T) {
	patch := errors.New(`User "hub" cannot patch resource "nodes/status"`)
	for name, tc := range map[string]struct {
		fail  func(key string) error
		lines int // in five minutes
	}{
		"forbidden": {func(key string) error { return apierrors.NewForbidden(corev1.Resource("nodes"), key, patch) }, 5},
		"wrapped": {func(key string) error {
			return StatusError(key, apierrors.NewForbidden(corev1.Resource("nodes"), key, patch))
		}, 5},
		"unauthorized": {func(string) error { return apierrors.NewUnauthorized("Unauthorized") }, 5},
		"stranger": {func(key string) error {
			return &url.Error{Op: "Patch", URL: "https://api/" + key, Err: x509.UnknownAuthorityError{}}
		}, 5},
		"admission": {func(key string) error {
			return apierrors.NewForbidden(corev1.Resource("pods"), key, errors.New("exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9"))
		}, 1000 * 5},
		"its own": {func(key string) error { return fmt.Errorf("%s has no address", key) }, 1000 * 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				q := NewQueue(Config[string]{
					Name: "q", Log: slog.New(slog.NewTextHandler(&log, nil)), MinDelay: time.Minute, MaxDelay: time.Minute, Workers: 1,
					Do: func(_ context.Context, key string) (time.Duration, error) { return 0, tc.fail(key) },
				})
				for i := range 1000 {
					q.Add(fmt.Sprintf("node-%d", i))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute-time.Second)
				defer cancel()
				if err := q.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(log.String(), "will retry"); n != tc.lines {
					t.Errorf("%d lines, want %d:\n%.2000s", n, tc.lines, log.String())
				}
				if tc.lines == 5 && !strings.Contains(log.String(), "others=999") {
					t.Errorf("it does not say how many others there were:\n%s", log.String())
				}
			})
		})
	}
}

// There are no more lines in a minute than there may be causes.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		count := func() (n int) {
			for i := range 1000 {
				if _, now := r.tell(apierrors.NewForbidden(corev1.Resource("pods"), "p", fmt.Errorf("User \"hub\" cannot do %d", i))); now {
					n++
				}
			}
			return n
		}
		if n := count(); n != maxCauses {
			t.Errorf("%d lines", n)
		}
		if _, now := r.tell(apierrors.NewUnauthorized("Unauthorized")); !now {
			t.Error("that nothing is accepted any more is not told")
		}
		<-time.After(refusalInterval)
		if n := count(); n != maxCauses {
			t.Errorf("a minute later: %d lines", n)
		}
	})
}
