// Joining by hand: secrets, attempts, and who is turned away.

package qmux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/quicvarint"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// code is what an answer refuses with; 0 if it does not.
func (f frame) code(t testing.TB) tunnel.Code {
	t.Helper()
	switch f.kind {
	case frameSession:
		return 0
	case frameApplicationClose:
		return tunnel.Code(f.value)
	default:
		t.Errorf("answer: %+v", f)
		return tunnel.Internal
	}
}

// Each joining replaces the secret. The old one is good until the peer is known to have
// the new one, and attempts only count upwards.
func TestSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		id, first, _ := n.hand(t).begin(usual)
		s := <-n.accepted
		join := func(with secret, attempt uint64, code tunnel.Code) (p *handmade, fresh secret) {
			t.Helper()
			p = n.hand(t)
			f := p.join(id, with, attempt)
			if got := f.code(t); got != code {
				t.Errorf("attempt %d: %v, want %v", attempt, got, code)
			}
			if f.kind == frameSession {
				_, fresh, _ = f.session()
			}
			return p, fresh
		}
		join(secret{1}, 1, tunnel.Lost)
		_, second := join(first, 2, 0)
		// The answer may have been lost: the first secret is still good. The number of
		// the attempt is not.
		join(first, 2, tunnel.Replaced)
		join(first, 1, tunnel.Replaced)
		_, third := join(first, 3, 0)
		join(second, 4, tunnel.Lost)
		// Whoever shows the new secret has it, and the old one is no good any more.
		p, fourth := join(third, 5, 0)
		join(first, 6, tunnel.Lost)
		// So has whoever says something on the connection that it came with.
		p.say(streamFrame(0, 0, "x", false))
		if _, err := s.Accept(waiting(t)); err != nil {
			t.Fatal(err)
		}
		join(third, 7, tunnel.Lost)
		_, fifth := join(fourth, 8, 0)
		// Another identity gets nowhere, nor does one that is not accepted.
		n.set(func() { n.identity = "system:node:b" })
		join(fifth, 9, tunnel.Lost)
		n.set(func() { n.identity, n.refuse = "system:node:a", errors.New("revoked") })
		join(fifth, 10, tunnel.Denied)
		n.set(func() { n.refuse = nil })
		join(fifth, 11, 0)
		n.close(t, s)
	})
}

// Of two connections that join at the same time with the same secret one is let in.
func TestJoiningRace(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(tunnel.Options{})
			id, first, _ := n.hand(t).begin(usual)
			s := <-n.accepted
			j := &joining{kind: kindJoin, id: id, secret: first, attempt: 1, insteadOf: insteadOfAll}
			mine := (&parameters{data: maxInt, streams: 8, session: j}).encode()
			both := []*handmade{n.hand(t), n.hand(t)}
			for _, p := range both {
				p.say(mine)
			}
			won := 0
			for _, p := range both {
				p.hear() // parameters
				switch code := p.hear().code(t); code {
				case 0:
					won++
				case tunnel.Replaced:
				default:
					t.Errorf("the other is told %v", code)
				}
			}
			synctest.Wait() // it is let in after it has been told
			if won != 1 || s.Link().Resumes != 1 {
				t.Errorf("%d were let in: %+v", won, s.Link())
			}
			n.close(t, s)
		})
	}
}

// A session that is closed while its first connection is answered is closed, and so is
// that connection.
func TestClosedWhileAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var before atomic.Pointer[func()]
		n.far = func(c *memnet.Conn) secured { return hooked{bare{newBatch(c)}, &before} }
		p := n.hand(t)
		p.hear()            // its parameters
		closing := func() { // before SESSION
			n.work.Go(n.registry.close)
			synctest.Wait()
		}
		before.Store(&closing)
		p.say((&parameters{session: &joining{kind: kindNew, terms: usual, insteadOf: insteadOfNone}}).encode())
		_ = p.conn.SetReadDeadline(time.Now().Add(2 * lingerTimeout)) // never fails
		if _, err := io.Copy(io.Discard, p.conn); err != nil {
			t.Errorf("the connection is still open: %v", err)
		}
		if err := why(<-n.accepted); !errors.Is(err, tunnel.ErrSessionClosed) {
			t.Errorf("session: %v", err)
		}
		n.close(t)
	})
}

