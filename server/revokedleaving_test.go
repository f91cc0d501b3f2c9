package server

// Tests of nodes that lose their names while their sessions are about to end.

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A leaver is a hub with an API server, and an agent that keeps its session for as long as it can.
type leaver struct {
	*testHub
	session tunnel.Session
	control *tunnel.Control
}

// newLeaver connects the agent to a hub that drains for ten minutes.
func newLeaver(t *testing.T) *leaver {
	t.Helper()
	b := newTestHub(t, Config{DrainTimeout: 10 * time.Minute, API: func(context.Context, net.Conn) error { return nil }})
	s, err := b.dial("n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	opened := &opener{Session: s}
	c, _, err := tunnel.Greet(t.Context(), opened, one("n"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return &leaver{b, s, c}
}

// drains stops the server while a stream into the node is open.
func (l *leaver) drains() {
	l.t.Helper()
	go func() {
		st, err := l.session.Accept(l.t.Context())
		if err == nil {
			r, _ := tunnel.ReadRequest(st)
			_, _ = r.Accept()
		}
	}()
	if _, err := l.hub.DialContext(l.t.Context(), "tcp", "n:10250"); err != nil {
		l.t.Fatal(err)
	}
	go func() { _ = l.stop() }()
	synctest.Wait()
}

// TestRevokedWhileItEnds: a node that is revoked reaches the API no more, also if its agent said
// that it leaves and stays, or the server is about to stop.
func TestRevokedWhileItEnds(t *testing.T) {
	for name, begin := range map[string]func(l *leaver){
		"neither":           func(*leaver) {},
		"the server drains": func(l *leaver) { l.drains() },
		"the agent lingers": func(l *leaver) { _ = l.control.Drain(l.t.Context(), tunnel.Draining, "bye") },
		"the agent is parted": func(l *leaver) {
			_ = l.control.Drain(l.t.Context(), tunnel.Draining, "bye")
			<-time.After(2 * linger)
		},
		"a session is moved": func(l *leaver) {
			l.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2, Meta: tunnel.Meta{keepsKey: "1"}})
			<-time.After(linger / 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLeaver(t)
				begin(l)
				sessions := l.hub.registry.membersOf("n")
				began := time.Now()
				n := l.hub.End("n", func(tunnel.Peer) bool { return true }, tunnel.Revoked)
				if n == 0 || n != len(sessions) {
					t.Errorf("%d sessions of %d were ended", n, len(sessions))
				}
				<-l.session.Context().Done()
				if d := time.Since(began); d > 3*time.Second {
					t.Errorf("the session ended after %v", d)
				}
				synctest.Wait()
				for _, m := range sessions {
					if why := m.why.Load(); why == nil || !errors.Is(*why, tunnel.Revoked) {
						t.Errorf("session %d ended: %v", m.id, why)
					}
				}
				if m := l.hub.registry.membersOf("n"); len(m) > 0 {
					t.Errorf("registered: %v", m)
				}
			})
		})
	}
}

// TestRevokedWhileDeaf: an agent that reads nothing does not keep a node's session from ending
// while the server drains.
func TestRevokedWhileDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{DrainTimeout: 10 * time.Minute})
		b.wrap = newWindowed
		s, err := b.dial("n")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := tunnel.Greet(t.Context(), s, one("n")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		go func() { _ = b.stop() }()
		<-time.After(time.Second)
		began := time.Now()
		if n := b.hub.End("n", func(tunnel.Peer) bool { return true }, tunnel.Revoked); n != 1 {
			t.Errorf("%d sessions were ended", n)
		}
		<-s.Context().Done()
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("the session ended after %v", d)
		}
	})
}

// A windowed stream's peer takes one write, the welcome, and then no more.
type windowed struct {
	*windowless
	first bool
}

func newWindowed(st tunnel.Stream) tunnel.Stream {
	w, _ := newWindowless(st).(*windowless)
	return &windowed{windowless: w, first: true}
}

func (w *windowed) Write(b []byte) (int, error) {
	if w.first {
		w.first = false
		return w.Stream.Write(b)
	}
	return w.windowless.Write(b)
}

// TestReplacedWhileItParts: a session that the hub has asked its agent to close, and that another
// instance replaces, keeps its time to read what is in flight.
func TestReplacedWhileItParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaver(t)
		_ = l.control.Drain(t.Context(), tunnel.Draining, "bye")
		<-time.After(time.Second)
		began := time.Now()
		l.mustConnect(tunnel.Hello{Node: "n", Instance: 2, Sequence: 1})
		<-l.session.Context().Done()
		if d := time.Since(began); d < drainTimeout-2*time.Second {
			t.Errorf("it had %v", d)
		}
	})
}
