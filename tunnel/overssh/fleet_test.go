// Fleets: nodes come, go, move and have their keys pinned.

package overssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// sail makes a Fleet of cfg and runs it until the test ends, or until stop.
func sail(t *testing.T, cfg config) (f *Fleet, stop func()) {
	t.Helper()
	f, err := New(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(stop)
	return f, stop
}

// A node is dialed as soon as, and only if, its key is pinned, without a restart.
func TestFleetPins(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			cfg := l.config(t)
			keys := pinned(nil)
			cfg.HostKeys = keys
			attempts := 0 // written by Run, read when it has ended or before it may begin
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				attempts++
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			f, stop := sail(t, cfg)
			ln := listen(t)
			target := ln.Addr().String()
			if _, err := f.DialContext(within(t), "node-1", "tcp", target); !errors.Is(err, tunnel.NoNode) || !strings.Contains(err.Error(), "node-1 is not reached by ssh") {
				t.Errorf("a node it knows nothing of: %v", err)
			}
			f.Set("node-1", l.addr, "")
			if _, err := f.DialContext(within(t), "node-1", "tcp", target); !errors.Is(err, tunnel.Denied) || !errors.Is(err, errUnpinned) {
				t.Errorf("no key is pinned: %v", err)
			}
			if attempts > 0 {
				t.Errorf("dialed %d times without a pinned key", attempts)
			}
			keys.pin("node-1", l.host)
			st, err := f.DialContext(within(t), "node-1", "tcp", target)
			if err != nil {
				t.Fatal(err)
			}
			f.Set("node-1", l.addr, "") // nothing new
			far, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			if _, err := far.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
				t.Error(err)
			}
			f.Remove("node-1")
			if _, err := st.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read after the node was removed: %v", err)
			}
			if _, err := f.DialContext(within(t), "node-1", "tcp", target); !errors.Is(err, tunnel.NoNode) {
				t.Errorf("dial after the node was removed: %v", err)
			}
			stop()
			if attempts != 1 {
				t.Errorf("%d connections, want the one that is kept", attempts)
			}
			f.Set("node-1", l.addr, "") // to nobody
		})
	}
}

// A node that moves is reached where it is now.
func TestFleetMoves(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.net = new(memnet.Network)
		var here, there *lab
		for _, at := range []struct {
			l    **lab
			addr string
		}{{&here, "here:22"}, {&there, "there:22"}} {
			c := *l
			c.addr = at.addr
			*at.l = &c
			startOwn(t, &c, accept)
		}
		f, _ := sail(t, here.config(t))
		f.Set("node-1", "here:22", "")
		dial := func() net.Conn {
			t.Helper()
			st, err := f.DialContext(t.Context(), "node-1", "tcp", "node-1:1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(st, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			return st
		}
		st := dial()
		f.Set("node-1", "there:22", "")
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("stream to where the node was: %v", err)
		}
		here.cancel()
		_ = dial().Close()
	})
}

// A key that is pinned while nobody dials is found, and a node that cannot be
// dialed is told of once for each reason.
func TestFleetChecks(t *testing.T) {
	l := newLab(t)
	refuse := make(chan bool, 1)
	refuse <- false
	synctest.Test(t, func(t *testing.T) {
		l.net, l.addr = new(memnet.Network), "sshd:22"
		startOwn(t, l, func(ctx context.Context, nc ssh.NewChannel) {
			no := <-refuse
			refuse <- no
			if no {
				_ = nc.Reject(ssh.ConnectionFailed, "Connection refused")
				return
			}
			accept(ctx, nc)
		})
		cfg := l.config(t)
		keys := pinned(nil)
		cfg.HostKeys = keys
		reg := prometheus.NewRegistry()
		cfg.Metrics = reg
		var said lines
		cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
		f, _ := sail(t, cfg)
		f.Set("node-1", l.addr, "node-1:10250")
		time.Sleep(time.Minute)
		if n := said.count(errUnpinned.Error()); n != 1 {
			t.Errorf("said %d times that nothing is pinned:\n%s", n, said.text())
		}
		keys.pin("node-1", l.host)
		time.Sleep(lookInterval + minBackoff)
		if n := said.count("ssh connection made"); n != 1 {
			t.Errorf("connected %d times:\n%s", n, said.text())
		}
		<-refuse
		refuse <- true
		time.Sleep(10 * checkInterval)
		<-refuse
		refuse <- false
		time.Sleep(10 * checkInterval)
		if bad, good := said.count("cannot be dialed"), said.count("dialed through ssh again"); bad != 1 || good != 1 {
			t.Errorf("said %d and %d times how a check came out:\n%s", bad, good, said.text())
		}
		got := gathered(t, reg)
		if n := got["hawser_ssh_checks_total"]; n < 10 || n > 45 {
			t.Errorf("%v checks in 21 minutes", n)
		}
		if n := got["hawser_ssh_dials_total"]; n != 0 {
			t.Errorf("%v checks are counted as dials", n)
		}
	})
}

