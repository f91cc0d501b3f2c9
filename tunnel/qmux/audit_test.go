// Joinings that are refused: what the peer is told, what the log says, and how many
// sessions there may be.

package qmux

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// An entry is one line of a log.
type entry struct {
	level slog.Level
	attrs map[string]string
}

// A ledger is a slog.Handler that keeps the lines about refused joinings.
type ledger struct {
	slog.Handler

	mu      sync.Mutex // guards the following
	entries []entry
}

func (l *ledger) Enabled(context.Context, slog.Level) bool { return true }

func (l *ledger) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "resumption refused" {
		return nil
	}
	e := entry{level: r.Level, attrs: make(map[string]string)}
	r.Attrs(func(a slog.Attr) bool {
		e.attrs[a.Key] = a.Value.String()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	return nil
}

// Whoever should not have tried is told the same as of a session that is not there, or
// that it has no right to any; who it was and from where is on record, as a warning.
// What happens to honest peers is no warning.
func TestAudit(t *testing.T) {
	type trial struct {
		n     *network
		id    sessionID
		first secret // used up
		fresh secret // that holds
	}
	for _, tc := range []struct {
		name  string
		try   func(tr *trial) (id sessionID, s secret, attempt uint64)
		code  tunnel.Code
		level slog.Level
		cause error
	}{
		{"stolen, shown by another identity", func(tr *trial) (sessionID, secret, uint64) {
			tr.n.set(func() { tr.n.identity = "system:node:b" })
			return tr.id, tr.fresh, 2
		}, tunnel.Lost, slog.LevelWarn, errForeign},
		{"guessed", func(tr *trial) (sessionID, secret, uint64) {
			return tr.id, secret{1}, 2
		}, tunnel.Lost, slog.LevelWarn, errSecret},
		{"replayed", func(tr *trial) (sessionID, secret, uint64) {
			return tr.id, tr.first, 2
		}, tunnel.Lost, slog.LevelWarn, errSecret},
		{"of an identity that is not accepted", func(tr *trial) (sessionID, secret, uint64) {
			tr.n.set(func() { tr.n.refuse = errors.New("node is deleted") })
			return tr.id, tr.fresh, 2
		}, tunnel.Denied, slog.LevelWarn, tunnel.Denied},
		{"that may not go on", func(tr *trial) (sessionID, secret, uint64) {
			tr.n.registry.options.Link.Resume = func(tunnel.Peer) error { return errors.New("node is deleted") }
			return tr.id, tr.fresh, 2
		}, tunnel.Denied, slog.LevelWarn, tunnel.Denied},
		{"said twice", func(tr *trial) (sessionID, secret, uint64) {
			return tr.id, tr.fresh, 1
		}, tunnel.Replaced, slog.LevelInfo, tunnel.Replaced},
		{"to a server that was restarted", func(*trial) (sessionID, secret, uint64) {
			return sessionID{1}, secret{}, 1
		}, tunnel.Lost, slog.LevelInfo, tunnel.Lost},
		{"to another server", func(tr *trial) (sessionID, secret, uint64) {
			tr.n.registry.options.Link.Server = "b"
			return sessionID{1}, secret{}, 1
		}, tunnel.Lost, slog.LevelDebug, tunnel.Lost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(ledger)
				n := newNetwork(tunnel.Options{Log: slog.New(log)})
				tr := &trial{n: n}
				tr.id, tr.first, _ = n.hand(t).begin(usual)
				s := <-n.accepted
				p := n.hand(t)
				f := p.join(tr.id, tr.first, 1)
				_, tr.fresh, _ = f.session()
				p.say(appendInts(nil, framePing, 1)) // it has the secret
				p.await(framePong)

				id, key, attempt := tc.try(tr)
				answer := n.hand(t).join(id, key, attempt)
				text := string(answer.data)
				if answer.code(t) != tc.code || tc.code == tunnel.Lost && text != noSession(nil).Text {
					t.Errorf("it is told %+v, %q", answer, text)
				}
				synctest.Wait()
				if len(n.errs) != 1 || !errors.Is(n.errs[0], tc.cause) || !errors.Is(n.errs[0], carrier.ErrLogged) {
					t.Errorf("errors: %v", n.errs)
				}
				var e entry
				if len(log.entries) == 1 {
					e = log.entries[0]
				}
				who := n.identity
				if n.refuse != nil {
					who = "" // nobody knows
				}
				if e.level != tc.level || e.attrs["addr"] != "agent" || e.attrs["session"] != id.String() || who != "" && e.attrs["identity"] != who {
					t.Errorf("log: %+v", log.entries)
				}
				n.close(t, s)
			})
		})
	}
}

