package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

func TestDialWaitsForParkedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		b.mustConnect(one("n"))
		b.last().park()
		if s, _ := b.hub.Session("n"); time.Since(s.Parked) != 0 || s.Parked.IsZero() {
			t.Errorf("session: %+v", s)
		}
		start := time.Now()
		time.AfterFunc(2*time.Second, b.last().resume)
		if got, err := b.ask("n:1"); err != nil || got != "n:1" || time.Since(start) != 2*time.Second {
			t.Errorf("%q, %v after %v", got, err, time.Since(start))
		}
		if p, r := b.metric("link_parks_total"), b.metric("link_resumes_total"); p != 1 || r != 1 {
			t.Errorf("%v parks, %v resumes", p, r)
		}
	})
}

// The error for a node that does not come back says so, however the wait ended, within the
// caller's deadline.
func TestDialIntoParkedNode(t *testing.T) {
	for name, tt := range map[string]struct {
		patience time.Duration
		timeout  time.Duration // of the caller; 0: none; negative: canceled after that time
		want     tunnel.Code
		after    time.Duration
	}{
		"by default":             {0, 0, tunnel.Parked, defaultParkedPatience},
		"more patience":          {20 * time.Second, 0, tunnel.Parked, 20 * time.Second},
		"none":                   {-1, 0, tunnel.Parked, 0},
		"the caller has less":    {0, time.Second, tunnel.Parked, time.Second},
		"the caller gives up":    {0, -time.Second, tunnel.Canceled, time.Second},
		"the caller has no more": {time.Hour, 0, tunnel.Parked, tunnel.DefaultDialTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestHub(t, Config{ParkedPatience: tt.patience})
				b.mustConnect(one("n"))
				time.Sleep(time.Minute) // the bubble's clock
				b.last().park()
				time.Sleep(12 * time.Second) // the bubble's clock
				for early, dial := range map[bool]func(context.Context, string, string) (net.Conn, error){false: b.hub.DialContext, true: b.hub.DialEarly} {
					ctx, cancel := context.WithCancel(t.Context())
					if tt.timeout > 0 {
						ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					} else if tt.timeout < 0 {
						time.AfterFunc(-tt.timeout, cancel)
					}
					start := time.Now()
					_, err := dial(ctx, "tcp", "10.0.0.1%n:80")
					cancel()
					var de *tunnel.DialError
					if !errors.As(err, &de) || de.Code != tt.want || de.Addr != "10.0.0.1%n:80" || time.Since(start) != tt.after {
						t.Errorf("early %v: %v after %v", early, err, time.Since(start))
					}
					if tt.want == tunnel.Parked && !strings.Contains(err.Error(), "node n has been reconnecting for ") {
						t.Errorf("early %v: %v", early, err)
					}
				}
				b.last().resume()
			})
		})
	}
}

// If the loss of the link delays the answer of a dial, the error does not blame the target.
func TestParkedUnderDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		if _, err := b.connect(one("n"), func(ctx context.Context, _ *tunnel.Request) { <-ctx.Done() }); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, b.last().park)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		early, err := b.hub.DialEarly(ctx, "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		defer early.Close()
		if _, err := b.hub.DialContext(ctx, "tcp", "n:1"); !errors.Is(err, tunnel.Parked) || !strings.Contains(err.Error(), "for 3s") {
			t.Errorf("%v", err)
		}
		if _, err := early.Read(make([]byte, 1)); !errors.Is(err, tunnel.Parked) || !strings.Contains(err.Error(), "dial n:1: node n has been reconnecting for ") {
			t.Errorf("early: %v", err)
		}
		b.last().resume()
	})
}

func TestDialEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		_, err := b.connect(one("n"), func(ctx context.Context, r *tunnel.Request) {
			time.Sleep(time.Second) // the bubble's clock: the way to the target and back
			if r.Addr == "n:2" {
				_ = r.Reject(tunnel.Refused, "connect: connection refused")
				return
			}
			echo(ctx, r)
		})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		c, err := b.hub.DialEarly(t.Context(), "tcp", "n:1")
		if err != nil || time.Since(start) != 0 {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		if _, err := io.WriteString(c, "early"); err != nil {
			t.Error(err)
		}
		if err := tunnel.CloseWrite(c); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(c); string(got) != "n:1\nearly" || err != nil || time.Since(start) != time.Second {
			t.Errorf("%q, %v after %v", got, err, time.Since(start))
		}
		_ = c.Close()

		if c, err = b.hub.DialEarly(t.Context(), "tcp", "10.1.1.1%n:2"); err == nil {
			_, err = c.Read(make([]byte, 1))
			_ = c.Close()
		}
		if err != nil {
			t.Errorf("an address of the node's: %v", err)
		}
		if c, err = b.hub.DialEarly(t.Context(), "tcp", "n:2"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) || err.Error() != "dial n:2: connect: connection refused" {
			t.Errorf("refused: %v", err)
		}
		_ = c.Close()
		for addr, code := range map[string]tunnel.Code{"nowhere:1": tunnel.NoNode, "nonsense": tunnel.Invalid} {
			if _, err := b.hub.DialEarly(t.Context(), "tcp", addr); tunnel.CodeOf(err) != code {
				t.Errorf("%s: %v", addr, err)
			}
		}
		synctest.Wait()
		if d, ok := b.metric("dials_total"), b.metric("dial_duration_seconds"); d != 5 || ok != 2 {
			t.Errorf("%v dials counted, %v of them timed", d, ok)
		}
		if n := b.metric("streams"); n != 0 {
			t.Errorf("%v streams are open", n)
		}
	})
}
