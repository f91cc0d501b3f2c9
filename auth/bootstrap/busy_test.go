package bootstrap

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"0": 0, "1": time.Second, " 30 ": 30 * time.Second,
		"86400":      maxAsked,
		"2147483647": maxAsked,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute,
		now.Add(-time.Hour).Format(http.TimeFormat):  0,
		"":           -1,
		"-1":         -1,
		"1.5":        -1,
		"4294967296": -1,
		"soon":       -1,
	} {
		got, ok := retryAfter(in, now)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("120")
	f.Add("Fri, 31 Dec 1999 23:59:59 GMT")
	f.Fuzz(func(t *testing.T, value string) {
		if after, _ := retryAfter(value, time.Unix(0, 0)); after < 0 || after > maxAsked {
			t.Errorf("%q: %s", value, after)
		}
	})
}

func TestRound(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	busy := func(after time.Duration) error { return &busyError{after: after} }
	servers := []string{"a", "b"}
	for _, tt := range []struct {
		name        string
		a, b        error
		least, most time.Duration
	}{
		{"nobody asked for time", ErrTokenRejected, nil, time.Second, 3 * time.Second},
		{"one did", busy(time.Minute), ErrTokenRejected, time.Second, 3 * time.Second},
		{"all did: the first to be ready counts", busy(time.Minute), busy(20 * time.Second), 20*time.Second + 500*time.Millisecond, 21*time.Second + 500*time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := round{busyUntil: map[string]time.Time{}}
			r.note("a", busy(time.Hour), now.Add(-time.Hour)) // of the past
			r.note("a", tt.a, now)
			r.note("b", tt.b, now)
			for range 100 {
				if got := r.pause(servers, 2*time.Second, now); got < tt.least || got > tt.most {
					t.Fatalf("pause %s, want %s to %s", got, tt.least, tt.most)
				}
			}
			for server, err := range map[string]error{"a": tt.a, "b": tt.b} {
				after := retryAfterIn(err)
				if r.may(server, now.Add(after-1)) != (after == 0) || !r.may(server, now.Add(after)) {
					t.Errorf("%s may be asked at the wrong time", server)
				}
			}
		})
	}
}

// TestBusyServer: a server with Retry-After is not tried for that time, at each step of
// joining, and that is logged once at each.
func TestBusyServer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		step    func(r *http.Request) bool
		code    int
		told    string
		refused int
	}{
		{"first request", func(r *http.Request) bool { return r.Method == http.MethodPost }, http.StatusTooManyRequests, "cannot join yet, will keep trying", 2},
		{"while starting", func(r *http.Request) bool { return r.Method == http.MethodPost }, http.StatusServiceUnavailable, "cannot join yet, will keep trying", 1},
		{"wait, and look at the request", func(r *http.Request) bool { return r.Method == http.MethodGet }, http.StatusTooManyRequests, "will ask for the certificate when it says", 2},
		{"wait for the certificate", func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }, http.StatusServiceUnavailable, "will ask for the certificate when it says", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, newAuthority(t), nil)
			var arrived []time.Time
			s.busy = func(w http.ResponseWriter, r *http.Request) bool { // one at a time
				arrived = append(arrived, time.Now())
				if !tt.step(r) || tt.refused == 0 {
					return false
				}
				tt.refused--
				w.Header().Set("Retry-After", "1")
				http.Error(w, "no", tt.code)
				return true
			}
			c, log := s.config(), &diary{}
			c.Log = slog.New(slog.NewTextHandler(log, nil))
			refused := tt.refused
			if _, err := Join(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if told := log.lines(tt.told); len(told) != 1 || len(log.lines("after=1s")) != 1 {
				t.Errorf("told %d times: %q", len(told), told)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			long := 0
			for i := range arrived[1:] {
				if arrived[i+1].Sub(arrived[i]) >= time.Second {
					long++
				}
			}
			if long < refused {
				t.Errorf("asked for time %d times, and given it %d times: %v", refused, long, arrived)
			}
		})
	}
}

// TestJoinAtAServerThatHasJustStarted: a token that it refuses is tried again during
// TokenPatience.
func TestJoinAtAServerThatHasJustStarted(t *testing.T) {
	ca := newAuthority(t)
	s := newServer(t, ca, nil)
	starting := 1 // requests that it answers so
	s.busy = func(w http.ResponseWriter, _ *http.Request) bool {
		if starting == 0 {
			return false
		}
		starting--
		s.answer(w, apierrors.NewUnauthorized("Unauthorized").Status(), http.StatusUnauthorized)
		return true
	}
	c := s.config()
	c.TokenPatience = time.Minute
	if _, err := Join(t.Context(), c); err != nil {
		t.Error(err)
	}
	c = newServer(t, ca, nil).config()
	c.Token.Secret, c.TokenPatience = "ffffffffffffffff", time.Second
	if _, err := Join(t.Context(), c); !errors.Is(err, ErrTokenRejected) {
		t.Errorf("with a token that nobody knows: %v", err)
	}
}