// Many nodes at a time, with the end of all in between.
func TestFleetEnds(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.net, l.addr = new(memnet.Network), "sshd:22"
		startOwn(t, l, accept)
		cfg, keys := l.config(t), pinned(nil)
		cfg.HostKeys = keys
		f, stop := sail(t, cfg)
		const n = 50
		var wg sync.WaitGroup
		for i := range n {
			node := fmt.Sprintf("node-%d", i)
			keys.pin(node, l.host)
			f.Set(node, l.addr, node+":10250")
			wg.Go(func() {
				st, err := f.DialContext(t.Context(), node, "tcp", node+":1")
				if err != nil {
					t.Errorf("%s: %v", node, err)
					return
				}
				_ = st.Close()
			})
		}
		wg.Wait()
		f.Set("unpinned", l.addr, "")
		stop()
		if _, err := f.DialContext(t.Context(), "node-1", "tcp", "node-1:1"); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("dial after the end: %v", err)
		}
		keys.pin("unpinned", l.host)
		if _, err := f.DialContext(t.Context(), "unpinned", "tcp", "unpinned:1"); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("dial of a pinned node after the end: %v", err)
		}
	})
}

// A node that is not admitted any more loses its connection, with all streams, at once
// if the fleet is told to look and within seconds if not; it is not dialed before it is
// admitted again. Other nodes have nothing to do with that.
func TestFleetAdmits(t *testing.T) {
	l := newLab(t)
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l.net, l.addr = new(memnet.Network), "sshd:22"
			startOwn(t, l, accept)
			cfg := l.config(t)
			keys := pinned(l.host)
			keys.pin("node-2", l.host)
			cfg.HostKeys = keys
			var said lines
			cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
			var dials, revoked atomic.Int64
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return dial(ctx, network, addr)
			}
			cfg.Admit = func(node string) error {
				if node == "node-1" && revoked.Load() > 0 {
					return fmt.Errorf("%w: it was stolen", tunnel.Revoked)
				}
				return nil
			}
			f, _ := sail(t, cfg)
			open := func(node string) net.Conn {
				t.Helper()
				f.Set(node, l.addr, node+":10250")
				st, err := f.DialContext(t.Context(), node, "tcp", node+":1")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(st, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				return st
			}
			one, two := open("node-1"), open("node-2")
			began := time.Now()
			revoked.Store(1)
			if told {
				f.Look()
			}
			if _, err := one.Read(make([]byte, 1)); !errors.Is(err, tunnel.Revoked) {
				t.Errorf("read of a node that is not admitted: %v", err)
			}
			if took := time.Since(began); took > lookInterval || told && took > 0 {
				t.Errorf("its streams ended after %v", took)
			}
			n := dials.Load()
			f.Set("node-1", "sshd:23", "node-1:10250") // it says that it has moved
			_, err := f.DialContext(t.Context(), "node-1", "tcp", "node-1:1")
			if !errors.Is(err, tunnel.Revoked) || !strings.Contains(err.Error(), "stolen") {
				t.Errorf("dial of a node that is not admitted: %v", err)
			}
			time.Sleep(time.Hour)
			if dials.Load() != n || said.count("it was stolen") != 1 {
				t.Errorf("its sshd was dialed %d times:\n%s", dials.Load()-n, said.text())
			}
			if err := two.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Error(err)
			}
			if _, err := two.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("another node's stream: %v", err)
			}
			revoked.Store(0)
			_, _ = open("node-1").Close(), two.Close()
		})
	}
}

func TestNewChecks(t *testing.T) {
	l := newLab(t)
	for _, tc := range []struct {
		change func(*Config)
		text   string
	}{
		{func(c *Config) { c.KeyFile = l.path("id.pub") }, "id.pub"},
		{func(c *Config) { c.User = "" }, "User"},
		{func(c *Config) { c.KeyFile = filepath.Join(l.dir, "none") }, "no such file"},
		{func(c *Config) { c.HostKeys = nil }, "HostKeys"},
	} {
		cfg := Config{User: "u", KeyFile: l.path("id"), HostKeys: pinned(nil)}
		tc.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v, want an error about %s", err, tc.text)
		}
	}
}

// lines are what was logged.
type lines struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) count(text string) int { return strings.Count(l.text(), text) }
