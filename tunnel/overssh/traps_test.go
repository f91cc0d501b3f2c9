// The traps of the library, and time: each test names what must not happen.

package overssh

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// inBubble runs f with a server in memory that answers channels with serve.
func inBubble(t *testing.T, serve func(context.Context, ssh.NewChannel), f func(t *testing.T, cfg config)) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.net, l.addr = new(tunneltest.Network), "sshd:22"
		startOwn(t, l, serve)
		cfg := l.config(t)
		f(t, cfg)
	})
}

// accept takes a channel, says hello, and does nothing more until the channel is
// closed.
func accept(_ context.Context, nc ssh.NewChannel) {
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	_, _ = ch.Write([]byte("hello"))
	ssh.DiscardRequests(requests)
	_ = ch.Close()
}

func connect(t *testing.T, d *Session) tunnel.Stream {
	t.Helper()
	st, err := d.Dial(t.Context(), "tcp", "node-1:10250")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(st, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return st
}

// A link remembers the connections that are made.
type link struct {
	dial  func(context.Context, string, string) (net.Conn, error)
	conns []net.Conn // written by Dial, read when all is quiet
	spoil atomic.Bool
	cut   atomic.Bool  // writes fail, and reads do not know it yet
	moved atomic.Int64 // bytes, both ways
}

func (l *link) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := l.dial(ctx, network, addr)
	if err == nil {
		l.conns = append(l.conns, c)
		c = &spoiled{c, l}
	}
	return c, err
}

// A spoiled connection has a bit wrong in the first byte of each read once its link
// says so.
type spoiled struct {
	net.Conn
	link *link
}

func (c *spoiled) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.link.spoil.Load() {
		p[0] ^= 1
	}
	c.link.moved.Add(int64(n))
	return n, err
}

func (c *spoiled) Write(p []byte) (int, error) {
	if c.link.cut.Load() {
		return 0, syscall.EPIPE
	}
	n, err := c.Conn.Write(p)
	c.link.moved.Add(int64(n))
	return n, err
}

// A connection that takes bytes and brings nothing is given up in time.
func TestSilentPeer(t *testing.T) {
	inBubble(t, accept, func(t *testing.T, cfg config) {
		l := &link{dial: cfg.Dial}
		cfg.Dial = l.Dial
		d, _ := run(t, cfg)
		st := connect(t, d)
		synctest.Wait()
		before := l.moved.Load()
		time.Sleep(time.Hour) // it is answered, and lives
		if len(l.conns) != 1 {
			t.Fatalf("%d connections in an idle hour", len(l.conns))
		}
		// Beside them TCP and IP have 52 bytes in each of three packets.
		const exchanges = int64(time.Hour / keepAlive)
		if cost := l.moved.Load() - before + exchanges*3*52; cost > 60<<10 {
			t.Errorf("an idle hour costs %d bytes", cost)
		}
		l.conns[0].(*memnet.Conn).Stall(true)
		began := time.Now()
		_, err := st.Read(make([]byte, 1))
		if !errors.Is(err, tunnel.Dead) || errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
		if took := time.Since(began); took > keepAlive+keepAliveTimeout {
			t.Errorf("noticed after %v", took)
		}
		<-d.Context().Done()
		if err := context.Cause(d.Context()); !errors.Is(err, tunnel.Dead) {
			t.Errorf("the session: %v", err)
		}
	})
}

// TestVigil: a peer is asked before it is taken for dead, also if this process was stopped meanwhile.
func TestVigil(t *testing.T) {
	const ask, listen = true, false
	for name, looks := range map[string][]struct {
		now, lastRead, wait time.Duration
		ask                 bool
	}{
		"answers": {
			{0, 0, keepAlive, listen},
			{keepAlive, 0, keepAliveTimeout, ask},
			{keepAlive + keepAliveTimeout, keepAlive, keepAlive - keepAliveTimeout, listen},
		},
		"silent": {
			{keepAlive, 0, keepAliveTimeout, ask}, {keepAlive + keepAliveTimeout - 1, 0, 1, listen}, {keepAlive + keepAliveTimeout, 0, 0, listen},
		},
		"stopped after an answer": {
			{keepAlive, 0, keepAliveTimeout, ask}, {time.Hour, keepAlive + 1, keepAliveTimeout, ask}, {time.Hour + keepAliveTimeout, keepAlive + 1, 0, listen},
		},
		"stopped after a question": {
			{keepAlive, 0, keepAliveTimeout, ask},
			{time.Hour, 0, keepAliveTimeout, ask}, // the answer may not have been read
			{time.Hour + keepAliveTimeout, 0, 0, listen},
		},
		"stopped while nothing was asked": {
			{0, 0, keepAlive, listen}, {time.Hour, 0, keepAliveTimeout, ask}, {time.Hour + 1, time.Hour, keepAlive - 1, listen},
		},
	} {
		var v vigil
		for i, l := range looks {
			if wait, asks := v.next(l.now, l.lastRead); wait != l.wait || asks != l.ask {
				t.Errorf("%s, look %d: waits for %v, asks: %t; want %v, %t", name, i, wait, asks, l.wait, l.ask)
			}
		}
	}
}

