// A peer that does not keep to the protocol.

package lanes

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A peer that breaks the protocol loses its stream, not the session.
func TestProtocol(t *testing.T) {
	leg := func(number uint64) []byte {
		p := prefix{kind: kindLeg, stream: number}.encode()
		return p[:]
	}
	first := func(more ...byte) []byte { return append([]byte{3, 1, 'x'}, more...) }
	for _, c := range []struct {
		name string
		home []byte // said by the dialing end on its stream
		lane []byte // and on lane 1
		code error
	}{
		{name: "a number that is not its own to give", home: []byte{2, 1, 'x'}, code: tunnel.ErrFrame},
		{name: "the number one", home: []byte{1, 1, 'x'}, code: tunnel.ErrFrame},
		{name: "nonsense", home: first(0, 77), code: tunnel.ErrFrame},
		{name: "a wish at the wrong end", home: first(appendWanted(nil, 2)...), code: tunnel.ErrFrame},
		{name: "a lane that never was", home: first(appendMoved(nil, 5)...), code: tunnel.Lost},
		{name: "a leg on another lane", home: first(appendMoved(nil, 2)...), lane: leg(3), code: tunnel.ErrFrame},
		{name: "nonsense on a lane", home: first(appendMoved(nil, 1)...), lane: binary.BigEndian.AppendUint64([]byte{9}, 3)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dialer, b := inMemoryPair(t)
				accepter := New(b, Config{})
				raw, lane := inMemoryPair(t)
				other, lane2 := inMemoryPair(t)
				if err := errors.Join(accepter.Add(1, lane), accepter.Add(2, lane2)); err != nil {
					t.Fatal(err)
				}
				home, err := dialer.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if c.lane != nil {
					st, oerr := raw.Open(t.Context())
					if oerr != nil {
						t.Fatal(oerr)
					}
					_, _ = st.Write(c.lane)
				}
				_, _ = home.Write(c.home)
				st, err := accepter.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_ = st.SetReadDeadline(time.Now().Add(time.Hour))
				_, err = io.ReadAll(st)
				if c.code != nil && !errors.Is(err, c.code) || c.code == nil && !isTimeout(err) {
					t.Errorf("read: %v", err)
				}
				if c.code != nil {
					if _, err := home.Write([]byte{0}); err == nil {
						t.Error("the peer is not told")
					}
				}
				if accepter.Context().Err() != nil {
					t.Error("the session is over")
				}
				_ = st.Close()
				_, _ = accepter.Close(), other.Close()
			})
		})
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// A leg whose stream nobody knows is given up after a while, at once if its stream
// is no more, and is no stream's second.
func TestStrayLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialer, b := inMemoryPair(t)
		accepter := New(b, Config{})
		raw, lane := inMemoryPair(t)
		if err := accepter.Add(1, lane); err != nil {
			t.Fatal(err)
		}
		begin := func(number uint64) tunnel.Stream {
			st, err := raw.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p := prefix{kind: kindLeg, stream: number}.encode()
			if _, err := st.Write(p[:]); err != nil {
				t.Fatal(err)
			}
			return st
		}
		lives := func(leg tunnel.Stream) bool {
			synctest.Wait()
			_, err := leg.Write([]byte{1})
			return err == nil
		}
		early := begin(11)
		if !lives(early) || lives(begin(11)) {
			t.Error("an early leg does not wait, or a second one does")
		}
		if lives(begin(2)) {
			t.Error("a leg of a stream that this end never opened")
		}
		home, err := dialer.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = home.Write([]byte{3, 1, 'x'})
		st, err := accepter.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if !lives(begin(3)) {
			t.Error("a stream's leg")
		}
		if lives(begin(3)) {
			t.Error("a stream's second leg at the same time")
		}
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, tunnel.ErrFrame) {
			t.Errorf("the stream: %v", err)
		}
		_ = st.Close()
		if lives(begin(3)) {
			t.Error("a leg of a stream that is no more")
		}
		time.Sleep(2 * standard.prefix)
		if lives(early) {
			t.Error("a leg waits for ever")
		}
		for n := range uint64(maxEarly + 1) {
			if leg := begin(101 + 2*n); lives(leg) != (n < maxEarly) {
				t.Errorf("early leg %d lives: %t", n, n >= maxEarly)
			}
		}
		if legs := accepter.legs(); legs != maxEarly {
			t.Errorf("%d legs wait", legs)
		}
		_ = accepter.Close()
	})
}
