package link

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

func examples() []message {
	t := terms{buffer: minBuffer, keepalive: time.Second, window: time.Minute}
	return []message{
		{kind: kindOpen, terms: t},
		{kind: kindOpened, id: linkID{1, 15: 2}, secret: secret{3, 31: 4}, terms: t},
		{kind: kindResume, id: linkID{5}, secret: secret{6}, attempt: 7, received: 9, ack: 8},
		{kind: kindResumed, secret: secret{10}, received: 12, ack: 11},
		{kind: kindRefused, code: tunnel.Busy, text: "too many links"},
		{kind: kindRefused, code: tunnel.Lost},
	}
}

func TestMessages(t *testing.T) {
	for _, m := range examples() {
		b := m.encode()
		got, err := readMessage(io.MultiReader(bytes.NewReader(b), bytes.NewReader([]byte("rest"))))
		if err != nil || got != m {
			t.Errorf("%+v: %+v, %v", m, got, err)
		}
		for n := range b {
			if _, err := decodeMessage(b[:n]); !errors.Is(err, ErrProtocol) {
				t.Errorf("kind %d, %d bytes of %d: %v", m.kind, n, len(b), err)
			}
		}
		if _, err := decodeMessage(append(b, 0)); !errors.Is(err, ErrProtocol) {
			t.Errorf("kind %d, a byte too many: %v", m.kind, err)
		}
	}
	long := message{kind: kindRefused, code: 1, text: string(make([]byte, 2*maxText))}
	if m, err := decodeMessage(long.encode()); err != nil || len(m.text) != maxText {
		t.Errorf("long text: %d, %v", len(m.text), err)
	}
	if _, err := readMessage(bytes.NewReader([]byte{wireVersion, kindRefused, 0xff, 0xff})); !errors.Is(err, ErrProtocol) {
		t.Errorf("long message: %v", err)
	}
	if _, err := decodeMessage((&message{kind: kindResumed, received: 1, ack: 2}).encode()); !errors.Is(err, ErrProtocol) {
		t.Errorf("ack beyond received: %v", err)
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range examples() {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("error: %v", err)
			}
			return
		}
		if again := m.encode(); !bytes.Equal(again, b) {
			t.Errorf("%x encodes as %x", b, again)
		}
	})
}

func FuzzHead(f *testing.F) {
	for _, h := range []head{
		{kind: frameData, length: maxBody, offset: 1, ack: 2},
		{kind: frameAck},
		{kind: frameBye, offset: 1 << 40},
		{kind: framePing, allowed: longestSilence, rtt: 30 * time.Millisecond},
		{kind: framePong},
	} {
		b := make([]byte, h.size())
		h.put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) < headSize(b[0]) {
			return
		}
		b = b[:headSize(b[0])]
		h, err := decodeHead(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("error: %v", err)
			}
			return
		}
		again := make([]byte, h.size())
		if h.put(again); !bytes.Equal(again, b) {
			t.Errorf("%x encodes as %x", b, again)
		}
	})
}

// A ping says what it can: the rest is cut off.
func TestPingRange(t *testing.T) {
	for _, tc := range []struct{ allowed, rtt, wantAllowed, wantRTT time.Duration }{
		{14 * time.Second, 1234567, 14 * time.Second, 1234 * time.Microsecond},
		{-1, -1, 0, 0},
		{1000 * time.Hour, 1000 * time.Hour, (1<<24 - 1) * time.Millisecond, (1<<32 - 1) * time.Microsecond},
	} {
		b := make([]byte, pingSize)
		head{kind: framePing, allowed: tc.allowed, rtt: tc.rtt}.put(b)
		h, err := decodeHead(b)
		if err != nil || h.allowed != tc.wantAllowed || h.rtt != tc.wantRTT {
			t.Errorf("%v, %v: %+v, %v", tc.allowed, tc.rtt, h, err)
		}
	}
}

// The ring against a slice.
func FuzzRing(f *testing.F) {
	f.Add([]byte{1, 200, 3, 128, 255, 129})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const limit = 256 << 10
		budget := NewBudget(limit)
		r := ring{limit: limit, budget: budget}
		var model []byte // from r.base on
		for i, op := range ops {
			if op < 128 {
				p := randomBytes(uint64(op), int(op)*int(op)*8)
				n := r.append(p)
				model = append(model, p[:n]...)
				if n < len(p) && r.held < limit-chunkSize {
					t.Fatalf("full with %d bytes of %d", r.held, limit)
				}
			} else {
				n := len(model) * int(op-127) / 128
				r.free(r.base + uint64(n))
				model = model[n:]
			}
			if got := contents(&r); !bytes.Equal(got, model) {
				t.Fatalf("op %d: %d bytes in the ring, %d in the model", i, len(got), len(model))
			}
			if r.held > limit || budget.Used() > int64(r.held) || (len(model) == 0 && r.held > 0) {
				t.Fatalf("op %d: holds %d, budget %d", i, r.held, budget.Used())
			}
		}
		r.drop()
		if r.held != 0 || budget.Used() != 0 {
			t.Fatalf("dropped, holds %d, budget %d", r.held, budget.Used())
		}
	})
}

func contents(r *ring) []byte {
	var b []byte
	for at := r.base; at < r.end; {
		c := r.at(at)
		b = append(b, c.buf[at-c.start:c.n]...)
		at = c.end()
	}
	return b
}