// Bytes that make no sense end the connection, and do not look like the end of a
// stream.
func TestSpoiledBytes(t *testing.T) {
	inBubble(t, func(_ context.Context, nc ssh.NewChannel) {
		ch, requests, err := nc.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests) // joined by the bubble
		_, _ = ch.Write([]byte("hello"))
		_, _ = io.ReadFull(ch, make([]byte, 1))
		_, _ = ch.Write([]byte("good bye"))
		_ = ch.Close()
	}, func(t *testing.T, cfg config) {
		l := &link{dial: cfg.Dial}
		cfg.Dial = l.Dial
		d, _ := run(t, cfg)
		st := connect(t, d)
		synctest.Wait()
		l.spoil.Store(true)
		if _, err := st.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(st); !errors.Is(err, tunnel.Lost) || len(got) > 0 {
			t.Errorf("read %q and %v", got, err)
		}
	})
}

// A connection whose writes fail is lost, although a Read still waits: its own EPIPE
// is not a peer that has closed the stream.
func TestWriteBeforeLoss(t *testing.T) {
	inBubble(t, accept, func(t *testing.T, cfg config) {
		l := &link{dial: cfg.Dial}
		cfg.Dial = l.Dial
		d, _ := run(t, cfg)
		st := connect(t, d)
		synctest.Wait()
		l.cut.Store(true)
		if _, err := io.Copy(st, pattern{}); !errors.Is(err, tunnel.Lost) {
			t.Errorf("write: %v", err)
		}
	})
}

// What a peer said and ended before the connection was lost has its end.
func TestEndBeforeLoss(t *testing.T) {
	inBubble(t, func(_ context.Context, nc ssh.NewChannel) {
		ch, requests, err := nc.Accept()
		if err != nil {
			return
		}
		_, _ = ch.Write([]byte("said"))
		_ = ch.CloseWrite()
		ssh.DiscardRequests(requests)
	}, func(t *testing.T, cfg config) {
		l := &link{dial: cfg.Dial}
		cfg.Dial = l.Dial
		d, _ := run(t, cfg)
		st, err := d.Dial(t.Context(), "tcp", "node-1:10250")
		if err != nil {
			t.Fatal(err)
		}
		var got [4]byte
		if _, err := io.ReadFull(st, got[:]); err != nil || string(got[:]) != "said" {
			t.Fatalf("read %q, %v", got, err)
		}
		synctest.Wait() // the end has been fetched
		_ = l.conns[0].Close()
		synctest.Wait()
		if _, err := st.Read(got[:]); err != io.EOF { //nolint:errorlint // exactly that
			t.Errorf("read: %v", err)
		}
		if _, err := st.Write(got[:]); !errors.Is(err, tunnel.Lost) {
			t.Errorf("write: %v", err)
		}
	})
}

