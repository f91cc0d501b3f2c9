// Streams beside other streams, and halves of streams beside the other half: a
// target that does not answer, a reader that does not read, an end that has come one
// way only, a target that goes away.

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

func TestFlows(t *testing.T) {
	t.Parallel()
	overEachFront(t, everyTransport, func(t *testing.T, f *front, transport string) {
		t.Run("silent targets", func(t *testing.T) { testSilentTargets(t, f) })
		t.Run("stalled reader", func(t *testing.T) { testStalledReader(t, f) })
		if slices.Contains(halfClosing, transport) {
			t.Run("half-close", func(t *testing.T) { testHalfCloses(t, f) })
		}
		t.Run("vanishing client", func(t *testing.T) { testVanishingClient(t, f) })
		t.Run("vanishing target", func(t *testing.T) { testVanishingTarget(t, f) })
	})
}

func echoAll(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// noise is endless and always the same.
func noise() io.Reader { return rand.NewChaCha8([32]byte{1}) }

// wants reads n bytes of what is expected and then the end, and hangs up if that is
// not what comes.
func wants(c net.Conn, expected io.Reader, n int64) error {
	got, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); ; {
		m, err := c.Read(got)
		_, _ = io.ReadFull(expected, want[:m]) // never fails
		at += int64(m)
		switch {
		case !bytes.Equal(got[:m], want[:m]) || at > n:
			return errors.Join(fmt.Errorf("other bytes than those that were sent, before byte %d of %d", at, n), c.Close())
		case errors.Is(err, io.EOF) && at == n:
			return nil
		case err != nil:
			return errors.Join(fmt.Errorf("%d of %d bytes came: %w", at, n, err), c.Close())
		}
	}
}

// exchange opens a stream to an echo and has it send n bytes back.
func (f *front) exchange(port, n int) error {
	c, err := f.connect(port)
	if err != nil {
		return err
	}
	return exchange(c, n)
}

// exchange sends n bytes to an echo, ends its half, wants them back and hangs up.
func exchange(c *net.UnixConn, n int) error {
	defer c.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(c, noise(), int64(n))
		sent <- errors.Join(err, c.CloseWrite())
	}()
	err := wants(c, noise(), int64(n))
	return errors.Join(err, <-sent)
}

// testSilentTargets dials 500 times what does not answer. Nobody else waits for
// that, and the node's sockets are gone once nobody waits any more.
func testSilentTargets(t *testing.T, f *front) {
	const silent, quick = 500, 100
	g := newTarget(t, nil, echoAll)
	_, hole := newHole(t)
	must(t, f.exchange(g.port, 1))
	before := map[string]usage{}
	for _, program := range f.bothEnds() {
		before[program] = f.usage(t, program)
	}
	old, err := f.connect(g.port)
	must(t, err)
	defer old.Close()

	var over atomic.Int64
	outcomes := make(chan error, silent)
	for range silent {
		go func() { // ends when the front end answers
			c, err := f.openTunnel(hole, all)
			if err == nil {
				err = answered(c)
				over.Add(1)
				_ = c.Close()
			}
			outcomes <- err
		}()
	}
	eventually(t, "the node dials", func() error {
		if n := f.usage(t, f.node).files - before[f.node].files; n < silent {
			return fmt.Errorf("%d at a time", n)
		}
		return nil
	})
	for range quick {
		must(t, f.exchange(g.port, 10<<10))
		if _, err := old.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		must(t, skip(old, 1))
	}
	if n := over.Load(); n > 0 {
		t.Errorf("%d dials of silent targets were over before %d others were made", n, quick)
	}
	for range silent {
		var r *refusal
		if err := <-outcomes; !errors.As(err, &r) || r.status != http.StatusGatewayTimeout {
			t.Errorf("a dial that nobody answered: %v", err)
		}
	}
	for program, was := range before {
		f.settled(t, program, was)
	}
}

