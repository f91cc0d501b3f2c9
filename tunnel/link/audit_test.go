// Refused resumptions: what the peer is told, and what the log says.

package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// An entry is one line of a log.
type entry struct {
	level slog.Level
	attrs map[string]string
}

// A ledger is a slog.Handler that keeps the lines about refusals.
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

func (l *ledger) last() entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == 0 {
		return entry{}
	}
	return l.entries[len(l.entries)-1]
}

// Whoever should not have tried gets the same answer as for a link that is not
// there, or hears that it has no right to any; who it was and from where is on
// record, as a warning. What happens to honest peers is no warning.
func TestAudit(t *testing.T) {
	type trial struct {
		r      *rig
		opened message
		fresh  secret // after the first resumption, confirmed
	}
	for _, tc := range []struct {
		name  string
		try   func(tr *trial) message
		code  tunnel.Code
		level slog.Level
		cause error
	}{
		{"stolen, shown by another identity", func(tr *trial) message {
			tr.r.set(func() { tr.r.identity = "system:node:b" })
			return resumption(tr.opened, tr.fresh, 2)
		}, tunnel.Lost, slog.LevelWarn, errForeign},
		{"guessed", func(tr *trial) message {
			return resumption(tr.opened, secret{1}, 2)
		}, tunnel.Lost, slog.LevelWarn, errSecret},
		{"replayed after rotation", func(tr *trial) message {
			return resumption(tr.opened, tr.opened.secret, 2)
		}, tunnel.Lost, slog.LevelWarn, errSecret},
		{"revoked", func(tr *trial) message {
			tr.r.set(func() { tr.r.refuse = errors.New("revoked") })
			return resumption(tr.opened, tr.fresh, 2)
		}, tunnel.Denied, slog.LevelWarn, tunnel.Denied},
		{"revoked for resumptions only", func(tr *trial) message {
			tr.r.registry.conf.Resume = func(net.Conn) error { return errors.New("node is deleted") }
			return resumption(tr.opened, tr.fresh, 2)
		}, tunnel.Denied, slog.LevelWarn, tunnel.Denied},
		{"the message said twice", func(tr *trial) message {
			return resumption(tr.opened, tr.fresh, 1)
		}, tunnel.Replaced, slog.LevelInfo, tunnel.Replaced},
		{"of a server that has been restarted", func(*trial) message {
			return resumption(message{id: linkID{1}}, secret{}, 1)
		}, tunnel.Lost, slog.LevelInfo, tunnel.Lost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(ledger)
				tr := &trial{r: newRig(t, Config{Log: slog.New(log)})}
				tr.opened = tr.r.shake(t).open(t)
				l := <-tr.r.accepted
				h := tr.r.shake(t)
				tr.fresh = h.ask(t, resumption(tr.opened, tr.opened.secret, 1)).secret
				h.frame(head{kind: frameData, length: 1})
				expect(t, l, "\x00")
				tr.r.set(func() { tr.r.errs = nil })

				m := tr.r.shake(t).ask(t, tc.try(tr))
				if m.kind != kindRefused || m.code != tc.code || (m.code == tunnel.Lost && m.text != unknown(nil).Text) {
					t.Errorf("answer: %+v", m)
				}
				synctest.Wait()
				tr.r.set(func() {
					if len(tr.r.errs) != 1 || !errors.Is(tr.r.errs[0], tc.cause) {
						t.Errorf("errors: %v", tr.r.errs)
					}
				})
				e := log.last()
				if e.level != tc.level || e.attrs["addr"] != "agent" || (tc.code != tunnel.Denied && e.attrs["identity"] != tr.r.identity) {
					t.Errorf("log: %+v", e)
				}
				tr.r.set(func() { tr.r.refuse = nil })
				tr.r.close(t, l)
			})
		})
	}
}

// A peer that has forgotten what it acknowledged would need a replay that goes
// further back than the ring reaches: that ends the link with an error, at
// whichever end it shows, and nothing is ever left out in silence.
func TestReplayBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(chan hand, 2)
		dial := func(context.Context) (net.Conn, error) {
			near, far := memnet.Pipe(memnet.Addr("agent"), memnet.Addr("server"))
			conns <- hand{far}
			return near, nil
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			h := <-conns
			if _, err := readMessage(h); err != nil {
				t.Errorf("open: %v", err)
			}
			h.say(t, message{kind: kindOpened, terms: Config{}.withDefaults().terms()})
			h.frame(head{kind: frameData, length: 1})
			if _, err := io.ReadFull(h, make([]byte, pingSize+frameHeader+9)); err != nil {
				t.Errorf("data: %v", err)
			}
			h.frame(head{kind: frameAck, offset: 1, ack: 9})
			_ = h.Close() // what was written before arrives
			h = <-conns
			if m, err := readMessage(h); err != nil || m.kind != kindResume || m.received != 1 {
				t.Errorf("resume: %+v, %v", m, err)
			}
			h.say(t, message{kind: kindResumed, received: 8, ack: 8})
			_, _ = io.Copy(io.Discard, h) // until it hangs up
		})
		l, err := Dial(t.Context(), dial, Config{})
		if err != nil {
			t.Fatal(err)
		}
		send(t, l, "forgotten")
		expect(t, l, "\x00")
		var e *Error
		if _, err := l.Read(make([]byte, 1)); !errors.As(err, &e) || e.Code != tunnel.Internal || !errors.Is(err, ErrProtocol) {
			t.Errorf("read: %v", err)
		}
		_ = l.Close()
		wg.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		opened := r.shake(t).open(t)
		l := <-r.accepted
		h := r.shake(t)
		h.ask(t, resumption(opened, opened.secret, 1))
		h.frame(head{kind: frameData, length: 1, offset: 1}) // what it no longer has, it skips
		var e *Error
		if _, err := l.Read(make([]byte, 1)); !errors.As(err, &e) || e.Code != tunnel.Internal || !errors.Is(err, ErrProtocol) {
			t.Errorf("read: %v", err)
		}
		r.close(t, l)
	})
}

// A zombie, stopped while another transport took over, writes nothing that
// counts when it wakes up: neither to its own old connection nor by its late
// resumption.
func TestZombie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		zombie := r.shake(t)
		opened := zombie.open(t)
		l := <-r.accepted
		late := r.shake(t) // dialed before, and stopped before it could say anything
		h := r.shake(t)
		h.ask(t, resumption(opened, opened.secret, 2))
		h.frame(head{kind: frameData, length: 2})
		expect(t, l, "\x00\x00")
		zombie.frame(head{kind: frameData, length: 5})
		if m := late.ask(t, resumption(opened, opened.secret, 1)); m.kind != kindRefused {
			t.Errorf("late resumption: %+v", m)
		}
		h.frame(head{kind: frameData, length: 1, offset: 2})
		expect(t, l, "\x00")
		synctest.Wait()
		if s := l.Stats(); s.Received != 3 || s.Resumes != 1 {
			t.Errorf("%+v", s)
		}
		r.close(t, l)
	})
}
