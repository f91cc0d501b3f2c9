// What a peer may say, by hand: that which breaks the protocol, and anything.

package overyamux

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
)

// frames spells frames.
type frames []byte

func (b frames) add(kind byte, flags uint16, id uint32, length int, body ...byte) frames {
	h := newHeader(kind, flags, id, length)
	return append(append(b, h[:]...), body...)
}

// accepting is the accepting end of a session, and its peer's connection.
func accepting() (*mux.Session, *memnet.Conn) {
	peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
	return newSession(carrier.NewPipe(c, tunnel.Peer{}), false, tunnel.Options{}), peer
}

// A peer that does what no peer of ours does is cut off.
func TestUnruly(t *testing.T) {
	var floods frames
	for id := uint32(1); id < 2*(backlog+1); id += 2 {
		floods = floods.add(typeWindow, flagSYN, id, 0)
	}
	opened := frames(nil).add(typeWindow, flagSYN, 1, 0)
	for _, tc := range []struct {
		name string
		send frames
	}{
		{"not yamux", frames("GET / HTTP/1.1\r\n\r\n")},
		{"another version", frames{9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"ping", frames(nil).add(typePing, flagSYN, 0, 1)},
		{"no such type", frames(nil).add(7, 0, 0, 0)},
		{"no such flag", frames(nil).add(typeWindow, 1<<9, 1, 0)},
		{"stream zero", frames(nil).add(typeWindow, flagSYN, 0, 0)},
		{"a stream of ours", frames(nil).add(typeWindow, flagSYN, 2, 0)},
		{"a stream twice", opened.add(typeWindow, flagSYN, 1, 0)},
		{"an older stream", frames(nil).add(typeWindow, flagSYN, 3, 0).add(typeWindow, flagSYN, 1, 0)},
		{"too many streams", floods},
		{"data for no stream", frames(nil).add(typeData, 0, 1, 1, 'x')},
		{"data for a stream of ours", frames(nil).add(typeData, 0, 2, 1, 'x')},
		{"an answer to nothing", frames(nil).add(typeWindow, flagACK, 2, 0)},
		{"an answer to itself", opened.add(typeWindow, flagACK, 1, 0)},
		{"data behind the end", opened.add(typeData, flagFIN, 1, 0).add(typeData, 0, 1, 1, 'x')},
		{"two ends", opened.add(typeData, flagFIN, 1, 0).add(typeWindow, flagFIN, 1, 0)},
		{"more than the window", opened.add(typeData, 0, 1, mux.Least+1, make([]byte, mux.Least+1)...)},
		{"much more than the window", opened.add(typeData, 0, 1, 1<<30, make([]byte, 2*mux.Least)...)},
		{"a window without end", opened.add(typeWindow, 0, 1, 1<<32-1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, peer := accepting()
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(io.Discard, peer) })
			_, _ = peer.Write(tc.send) // it may be cut off before the end
			<-s.Context().Done()
			if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) || !errors.Is(err, mux.ErrProtocol) {
				t.Errorf("cause: %v", err)
			}
			_ = peer.Close()
			wg.Wait()
		})
	}
}

// Frames may be cut anywhere on their way, and be larger than ours are.
func TestFramesInPieces(t *testing.T) {
	s, peer := accepting()
	defer peer.Close()
	defer s.Close()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, peer) })
	defer wg.Wait()
	defer peer.Close()
	want := bytes.Repeat([]byte("0123456789"), 5000)
	in := frames(nil).add(typeWindow, flagSYN, 1, 0).
		add(typeData, 0, 1, 10, want[:10]...).
		add(typeData, 0, 1, len(want)-10, want[10:]...).
		add(typeWindow, flagFIN, 1, 0)
	for len(in) > 0 {
		n := min(len(in), 1+len(in)%1013)
		if _, err := peer.Write(in[:n]); err != nil {
			t.Fatal(err)
		}
		in = in[n:]
	}
	st, err := s.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(want), err)
	}
	_ = st.Close()
}

// Whatever a peer sends, a session does not panic and can be closed.
func FuzzPeer(f *testing.F) {
	in := frames(nil).add(typeWindow, flagSYN, 1, 1000).add(typeData, 0, 1, 5, []byte("hello")...)
	f.Add([]byte(in))
	f.Add([]byte(in.add(typeData, flagFIN, 1, 0).add(typeGoAway, 0, 0, goAwayNormal)))
	f.Add([]byte(in.add(typeWindow, flagRST, 1, 0).add(typeWindow, 0, 1, 7)))
	f.Add([]byte(in.add(typeData, 0, 1, 5000, make([]byte, 5000)...)))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, peer := accepting()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, peer) })
		_, _ = peer.Write(in)
		_ = peer.CloseWrite()
		<-s.Context().Done()
		if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) {
			t.Errorf("cause: %v", err)
		}
		_ = peer.Close()
		wg.Wait()
	})
}
