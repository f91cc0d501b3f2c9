// Tests of fleets: nodes are added, removed, moved and pinned.

package sshnodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh/oversshtest"
)

// start makes a Fleet of cfg and runs it until the test ends, or until stop.
func start(t *testing.T, cfg Config) (f *Fleet, stop func()) {
	t.Helper()
	f, err := New(cfg)
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

// open dials a node that sends hello.
func open(t *testing.T, f *Fleet, node string) net.Conn {
	t.Helper()
	st, err := f.Dial(t.Context(), node, tunnel.Dial{Network: "tcp", Addr: node + ":1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(st, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return st
}

// A node is dialed as soon as, and only if, its key is pinned, without a restart.
func TestFleetPins(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.serve(t, "sshd:22", hello)
		cfg := l.config()
		keys := oversshtest.Pinned(nil)
		cfg.SSH.HostKeys = keys
		attempts := 0 // written by Run, read after its end or before its start
		cfg.SSH.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			attempts++
			return l.net.Dial(ctx, network, addr)
		}
		f, stop := start(t, cfg)
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"}); !errors.Is(err, tunnel.NoNode) || !strings.Contains(err.Error(), "node-1 is not reached by ssh") {
			t.Errorf("a node it knows nothing of: %v", err)
		}
		f.Set("node-1", "sshd:22", "")
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"}); !errors.Is(err, tunnel.Denied) || !errors.Is(err, oversshtest.ErrUnpinned) {
			t.Errorf("no key is pinned: %v", err)
		}
		if attempts > 0 {
			t.Errorf("dialed %d times without a pinned key", attempts)
		}
		keys.Pin("node-1", l.host)
		st := open(t, f, "node-1")
		f.Set("node-1", "sshd:22", "") // no change
		f.Remove("node-1")
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after the node was removed: %v", err)
		}
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"}); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("dial after the node was removed: %v", err)
		}
		stop()
		if attempts != 1 {
			t.Errorf("%d connections, want the one that is kept", attempts)
		}
		f.Set("node-1", "sshd:22", "") // nothing listens there
	})
}

// Strangers do not take the last streams of a node.
func TestFleetKeepsStreams(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.serve(t, "sshd:22", hello)
		cfg := l.config()
		cfg.SSH.MaxStreams = 8
		f, stop := start(t, cfg)
		defer stop()
		f.Set("node-1", "sshd:22", "")
		for range 7 {
			defer open(t, f, "node-1").Close()
		}
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1", Spare: true}); tunnel.CodeOf(err) != tunnel.Busy {
			t.Errorf("of a stranger: %v", err)
		}
		defer open(t, f, "node-1").Close()
	})
}

// The sshd ends, with all connections, and starts again.
func TestFleetComesBack(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		die := l.serve(t, "sshd:22", hello)
		cfg := l.config()
		reg := prometheus.NewRegistry()
		cfg.Metrics = reg
		f, stop := start(t, cfg)
		f.Set("node-1", "sshd:22", "")
		st := open(t, f, "node-1")
		if got := gathered(t, reg); got["hawser_ssh_sessions"] != 1 || got["hawser_ssh_streams"] != 1 {
			t.Errorf("counted %v", got)
		}
		die()
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) {
			t.Errorf("read: %v", err)
		}
		_ = st.Close()
		synctest.Wait()
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"}); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("dial without a session: %v", err)
		}
		l.serve(t, "sshd:22", hello)
		time.Sleep(4 * minBackoff) // two waits, if the first ended before the sshd was back
		st = open(t, f, "node-1")
		stop()
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after the fleet's end: %v", err)
		}
		_ = st.Close()
		got := gathered(t, reg)
		if opens, failed := got["ssh_tunnel_open_count"], got["ssh_tunnel_open_fail_count"]; opens != failed+2 {
			t.Errorf("counted %v", got)
		}
		if got["hawser_ssh_sessions"] != 0 || got["hawser_ssh_streams"] != 0 {
			t.Errorf("left: %v", got)
		}
	})
}

