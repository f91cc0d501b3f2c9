// Who is let in, and what a dialer makes of an sshd that comes, goes and changes.

package overssh

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

// Who does not get in is told why, and how to mend it.
func TestNotLetIn(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			other := newKey(t, l.path("other"))
			for _, tc := range []struct {
				name    string
				change  func(*Config)
				hostKey error
				text    string
			}{
				{"nothing pinned", func(c *Config) { c.HostKeys = pinned(nil) }, errUnpinned, ""},
				{"another pinned", func(c *Config) { c.HostKeys = pinned(other) }, errOther, ""},
				{"wrong key", func(c *Config) { c.KeyFile = l.path("other") }, nil, "authorized_keys"},
				{"wrong user", func(c *Config) { c.User = "nosuchuser" }, nil, "user nosuchuser"},
			} {
				t.Run(tc.name, func(t *testing.T) {
					cfg := l.config(t)
					tc.change(&cfg.Config)
					d, _ := run(t, cfg)
					_, err := d.dial(within(t), "tcp", "node-1:1")
					if !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), tc.text) || tc.hostKey != nil && !errors.Is(err, tc.hostKey) {
						t.Fatalf("connect: %v", err)
					}
					keys, _ := cfg.HostKeys.(*pins)
					if tc.hostKey == nil {
						return
					}
					// The remedy works, without a restart.
					keys.pin("node-1", l.host)
					comesBack(t, d)
				})
			}
		})
	}
}

// comesBack waits until d has a session.
func comesBack(t *testing.T, d *node) {
	t.Helper()
	until(t, d, func() bool { return d.session != nil })
}

// until waits until ok, which may look at d's state.
func until(t *testing.T, d *node, ok func() bool) {
	t.Helper()
	ctx := within(t)
	for {
		d.mu.Lock()
		done, changed := ok(), d.changed
		d.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("it never comes about")
		}
	}
}

// The sshd dies, with all connections, and comes again.
func TestRestart(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			cfg := l.config(t)
			reg := prometheus.NewRegistry()
			cfg.Metrics = reg
			d, stop := run(t, cfg)
			ln := listen(t)
			reading, _ := pair(t, d, ln)
			writing, _ := pair(t, d, ln)
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := reading.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) || errors.Is(err, io.EOF) {
					t.Errorf("read: %v", err)
				}
			})
			wg.Go(func() {
				if _, err := io.Copy(writing, pattern{}); !errors.Is(err, tunnel.Lost) {
					t.Errorf("write: %v", err)
				}
			})
			d.mu.Lock()
			old := d.session
			d.mu.Unlock()
			l.cancel()
			finishes(t, "streams of a dead session", wg.Wait)
			if _, err := d.dial(within(t), "tcp", ln.Addr().String()); !errors.Is(err, tunnel.NoNode) && !errors.Is(err, tunnel.Lost) {
				t.Errorf("dial without a session: %v", err)
			}
			l.start(t)
			until(t, d, func() bool { return d.session != nil && d.session != old })
			near, far := pair(t, d, ln)
			if _, err := near.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
				t.Error(err)
			}
			stop()
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
				t.Errorf("read after the Dialer's end: %v", err)
			}
			if _, err := d.dial(within(t), "tcp", "node-1:1"); !errors.Is(err, tunnel.ErrSessionClosed) {
				t.Errorf("dial after the Dialer's end: %v", err)
			}
			got := gathered(t, reg)
			if got["ssh_tunnel_open_count"] < 2 || got["ssh_tunnel_open_count"] < got["ssh_tunnel_open_fail_count"]+2 {
				t.Errorf("counted %v", got)
			}
			if got["hawser_ssh_sessions"] != 0 {
				t.Errorf("%v sessions are left", got["hawser_ssh_sessions"])
			}
		})
	}
}

// gathered are the counters and gauges without labels.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return got
}

// A host whose key changes while nobody is connected is not trusted again.
func TestHostKeyChanges(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			d, _ := run(t, l.config(t))
			ln := listen(t)
			near, _ := pair(t, d, ln)
			l.cancel()
			l.host = newKey(t, l.path("host"))
			l.start(t)
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) {
				t.Errorf("read: %v", err)
			}
			until(t, d, func() bool { return errors.Is(d.failed, errOther) })
			if _, err := d.dial(within(t), "tcp", ln.Addr().String()); !errors.Is(err, tunnel.Denied) {
				t.Errorf("connect: %v", err)
			}
		})
	}
}

// A real sshd that cannot resolve a name says so.
func TestUnresolved(t *testing.T) {
	l := openSSH(t)
	d, _ := run(t, l.config(t))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := d.dial(ctx, "tcp", "nosuchhost.invalid:80"); !errors.Is(err, tunnel.Unresolved) {
		t.Errorf("connect: %v", err)
	}
}

// pattern is an endless source.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}
