package link

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A hand speaks the protocol by hand.
type hand struct{ *memnet.Conn }

func (r *rig) shake(t testing.TB) hand {
	t.Helper()
	c, err := r.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return hand{c.(*memnet.Conn)}
}

func (h hand) say(t testing.TB, m message) {
	t.Helper()
	if _, err := h.Write(m.encode()); err != nil {
		t.Errorf("say: %v", err)
	}
}

func (h hand) ask(t testing.TB, m message) message {
	t.Helper()
	h.say(t, m)
	answer, err := readMessage(h)
	if err != nil {
		t.Errorf("answer: %v", err)
	}
	return answer
}

func (h hand) open(t testing.TB) message {
	t.Helper()
	m := h.ask(t, message{kind: kindOpen, terms: Config{}.withDefaults().terms()})
	if m.kind != kindOpened {
		t.Fatalf("opened: %+v", m)
	}
	return m
}

// frame writes one frame of zeros, or as much of it as is taken.
func (h hand) frame(f head) {
	b := make([]byte, frameHeader+f.length)
	f.put(b)
	_, _ = h.Write(b) // the far end may hang up meanwhile
}

func resumption(m message, s secret, attempt uint64) message {
	return message{kind: kindResume, id: m.id, secret: s, attempt: attempt}
}

// A secret is good until its successor is known to have arrived, and attempts
// only count upwards.
func TestSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		opened := r.shake(t).open(t)
		l := <-r.accepted
		resume := func(s secret, attempt uint64, code tunnel.Code) (hand, message) {
			t.Helper()
			h := r.shake(t)
			m := h.ask(t, resumption(opened, s, attempt))
			if code == 0 && m.kind != kindResumed || code != 0 && (m.kind != kindRefused || m.code != code) {
				t.Errorf("attempt %d: %+v", attempt, m)
			}
			return h, m
		}
		first := opened.secret
		resume(secret{1}, 1, tunnel.Lost)
		_, second := resume(first, 2, 0)
		// The answer might have been lost, so the first secret still is good;
		// the attempt's number is not.
		resume(first, 2, tunnel.Replaced)
		resume(first, 1, tunnel.Replaced)
		_, third := resume(first, 3, 0)
		resume(second.secret, 4, tunnel.Lost) // superseded
		// Who shows the new secret has it, and the old one is dead.
		h, fourth := resume(third.secret, 5, 0)
		resume(first, 6, tunnel.Lost)
		// So has who sends a frame.
		h.frame(head{kind: frameData, length: 1})
		expect(t, l, "\x00")
		resume(third.secret, 7, tunnel.Lost)
		_, fifth := resume(fourth.secret, 8, 0)
		// Another identity gets nowhere, nor does a revoked one.
		r.set(func() { r.identity = "system:node:b" })
		resume(fifth.secret, 9, tunnel.Lost)
		r.set(func() { r.identity, r.refuse = "system:node:a", errors.New("revoked") })
		resume(fifth.secret, 10, tunnel.Denied)
		r.set(func() { r.refuse = nil })
		resume(fifth.secret, 11, 0)
		r.close(t, l)
	})
}

// Of two resumptions at once one wins, and the link has one transport.
func TestRace(t *testing.T) {
	var closing sync.WaitGroup // each takes a second: the peer is gone
	defer closing.Wait()
	for range 50 {
		r := newRig(t, Config{})
		opened := r.shake(t).open(t)
		l := <-r.accepted
		var won [2]bool
		var wg sync.WaitGroup
		for i := range won {
			h := r.shake(t)
			wg.Go(func() {
				m := h.ask(t, resumption(opened, opened.secret, 1))
				won[i] = m.kind == kindResumed
				if !won[i] && m.code != tunnel.Replaced {
					t.Errorf("loser: %+v", m)
				}
			})
		}
		wg.Wait()
		if won[0] == won[1] {
			t.Fatalf("winners: %v", won)
		}
		r.cut()
		r.set(func() { _ = r.near[1].Abort() }) // never fails
		closing.Go(func() { r.close(t, l) })
	}
}

// Once another transport has taken over, nothing more comes out of the old one,
// nor counts that goes in.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		old := r.shake(t)
		opened := old.open(t)
		l := <-r.accepted
		synctest.Wait()
		h := r.shake(t)
		h.ask(t, resumption(opened, opened.secret, 1))
		synctest.Wait()
		_, _ = old.Write(make([]byte, 1)) // fails or not
		send(t, l, "new only")
		if b, _ := io.ReadAll(old); len(b) != pingSize { // the first frame's
			t.Errorf("%d bytes came out of the old transport", len(b))
		}
		b := make([]byte, pingSize+frameHeader+8)
		if _, err := io.ReadFull(h, b); err != nil || string(b[pingSize+frameHeader:]) != "new only" {
			t.Errorf("new transport: %q, %v", b, err)
		}
		r.close(t, l)
	})
}

// A peer that makes no sense ends the link, not the process.
func TestProtocol(t *testing.T) {
	for _, tc := range []struct {
		name  string
		frame head
	}{
		{"ack of nothing sent", head{kind: frameAck, ack: 1}},
		{"gap", head{kind: frameData, length: 1, offset: 4}},
		{"bye too early", head{kind: frameBye, offset: 5}},
		{"bye too late", head{kind: frameBye}},
		{"unknown kind", head{kind: 9}},
		{"too long", head{kind: frameData, length: maxBody + 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{})
				h := r.shake(t)
				h.open(t)
				l := <-r.accepted
				h.frame(head{kind: frameData, length: 3})
				expect(t, l, "\x00\x00\x00")
				h.frame(tc.frame)
				if _, err := l.Read(make([]byte, 1)); !errors.Is(err, ErrProtocol) || !errors.Is(err, tunnel.Internal) {
					t.Errorf("read: %v", err)
				}
				r.close(t, l)
			})
		})
	}
}

