package balance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// TestSetAside: a target that refuses and one that does not answer delay one connection
// each, and not those that follow.
func TestSetAside(t *testing.T) {
	for name, sticky := range map[string]bool{"any": false, "sticky": true} {
		t.Run(name, func(t *testing.T) {
			r, at := newRig(t, Config{DialTimeout: 30 * time.Millisecond}), tunneltest.FreeAddr(t)
			r.down = map[string]bool{"refuses": true}
			plain := r.cfg.Dial
			r.cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr != "silent" {
					return plain(ctx, network, addr)
				}
				r.mu.Lock()
				r.dials = append(r.dials, addr)
				r.mu.Unlock()
				<-ctx.Done()
				return nil, ctx.Err()
			}
			r.set("ns/web", Front{Addr: at, Sticky: sticky, Targets: to("refuses", "silent", "well")})
			began := time.Now()
			for range 50 {
				c, target, err := r.open(at)
				if err != nil || target != "well" {
					t.Fatalf("%q, %v", target, err)
				}
				_ = c.Close()
			}
			most := 1 + int(time.Since(began)/asideFor)
			for _, bad := range []string{"refuses", "silent"} {
				n := 0
				for _, d := range r.dialed() {
					if d == bad {
						n++
					}
				}
				if n > most {
					t.Errorf("%s was dialed %d times by 50 connections", bad, n)
				}
			}
		})
	}
}

// TestAllSetAside: if all targets are set aside they are tried nevertheless, and a recovered
// one is found at once.
func TestAllSetAside(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	r.down = map[string]bool{"a": true, "b": true}
	r.set("ns/web", Front{Addr: at, Targets: to("a", "b")})
	if _, _, err := r.open(at); err == nil {
		t.Error("nothing answers, and the client hears an orderly end")
	} // the dial failed after both had been set aside
	if n := testutil.ToFloat64(r.metrics.aside); n != 2 {
		t.Errorf("%v are set aside", n)
	}
	r.mu.Lock()
	r.down = nil
	r.mu.Unlock()
	if _, target, err := r.open(at); err != nil {
		t.Errorf("%q, %v", target, err)
	}
}

func TestAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a aside
		want := func(when, want string) {
			t.Helper()
			if got := strings.Join(slices.Collect(a.order(slices.Values([]string{"a", "b", "c"}))), " "); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		want("all are well", "a b c")
		if !a.failed("a") || a.failed("a") {
			t.Error("it is told apart wrongly whether it was set aside")
		}
		want("a has failed", "b c a")
		<-time.After(asideFor)
		want("its time is over", "a b c")
		want("somebody finds out", "b c a")
		<-time.After(asideFor)
		if first := firstOf(a.order(slices.Values([]string{"b", "a"}))); first != "b" {
			t.Errorf("first %s", first)
		}
		want("nobody has dialed it", "a b c") // and so it has not had its turn
		a.worked("a")
		want("it is well", "a b c")
	})
}

func firstOf(s func(func(string) bool)) (first string) {
	for first = range s {
		break
	}
	return first
}

// TestAsideIsBounded: above the bound, unreachable targets are not set aside.
func TestAsideIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a aside
		all := make([]string, 2*maxAside)
		for i := range all {
			all[i] = fmt.Sprint(i)
			a.failed(all[i])
		}
		if n := len(a.until); n != maxAside {
			t.Errorf("%d are set aside", n)
		}
		if n := len(slices.Collect(a.order(slices.Values(all)))); n != maxAside+maxTries {
			t.Errorf("%d are tried", n)
		}
		<-time.After(asideFor + time.Nanosecond)
		if !a.failed("new") {
			t.Error("those whose time is over keep a new one out")
		}
	})
}

// TestTargetThatTakesNothing: a connection whose target does not read is replaced as any
// other, and ends completely.
func TestTargetThatTakesNothing(t *testing.T) {
	r, at := newRig(t, Config{Limit: 1}), tunneltest.FreeAddr(t)
	stuck := make(chan struct{})
	r.cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		go func() {
			_, _ = io.ReadFull(far, make([]byte, 1)) // and the rest waits
			stuck <- struct{}{}
		}()
		return near, nil
	}
	r.set("ns/web", Front{Addr: at, Targets: to("a")})
	for range 10 {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "more than one byte"); err != nil {
			t.Fatal(err)
		}
		<-stuck
		for r.serving.Load() > 1 { // until the one before has gone; go test ends what hangs
			runtime.Gosched()
		}
	}
	if n := testutil.ToFloat64(r.metrics.refused); n != 0 {
		t.Errorf("%v were refused", n)
	}
}

// TestTargetThatIsToldNothing: a target that does not read the PROXY header is given up.
func TestTargetThatIsToldNothing(t *testing.T) {
	r, at := newRig(t, Config{DialTimeout: 3 * time.Millisecond}), tunneltest.FreeAddr(t)
	r.cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		return near, nil
	}
	r.set("ns/web", Front{Addr: at, ProxyProtocol: true, Targets: to("a")})
	if _, _, err := r.open(at); err == nil {
		t.Error("the client hears an orderly end")
	}
	r.stop()
	if n := testutil.ToFloat64(r.metrics.failed); n != 1 {
		t.Errorf("%v have failed", n)
	}
}

// TestLastTargetHasTheRest: a target whose agent restarts is waited for if there is no other.
func TestLastTargetHasTheRest(t *testing.T) {
	for targets, want := range map[int]time.Duration{1: 9 * time.Second, 2: 9 * time.Second, 4: 9 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			began, dials := time.Now(), 0
			b, err := New(Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials++
				t := time.NewTimer(time.Until(began.Add(want)))
				defer t.Stop()
				select {
				case <-t.C:
					c, other := net.Pipe()
					_ = other.Close()
					return c, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			all := make([]string, targets)
			for i := range all {
				all[i] = fmt.Sprint("10.0.0.", i, ":80")
			}
			l := &listening{}
			c, err := b.reach(t.Context(), l, &Front{Targets: func() []string { return all }}, netip.Addr{})
			if err != nil {
				t.Fatalf("of %d targets the last answered after %v: %v", targets, want, err)
			}
			_ = c.Close()
			if n := min(targets, maxTries); dials != n {
				t.Errorf("%d dials to %d targets, want %d", dials, targets, n)
			}
		})
	}
}