// Once another connection has taken over, nothing comes out of the old one. What was on
// its way on it still counts; what a peer says there later, that was stopped meanwhile,
// does not, nor does its late joining.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		old := n.hand(t)
		id, first, _ := old.begin(usual)
		s := <-n.accepted
		late := n.hand(t) // connected before, and stopped before it could say anything
		p := n.hand(t)
		p.join(id, first, 2)
		old.say(streamFrame(0, 0, "under way, ", false))
		p.say(streamFrame(0, 11, "here", false))
		st, err := s.Accept(waiting(t))
		if err != nil {
			t.Fatal(err)
		}
		hears(t, st, "under way, here")
		says(t, st, "new only")
		if f := p.await(frameStream); string(f.data) != "new only" {
			t.Errorf("the new connection: %+v", f)
		}
		for err = nil; err == nil; { // until it is closed
			var frames []byte
			if frames, _, err = old.in.next(); err != nil {
				break
			}
			for len(frames) > 0 {
				var f frame
				if f, frames, err = next(frames); err != nil || f.kind == frameStream {
					t.Errorf("the old connection: %+v, %v", f, err)
				}
			}
		}
		if code := late.join(id, first, 1).code(t); code == 0 {
			t.Error("the late joining was let in")
		}
		_, _ = old.conn.Write([]byte{0x40, 4, 0x0a, 0x00, 0x01, 'x'}) // fails or not
		p.say(streamFrame(0, 15, "!", false))
		hears(t, st, "!")
		if l := s.Link(); l.Resumes != 1 || l.Parks != 0 {
			t.Errorf("%+v", l)
		}
		n.close(t, s)
	})
}

// Whoever says nothing, or nonsense, is hung up on.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		for _, c := range []struct {
			name string
			says string
			took time.Duration
			code uint64 // of RFC 9000, if that is what it is told
		}{
			{"nothing", "", helloTimeout, 0},
			{"HTTP", "GET / HTTP/1.1\r\n\r\n", helloTimeout, 0},
			{"a record that is too large", "\xbf\xff\xff\xff", 0, errFrameEncoding},
			{"a frame that is prohibited", "\x40\x01\x01", 0, errFrameEncoding},
			{"an empty record", "\x40\x00", 0, errProtocol},
			{"a frame before the parameters", "\x40\x04\x08\x00hi", 0, errProtocol},
		} {
			began := time.Now()
			p := n.hand(t)
			_, _ = io.WriteString(p.conn, c.says) // it may be cut short
			p.hear()                              // parameters
			told := uint64(0)
			for {
				frames, _, err := p.in.next()
				if err != nil {
					break
				}
				if f, _, err := next(frames); err == nil && f.kind == frameClose {
					told = f.value
				}
			}
			if took := time.Since(began); told != c.code || took != c.took {
				t.Errorf("%s: told %#x after %v", c.name, told, took)
			}
		}
		odd := n.hand(t)
		odd.greet(&joining{kind: kindKnows})
		if f := odd.hear(); f.kind != frameClose || f.value != errParameter {
			t.Errorf("odd: %+v", f)
		}
		n.close(t)
		if len(n.errs) != 7 {
			t.Errorf("errors: %v", n.errs)
		}
	})
}

// A listener that is closed does not wait for who says nothing.
func TestCanceledGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		defer near.Close()
		ctx, cancel := context.WithCancel(t.Context())
		accepted := make(chan error)
		go func() {
			_, err := newNetwork(tunnel.Options{}).registry.acceptOwn(ctx, bare{newBatch(far)})
			accepted <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-accepted; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// What is refused for good ends the session at once, with its code; what is refused for
// now does not.
func TestFinalRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		n.set(func() { n.refuse = errors.New("revoked") })
		began := time.Now()
		n.cut()
		if err := why(d); !errors.Is(err, tunnel.Denied) || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		first, _ := n.dial(t.Context())
		if _, err := dialOn(t.Context(), first, n.dial, tunnel.Options{}); !errors.Is(err, tunnel.Denied) {
			t.Errorf("dial: %v", err)
		}
		n.close(t, d, a)
	})
	for code, want := range map[tunnel.Code]bool{
		tunnel.Lost: true, tunnel.Denied: true, tunnel.Internal: true, tunnel.Revoked: true,
		tunnel.Busy: false, tunnel.Draining: false, tunnel.Replaced: false,
	} {
		if got := permanent(&sessionError{Code: code}); got != want {
			t.Errorf("final(%v) = %t", code, got)
		}
	}
	if permanent(errNoWay) {
		t.Error("a failed dial is final")
	}
}

// The longer keepalive and the shorter window hold at both ends, and no peer can have
// itself be missed for longer than longestSilence.
func TestTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := func(keepalive, window time.Duration) tunnel.Options {
			return tunnel.Options{Link: tunnel.LinkOptions{Keepalive: keepalive, DetachWindow: window}}
		}
		n := newNetwork(link(time.Second, time.Minute))
		d, a := n.pair(t, link(time.Minute, time.Second))
		for name, s := range map[string]*Session{"dialer": d, "accepter": a} {
			if got := (terms{keepalive: time.Minute, window: time.Second}); s.conf.terms != got || s.keepalive.base != got.keepalive {
				t.Errorf("%s: %+v", name, s.conf.terms)
			}
		}
		_, _, told := n.hand(t).begin(terms{keepalive: 1000 * time.Hour, window: 1000 * time.Hour})
		b := <-n.accepted
		if want := (terms{keepalive: maxKeepalive, window: time.Minute}); b.conf.terms != want || told != want {
			t.Errorf("of a peer that wants to be left alone: %+v, and it is told %+v", b.conf.terms, told)
		}
		n.close(t, d, a, b)
	})
}