// While there is no sshd, attempts are random and bounded, and dials fail at once between
// them.
func TestFleetAttempts(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		cfg := l.config()
		attempts := 0
		cfg.SSH.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			attempts++
			return l.net.Dial(ctx, network, addr)
		}
		f, stop := start(t, cfg)
		f.Set("node-1", "sshd:22", "")
		time.Sleep(time.Hour)
		synctest.Wait()
		began := time.Now()
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"}); !errors.Is(err, tunnel.NoNode) || time.Since(began) != 0 {
			t.Errorf("connect: %v after %v", err, time.Since(began))
		}
		stop()
		// 240 if each wait is the mean of up to 30 s.
		if attempts < 150 || attempts > 400 {
			t.Errorf("%d attempts in an hour", attempts)
		}
	})
}

// An sshd that lets in and ends the connection soon is dialed again within seconds, and not all the
// time.
func TestFleetEndsSoon(t *testing.T) {
	l := newLab(t)
	for _, tc := range []struct {
		lasts       time.Duration
		least, most int // connections in an hour
	}{
		{10 * time.Second, 320, 360},   // 10 s, and a wait of up to 1 s
		{time.Millisecond, 1200, 1800}, // a wait of up to 5 s
	} {
		t.Run(tc.lasts.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l.serve(t, "sshd:22", hello)
				cfg := l.config()
				var dials atomic.Int64
				dial := cfg.SSH.Dial
				cfg.SSH.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					dials.Add(1)
					c, err := dial(ctx, network, addr)
					if err == nil {
						time.AfterFunc(tc.lasts, func() { _ = c.Close() })
					}
					return c, err
				}
				f, stop := start(t, cfg)
				f.Set("node-1", "sshd:22", "")
				time.Sleep(time.Hour) // the bubble's clock
				stop()
				if n := int(dials.Load()); n < tc.least || n > tc.most {
					t.Errorf("%d connections in an hour, want %d to %d", n, tc.least, tc.most)
				}
			})
		})
	}
}

// A node with another host key than before is refused, until that key is pinned: the next dial
// does not wait for the back-off.
func TestFleetHostKeyChanges(t *testing.T) {
	l, other := newLab(t), newLab(t)
	synctest.Test(t, func(t *testing.T) {
		cfg, keys := l.config(), oversshtest.Pinned(l.host)
		cfg.SSH.HostKeys = keys
		var attempts atomic.Int64
		cfg.SSH.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			attempts.Add(1)
			return l.net.Dial(ctx, network, addr)
		}
		die := l.serve(t, "sshd:22", hello)
		f, _ := start(t, cfg)
		f.Set("node-1", "sshd:22", "")
		_ = open(t, f, "node-1").Close()
		die()
		l.signer = other.signer
		l.serve(t, "sshd:22", hello)
		time.Sleep(10 * time.Minute) // the bubble's clock
		synctest.Wait()
		before := attempts.Load()
		for range 100 {
			f.Look()
			_, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"})
			if !errors.Is(err, tunnel.Denied) || !errors.Is(err, oversshtest.ErrOther) {
				t.Errorf("dial: %v", err)
			}
			synctest.Wait()
		}
		if n := attempts.Load() - before; n != 0 {
			t.Errorf("dials of a node with a wrong key are %d attempts to connect", n)
		}
		keys.Pin("node-1", other.host)
		began := time.Now()
		_ = open(t, f, "node-1").Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("a dial takes %v after the key was pinned", took)
		}
	})
}

// A node that moves is dialed at its new address.
func TestFleetMoves(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		leave := l.serve(t, "here:22", hello)
		l.serve(t, "there:22", hello)
		f, _ := start(t, l.config())
		f.Set("node-1", "here:22", "")
		st := open(t, f, "node-1")
		f.Set("node-1", "there:22", "")
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("stream to where the node was: %v", err)
		}
		leave()
		_ = open(t, f, "node-1").Close()
	})
}