// An open that nobody answers ends with its ctx, keeps its token until it is
// answered, and leaves nothing behind.
func TestUnansweredOpen(t *testing.T) {
	asked := make(chan ssh.NewChannel, 4)
	serve := func(_ context.Context, nc ssh.NewChannel) { asked <- nc }
	inBubble(t, serve, func(t *testing.T, cfg config) {
		cfg.MaxStreams = 1
		d, stop := run(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 2 { // the second does not even get its token
			if _, err := d.Dial(ctx, "tcp", "node-1:1"); !errors.Is(err, tunnel.Timeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("connect: %v", err)
			}
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Dial(canceled, "tcp", "node-1:1"); !errors.Is(err, tunnel.Canceled) {
			t.Errorf("connect: %v", err)
		}
		ch, requests, err := (<-asked).Accept()
		if err != nil {
			t.Fatal(err)
		}
		ssh.DiscardRequests(requests) // until the stream that nobody wants is closed
		_ = ch.Close()
		synctest.Wait()
		if n := len(d.Opened); n != 0 {
			t.Errorf("%d places are taken", n)
		}
		began := time.Now()
		if _, err := d.Dial(context.WithoutCancel(t.Context()), "tcp", "node-1:1"); !errors.Is(err, tunnel.Timeout) {
			t.Errorf("without a deadline: %v", err)
		}
		if took := time.Since(began); took != tunnel.DefaultDialTimeout {
			t.Errorf("took %v", took)
		}
		stop() // with an open under way
	})
}

func TestMaxStreams(t *testing.T) {
	inBubble(t, accept, func(t *testing.T, cfg config) {
		cfg.MaxStreams = 2
		d, _ := run(t, cfg)
		first := connect(t, d)
		connect(t, d)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := d.Dial(ctx, "tcp", "node-1:1"); !errors.Is(err, tunnel.Timeout) {
			t.Errorf("third stream of two: %v", err)
		}
		_ = first.Close()
		_ = first.Close() // twice is no more than once
		connect(t, d)
	})
}

// A closed stream whose target takes nothing is given up after a while, and a
// neighbour does not notice.
func TestLinger(t *testing.T) {
	inBubble(t, accept, func(t *testing.T, cfg config) {
		cfg.MaxStreams = 1
		d, _ := run(t, cfg)
		st := connect(t, d)
		if err := st.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(st, pattern{})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		if most := int64(2<<20 + 128<<10); n > most {
			t.Errorf("%d bytes went nowhere, want %d at most", n, most)
		}
		began := time.Now()
		if err := st.Close(); err != nil || time.Since(began) != 0 {
			t.Errorf("close: %v after %v", err, time.Since(began))
		}
		connect(t, d) // there is one token
		if took := time.Since(began); took != lingerTime {
			t.Errorf("the next stream came after %v", took)
		}
	})
}

// A node that may not open channels here is told so and costs nothing.
func TestNoChannelsFromNodes(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.net, l.addr = new(tunneltest.Network), "sshd:22"
		refused := make(chan error, 1)
		l.opened = func(c ssh.Conn) {
			_, _, err := c.OpenChannel("forwarded-tcpip", nil)
			refused <- err
		}
		startOwn(t, l, accept)
		run(t, l.config(t))
		var e *ssh.OpenChannelError
		if err := <-refused; !errors.As(err, &e) || e.Reason != ssh.Prohibited {
			t.Errorf("channel from the node: %v", err)
		}
	})
}

// A handshake that does not come to its end is given up.
func TestSilentHandshake(t *testing.T) {
	l := newLab(t)
	synctest.Test(t, func(t *testing.T) {
		l.net, l.addr = new(tunneltest.Network), "sshd:22"
		ln, err := l.net.Listen(t.Context(), "mem", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		cfg := l.config(t)
		began := time.Now()
		if _, err := Dial(t.Context(), cfg.Config, "node-1", cfg.addr); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial: %v", err)
		}
		if took := time.Since(began); took != connectTimeout {
			t.Errorf("given up after %v", took)
		}
	})
}

// Alive knows the four ways in which the library comes to say io.EOF.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name string
			do   func(w *wire, peer net.Conn)
			want bool
		}{
			{"reading", func(w *wire, _ net.Conn) { _, _ = w.Read(make([]byte, 1)) }, true},
			{"about to read", func(w *wire, _ net.Conn) {
				time.Sleep(time.Second)
				_, _ = w.Read(make([]byte, 1))
			}, true},
			{"read failed", func(w *wire, peer net.Conn) {
				_ = peer.Close()
				_, _ = w.Read(make([]byte, 1))
			}, false},
			{"gave up", func(w *wire, _ net.Conn) {
				time.Sleep(time.Second)
				_ = w.Close()
			}, false},
		} {
			a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
			w := newWire(a)
			var wg sync.WaitGroup
			wg.Go(func() { tc.do(w, b) })
			if !slices.Contains([]string{"about to read", "gave up"}, tc.name) {
				synctest.Wait()
			}
			if got := w.alive(); got != tc.want {
				t.Errorf("%s: alive is %v", tc.name, got)
			}
			_ = w.Close()
			wg.Wait()
			_ = b.Close()
		}
	})
}