// So can no server have a dialing end ask all the time, or wait for longer than it wants.
func TestTermsOfTheServer(t *testing.T) {
	for name, told := range map[string]terms{"none": {}, "long ones": {keepalive: 1000 * time.Hour, window: 1000 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
				p := newHandmade(t, far)
				p.say((&parameters{data: maxInt, streams: 8, session: &joining{kind: kindKnows}}).encode())
				p.say(sessionFrame(sessionID{}, secret{}, told))
				s, err := dialOn(t.Context(), bare{newBatch(near)}, func(context.Context) (secured, error) { return nil, errNoWay }, tunnel.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if got := s.conf.terms; got.keepalive < usual.keepalive || got.keepalive > maxKeepalive || got.window > usual.window {
					t.Errorf("%+v", got)
				}
				_, _ = p.conn.Close(), s.Close()
			})
		})
	}
}

// A server that breaks the protocol as a session begins, or as a connection joins it, is
// told so.
func TestBrokenServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *handmade // of the latest connection
		says := func(frames ...[]byte) dialFunc {
			return func(context.Context) (secured, error) {
				near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
				p = newHandmade(t, far)
				p.say(frames...)
				return bare{newBatch(near)}, nil
			}
		}
		told := func(err error) {
			var broken *violation
			f := p.hear()
			for f.kind != frameClose {
				f = p.hear()
			}
			if !errors.As(err, &broken) || f.value != errProtocol || string(f.data) != broken.Text {
				t.Errorf("%v; the server is told %#x, %q", err, f.value, f.data)
			}
			_ = p.conn.Close()
		}
		knows, ping := (&parameters{data: maxInt, streams: 8, session: &joining{kind: kindKnows}}).encode(), appendInts(nil, framePing, 1)
		for _, frames := range [][][]byte{{ping}, {knows, ping}} {
			first, _ := says(frames...)(t.Context())
			_, err := dialOn(t.Context(), first, says(), tunnel.Options{})
			told(err)
		}
		first, _ := says(knows, sessionFrame(sessionID{}, secret{}, usual))(t.Context())
		s, err := dialOn(t.Context(), first, says(knows, ping), tunnel.Options{})
		if err != nil {
			t.Fatal(err)
		}
		told(s.Move(t.Context()))
		_, _ = s.Close(), first.Close()
	})
}

// The idle timeout of a peer without the extension bounds the interval of pings, at either end
// and on a metered link too. The interval is a second at least.
func TestIdleTimeoutOfThePeer(t *testing.T) {
	for _, tt := range []struct {
		idle, longest time.Duration
		dialing       bool
		metered       bool
	}{
		{0, usual.keepalive, true, false},
		{time.Hour, usual.keepalive, true, false},
		{10 * time.Second, 5 * time.Second, true, false},
		{10 * time.Second, 5 * time.Second, true, true},
		{time.Millisecond, time.Second, true, false},
		{10 * time.Second, 6 * time.Second, false, false},
		{time.Millisecond, 1200 * time.Millisecond, false, false},
	} {
		t.Run(fmt.Sprintf("%v, dialing %t, metered %t", tt.idle, tt.dialing, tt.metered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
				p, o := newHandmade(t, far), tunnel.Options{Link: tunnel.LinkOptions{Metered: tt.metered}}
				v := appendInts((&parameters{data: maxInt, streams: 8}).encode()[9:], paramMaxIdleTimeout, 4)
				v = quicvarint.AppendWithLen(v, uint64(tt.idle.Milliseconds()), 4)
				p.say(append(appendInts(nil, frameParameters, uint64(len(v))), v...))
				var s *Session
				var err error
				if tt.dialing {
					s, err = dialOn(t.Context(), bare{newBatch(near)}, nil, o)
				} else {
					s, err = newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil }).acceptOwn(t.Context(), bare{newBatch(near)})
				}
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _, _ = p.conn.Close(), s.Close() }()
				last, longest := time.Now(), time.Duration(0)
				for range 6 {
					f := p.await(framePing)
					p.say(appendInts(nil, framePong, f.stream))
					longest, last = max(longest, time.Since(last)), time.Now()
				}
				if longest != tt.longest {
					t.Errorf("a ping came after %v", longest)
				}
			})
		})
	}
}

// A session has so many connections, whichever the peer says that another is in place of.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{Link: tunnel.LinkOptions{Connections: 2}})
		id, key, _ := n.hand(t).begin(usual)
		s := <-n.accepted
		for i, c := range []struct {
			insteadOf uint64
			code      tunnel.Code
		}{
			{insteadOfNone, 0},
			{insteadOfNone, tunnel.Busy},
			{1000, tunnel.Busy}, // there is none
			{1, 0},
			{insteadOfAll, 0},
		} {
			p := n.hand(t)
			p.greet(&joining{kind: kindJoin, id: id, secret: key, attempt: uint64(i + 1), insteadOf: c.insteadOf})
			f := p.hear()
			if code := f.code(t); code != c.code {
				t.Errorf("attempt %d: %v, want %v", i+1, code, c.code)
			}
			if f.kind == frameSession {
				_, key, _ = f.session()
			}
			synctest.Wait()
		}
		n.close(t, s)
	})
}