// A key that is pinned without a dial is found, and a node that cannot be dialed is logged
// once for each reason.
func TestFleetChecks(t *testing.T) {
	l := newLab(t)
	refuse := make(chan bool, 1)
	refuse <- false
	synctest.Test(t, func(t *testing.T) {
		l.serve(t, "sshd:22", func(nc ssh.NewChannel) {
			no := <-refuse
			refuse <- no
			if no {
				_ = nc.Reject(ssh.ConnectionFailed, "Connection refused")
				return
			}
			hello(nc)
		})
		cfg := l.config()
		keys := oversshtest.Pinned(nil)
		cfg.SSH.HostKeys = keys
		reg := prometheus.NewRegistry()
		cfg.Metrics = reg
		var said lines
		cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
		f, _ := start(t, cfg)
		f.Set("node-1", "sshd:22", "node-1:10250")
		time.Sleep(time.Minute)
		if n := said.count(oversshtest.ErrUnpinned.Error()); n != 1 {
			t.Errorf("said %d times that nothing is pinned:\n%s", n, said.text())
		}
		keys.Pin("node-1", l.host)
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

// Many nodes at a time, and the end of the fleet meanwhile.
func TestFleetEnds(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.serve(t, "sshd:22", hello)
		cfg, keys := l.config(), oversshtest.Pinned(nil)
		cfg.SSH.HostKeys = keys
		f, stop := start(t, cfg)
		const n = 50
		var wg sync.WaitGroup
		for i := range n {
			node := fmt.Sprintf("node-%d", i)
			keys.Pin(node, l.host)
			f.Set(node, "sshd:22", node+":10250")
			wg.Go(func() {
				st, err := f.Dial(t.Context(), node, tunnel.Dial{Network: "tcp", Addr: node + ":1"})
				if err != nil {
					t.Errorf("%s: %v", node, err)
					return
				}
				_ = st.Close()
			})
		}
		wg.Wait()
		f.Set("unpinned", "sshd:22", "")
		stop()
		if _, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"}); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("dial after the end: %v", err)
		}
		keys.Pin("unpinned", l.host)
		if _, err := f.Dial(t.Context(), "unpinned", tunnel.Dial{Network: "tcp", Addr: "unpinned:1"}); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("dial of a pinned node after the end: %v", err)
		}
	})
}

// A node that is not admitted any more loses its connection with all streams, at once after
// Look and else within seconds. It is not dialed before it is admitted again. Other nodes are
// not affected.
func TestFleetAdmits(t *testing.T) {
	l := newLab(t)
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l.serve(t, "sshd:22", hello)
			cfg := l.config()
			keys := oversshtest.Pinned(l.host)
			keys.Pin("node-2", l.host)
			cfg.SSH.HostKeys = keys
			var said lines
			cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
			var dials, revoked atomic.Int64
			dial := cfg.SSH.Dial
			cfg.SSH.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return dial(ctx, network, addr)
			}
			cfg.Admit = func(node string) error {
				if node == "node-1" && revoked.Load() > 0 {
					return fmt.Errorf("%w: it was stolen", tunnel.Revoked)
				}
				return nil
			}
			f, _ := start(t, cfg)
			f.Set("node-1", "sshd:22", "node-1:10250")
			f.Set("node-2", "sshd:22", "node-2:10250")
			one, two := open(t, f, "node-1"), open(t, f, "node-2")
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
			f.Set("node-1", "sshd:23", "node-1:10250") // it has moved
			_, err := f.Dial(t.Context(), "node-1", tunnel.Dial{Network: "tcp", Addr: "node-1:1"})
			if !errors.Is(err, tunnel.Revoked) || !strings.Contains(err.Error(), "stolen") {
				t.Errorf("dial of a node that is not admitted: %v", err)
			}
			time.Sleep(time.Hour)
			// A check of the node may have been under way: it says so on a line of its own.
			if dials.Load() != n || said.count("no ssh connection") != 1 {
				t.Errorf("its sshd was dialed %d times:\n%s", dials.Load()-n, said.text())
			}
			if err := two.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Error(err)
			}
			if _, err := two.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("another node's stream: %v", err)
			}
			revoked.Store(0)
			f.Set("node-1", "sshd:22", "node-1:10250")
			_, _ = open(t, f, "node-1").Close(), two.Close()
		})
	}
}

func TestNewChecks(t *testing.T) {
	cfg := newLab(t).config()
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
	cfg.SSH.User = ""
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "User") {
		t.Errorf("without a user: %v", err)
	}
}

// lines are the log lines.
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