// TestAskedAfterTheSecret: who shows no valid secret causes no question to the application, and few
// lines; other identities have theirs.
func TestAskedAfterTheSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(ledger)
		asked := 0
		n := newNetwork(tunnel.Options{Log: slog.New(log), Link: tunnel.LinkOptions{Resume: func(tunnel.Peer) error { asked++; return nil }}})
		id, first, _ := n.hand(t).begin(usual)
		s := <-n.accepted
		for i := range 300 {
			if code := n.hand(t).join(id, secret{1}, uint64(i+1)).code(t); code != tunnel.Lost {
				t.Fatalf("it is told %v", code)
			}
		}
		synctest.Wait()
		if asked != 0 {
			t.Errorf("%d questions", asked)
		}
		if lines := len(log.entries); lines != 20 {
			t.Errorf("%d lines", lines)
		}
		n.set(func() { n.identity = "system:node:b" })
		n.hand(t).join(id, secret{1}, 1)
		synctest.Wait()
		if e := log.entries[len(log.entries)-1]; e.attrs["identity"] != "system:node:b" || e.attrs["others"] != "280" {
			t.Errorf("of another identity: %+v", e)
		}
		n.set(func() { n.identity = "system:node:a" })
		if code := n.hand(t).join(id, first, 1).code(t); code != 0 || asked != 1 {
			t.Errorf("with the secret it is told %v after %d questions", code, asked)
		}
		if code := n.hand(t).join(id, first, 1).code(t); code != tunnel.Replaced || asked != 1 {
			t.Errorf("the second time it is told %v after %d questions", code, asked)
		}
		n.close(t, s)
	})
}

// Why a session may not be resumed is for the server's log: neither end waits for the window,
// and the peer does not learn it.
func TestReasonIsForTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{Link: tunnel.LinkOptions{
			DetachWindow: time.Hour, Resume: func(tunnel.Peer) error { return errors.New("node is deleted") },
		}})
		d, a := n.pair(t, tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: time.Hour}})
		began := time.Now()
		n.cut()
		for s, reason := range map[*Session]string{
			d: "refused by the server: peer hung up: session may not be resumed", a: "session may not be resumed: node is deleted",
		} {
			if err := why(s); !errors.Is(err, tunnel.Denied) || err.Error() != reason {
				t.Errorf("%v, want %s", err, reason)
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("after %v", d)
		}
		n.close(t, d, a)
	})
}

// The sessions of an identity are bounded: one more costs the longest parked one its
// life, if there is a parked one.
func TestSessionsOfAnIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		more := func() frame {
			p := n.hand(t)
			p.greet(&joining{kind: kindNew, terms: usual, insteadOf: insteadOfNone})
			return p.hear()
		}
		var sessions []*Session
		for range maxPerIdentity {
			if code := more().code(t); code != 0 {
				t.Fatalf("session %d: %v", len(sessions), code)
			}
			sessions = append(sessions, <-n.accepted)
		}
		if code := more().code(t); code != tunnel.Busy {
			t.Errorf("one too many: %v", code)
		}
		n.set(func() { n.identity = "system:node:b" })
		if code := more().code(t); code != 0 {
			t.Errorf("of another identity: %v", code)
		}
		sessions = append(sessions, <-n.accepted)
		n.set(func() { n.identity = "system:node:a" })
		for _, i := range []int{5, 3} { // the latter is parked for less
			_ = n.near[i].Abort() // never fails
			time.Sleep(time.Second)
		}
		if code := more().code(t); code != 0 {
			t.Errorf("while two are parked: %v", code)
		}
		sessions = append(sessions, <-n.accepted)
		if err := why(sessions[5]); !errors.Is(err, tunnel.Replaced) {
			t.Errorf("the longest parked: %v", err)
		}
		if sessions[3].Link().Parked.IsZero() || sessions[3].Context().Err() != nil {
			t.Errorf("the other: %+v", sessions[3].Link())
		}
		n.close(t, sessions...)
	})
}

// So are those of a listener.
func TestSessionsOfAListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		_, _, _ = n.hand(t).begin(usual)
		s := <-n.accepted
		r := n.registry
		r.mu.Lock()
		for i := len(r.sessions); i < maxSessions; i++ {
			r.sessions[sessionID{1, byte(i), byte(i >> 8), byte(i >> 16)}] = s
		}
		r.mu.Unlock()
		n.set(func() { n.identity = "system:node:b" })
		p := n.hand(t)
		p.greet(&joining{kind: kindNew, terms: usual, insteadOf: insteadOfNone})
		f := p.hear()
		if code := f.code(t); code != tunnel.Busy {
			t.Errorf("one too many: %v", code)
		}
		r.mu.Lock()
		clear(r.sessions)
		if len(r.owned) != 1 {
			t.Errorf("sessions of %d identities are left", len(r.owned))
		}
		r.mu.Unlock()
		n.close(t, s)
	})
}

// Whoever joins a session that was with another server, and finds one here that does not
// resume, begins no session by that.
func TestJoiningWhereNothingResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: -1}})
		p := n.hand(t)
		f := p.join(sessionID{1}, secret{2}, 1)
		if code := f.code(t); code != tunnel.Lost {
			t.Errorf("it is told %v", code)
		}
		synctest.Wait()
		if k := len(n.accepted); k != 0 {
			t.Errorf("%d sessions", k)
		}
		n.close(t)
	})
}

// A session that handles a record holds up none that another identity begins, though its own
// identity has as many as it may and begins one more.
func TestBusySessionHoldsNobodyUp(t *testing.T) {
	n := newNetwork(tunnel.Options{})
	var all []*Session
	for range maxPerIdentity {
		d, a := n.pair(t, tunnel.Options{})
		all = append(all, d, a)
	}
	busy := all[1]
	done := make(chan error, 1)
	busy.mu.Lock()
	go func() { done <- n.registry.add(&Session{identity: n.identity}) }()
	select {
	case err := <-done:
		if !errors.Is(err, tunnel.Busy) {
			t.Errorf("one more: %v", err)
		}
	case <-time.After(patience):
		t.Error("the registry waits for a session")
	}
	busy.mu.Unlock()
	n.close(t, all...)
}