// testStalledReader has one reader that does not read beside one, a hundred and a
// thousand that do, which get everything; and so does it, when it reads at last.
func testStalledReader(t *testing.T, f *front) {
	const size, flood = 64 << 10, int64(16 << 20)
	floods := newTarget(t, nil, func(c *net.TCPConn) {
		_, _ = io.CopyN(c, noise(), flood)
	})
	g := newTarget(t, nil, echoAll)
	for _, n := range []int{1, 100, 1000} {
		stalled, err := f.connect(floods.port)
		must(t, err)
		expected := noise()
		first := make([]byte, 26)
		_, _ = io.ReadFull(expected, first) // never fails
		must(t, skip(stalled, len(first)))
		others := make([]*net.UnixConn, n)
		for i := range others {
			others[i], err = f.connect(g.port)
			must(t, err)
			defer others[i].Close()
		}
		var exchanges sync.WaitGroup
		for _, c := range others {
			exchanges.Go(func() {
				if err := exchange(c, size); err != nil {
					t.Errorf("beside a stalled reader and %d others: %v", n-1, err)
				}
			})
		}
		exchanges.Wait()
		must(t, wants(stalled, expected, flood-int64(len(first))))
		must(t, stalled.Close())
	}
	g.deserted(t)
	floods.deserted(t)
}

// testHalfCloses ends either half before the other one has begun, which then carries
// 16 MiB to its end.
func testHalfCloses(t *testing.T, f *front) {
	const size = 16 << 20
	outcomes := make(chan error, 1)
	down := newTarget(t, nil, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c) // until the client's end
		if err == nil {
			_, err = io.CopyN(c, noise(), size)
		}
		outcomes <- err
	})
	up := newTarget(t, nil, func(c *net.TCPConn) {
		err := c.CloseWrite()
		if err == nil {
			err = wants(c, noise(), size)
		}
		outcomes <- err
	})
	c, err := f.connect(down.port)
	must(t, err)
	must(t, c.CloseWrite())
	must(t, wants(c, noise(), size))
	must(t, <-outcomes)
	must(t, c.Close())

	c, err = f.connect(up.port)
	must(t, err)
	must(t, wants(c, noise(), 0)) // the target's end
	_, err = io.CopyN(c, noise(), size)
	must(t, errors.Join(err, c.CloseWrite()))
	must(t, <-outcomes)
	must(t, c.Close())
	up.deserted(t)
	down.deserted(t)
}

// testVanishingClient has clients leave before there is an answer, just when the
// target begins to take connections: those that come about are closed again.
func testVanishingClient(t *testing.T, f *front) {
	const times = 50
	before := f.usage(t, f.node)
	hole, port := newHole(t)
	var clients []net.Conn
	for range times {
		c, err := f.openTunnel(port, all)
		must(t, err)
		defer c.Close()
		clients = append(clients, c)
	}
	eventually(t, "the node dials", func() error {
		if n := f.socketsTo(t, f.node, port); n < times {
			return fmt.Errorf("%d at a time", n)
		}
		return nil
	})
	g := serveTarget(t, hole, echoAll)
	eventually(t, "the first is answered", func() error {
		if g.opened.Load() < 2 { // of which one was there before
			return errNotYet
		}
		return nil
	})
	for _, c := range clients {
		must(t, c.Close())
	}
	// The target itself may know of more: when there is no room for connections the
	// kernel deals out cookies, and may take one for a connection that is over.
	eventually(t, "the node leaves the target alone", func() error {
		if n := f.socketsTo(t, f.node, port); n != 0 {
			return fmt.Errorf("it has %d sockets connected to it", n)
		}
		return nil
	})
	f.settled(t, f.node, before)
}

// testVanishingTarget has targets reset the connection at once, or after a word, or
// while they are spoken to: the client hears of it, and nothing stays open.
func testVanishingTarget(t *testing.T, f *front) {
	const times = 100
	var turn atomic.Int64
	g := newTarget(t, nil, func(c *net.TCPConn) {
		switch turn.Add(1) % 3 {
		case 0:
			_, _ = io.WriteString(c, "hello")
		case 1:
			_ = skip(c, 100)
		}
		_ = c.SetLinger(0)
	})
	before := map[string]usage{}
	for _, program := range f.bothEnds() {
		before[program] = f.usage(t, program)
	}
	var clients sync.WaitGroup
	for range times {
		clients.Go(func() {
			c, err := f.connect(g.port)
			var r *refusal
			if errors.As(err, &r) && r.status == http.StatusBadGateway {
				return // it was gone before there was an answer
			}
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			// Both end: writing with an error, as the target has not read it all, and
			// reading by the end of a unix socket, which knows no reset.
			if _, err := io.Copy(c, pattern{}); err == nil {
				t.Error("everything could be written to a target that is gone")
			}
			_, _ = io.Copy(io.Discard, c)
		})
	}
	clients.Wait()
	g.deserted(t)
	for program, was := range before {
		f.settled(t, program, was)
	}
}