// A resumption that claims what was never sent ends the link as well.
func TestResumeBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		opened := r.shake(t).open(t)
		l := <-r.accepted
		m := resumption(opened, opened.secret, 1)
		m.received = 1
		r.shake(t).ask(t, m)
		if _, err := l.Read(make([]byte, 1)); !errors.Is(err, ErrProtocol) {
			t.Errorf("read: %v", err)
		}
		r.close(t, l)
	})
}

// Links are bounded: a further one costs the identity its longest parked one, if
// there is one.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		var links []*Link
		var hands []hand
		for range 2 {
			h := r.shake(t)
			h.open(t)
			hands, links = append(hands, h), append(links, <-r.accepted)
		}
		full := r.shake(t).ask(t, message{kind: kindOpen, terms: Config{}.withDefaults().terms()})
		if full.kind != kindRefused || full.code != tunnel.Busy {
			t.Errorf("third link: %+v", full)
		}
		for _, i := range []int{1, 0} { // the second is parked for longer
			_ = hands[i].Abort()
			send(t, links[i], "x")
			time.Sleep(time.Second)
		}
		r.shake(t).open(t)
		links = append(links, <-r.accepted)
		if _, err := links[1].Read(make([]byte, 1)); !errors.Is(err, tunnel.Replaced) {
			t.Errorf("displaced: %v", err)
		}
		if n, parked := r.registry.Len(); n != 2 || parked != 1 {
			t.Errorf("%d links, %d parked", n, parked)
		}
		_ = r.registry.Close()
		if m := r.shake(t).ask(t, message{kind: kindOpen, terms: Config{}.withDefaults().terms()}); m.code != tunnel.Draining {
			t.Errorf("after Close: %+v", m)
		}
		r.close(t, links...)
	})
}

// Whoever says nothing, or nonsense, is hung up on.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		start := time.Now()
		silent := r.shake(t)
		if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(start) != handshakeTimeout {
			t.Errorf("silent: %v after %v", err, time.Since(start))
		}
		for _, s := range []string{"GET / HTTP/1.1\r\n\r\n", "\x01\x01\x00\x0c\xff\xff\xff\xffaaaabbbb", "\x01\x09\x00\x00"} {
			h := r.shake(t)
			_, _ = h.Write([]byte(s)) // it may be cut short
			if b, _ := io.ReadAll(h); len(b) > messageHeader+1+maxText {
				t.Errorf("%q: %q", s, b)
			}
		}
		odd := r.shake(t)
		if m := odd.ask(t, message{kind: kindResumed}); m.kind != kindRefused || m.code != tunnel.Internal {
			t.Errorf("odd: %+v", m)
		}
		ctx, cancel := context.WithCancel(t.Context())
		near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		defer near.Close()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := r.registry.Accept(ctx, far); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		r.close(t)
		if len(r.errs) != 5 {
			t.Errorf("errors: %v", r.errs)
		}
	})
}

// What the server refuses for good ends the link at once, with its code; what it
// refuses for now does not.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		r.set(func() { r.refuse = errors.New("revoked") })
		start := time.Now()
		r.cut()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, tunnel.Denied) || time.Since(start) > time.Second {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		if _, err := Dial(t.Context(), r.dial, Config{}); !errors.Is(err, tunnel.Denied) {
			t.Errorf("dial: %v", err)
		}
		r.close(t, a, b)
	})
	for code, want := range map[tunnel.Code]bool{
		tunnel.Lost: true, tunnel.Denied: true, tunnel.Internal: true,
		tunnel.Busy: false, tunnel.Draining: false, tunnel.Replaced: false,
	} {
		if got := final(&Error{Code: code}); got != want {
			t.Errorf("final(%v) = %t", code, got)
		}
	}
	if final(errors.New("no route")) {
		t.Error("a failed dial is final")
	}
}

func TestConfig(t *testing.T) {
	if _, err := NewRegistry(RegistryConfig{}); err == nil {
		t.Error("a registry without Identity")
	}
	low := Config{Buffer: 1, Keepalive: 1, Window: 1}.withDefaults()
	high := Config{Buffer: 1 << 40, Keepalive: 1 << 60, Window: 1 << 60}.withDefaults()
	if low.Buffer != minBuffer || low.Keepalive != 10*time.Millisecond || low.Window != 10*time.Millisecond {
		t.Errorf("low: %+v", low)
	}
	if high.Buffer != maxBuffer || high.Keepalive != 10*time.Minute || high.Window != 24*time.Hour {
		t.Errorf("high: %+v", high)
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{Keepalive: time.Second, Window: time.Minute})
		a, b := r.pair(t, Config{Keepalive: time.Minute, Window: time.Second})
		for _, l := range []*Link{a, b} {
			if l.conf.Keepalive != time.Minute || l.conf.Window != time.Second {
				t.Errorf("terms: %v, %v", l.conf.Keepalive, l.conf.Window)
			}
		}
		r.close(t, a, b)
	})
}
