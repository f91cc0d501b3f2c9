// What a peer may say, by hand: that which breaks the protocol, and anything.

package overh2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
)

// A script is what a peer says by hand.
type script struct {
	*http2.Framer
	buf bytes.Buffer
	enc *hpack.Encoder
	blk bytes.Buffer
}

func newScript(client bool) *script {
	s := new(script)
	s.Framer = http2.NewFramer(&s.buf, nil)
	s.AllowIllegalWrites = true
	s.enc = hpack.NewEncoder(&s.blk)
	if client {
		s.buf.WriteString(http2.ClientPreface)
	}
	_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: mux.Least})
	return s
}

func (s *script) headers(id uint32, end bool, fields ...string) {
	s.blk.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.blk.Bytes(), EndHeaders: true, EndStream: end})
}

func (s *script) connect(id uint32, authority string) {
	s.headers(id, false, ":method", "CONNECT", ":authority", authority)
}

// A peer that does what no peer of ours does is cut off.
func TestUnruly(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server bool // the peer is the HTTP/2 server
		say    func(s *script)
	}{
		{"not HTTP/2", false, func(s *script) { s.buf.Reset(); s.buf.WriteString("GET / HTTP/1.1\r\nHost: x\r\n\r\n") }},
		{"no settings", true, func(s *script) { s.buf.Reset(); _ = s.WritePing(false, [8]byte{}) }},
		{"another window", true, func(s *script) { s.buf.Reset(); _ = s.WriteSettings() }},
		{"padding", false, func(s *script) {
			s.connect(1, authorityStream)
			_ = s.WriteDataPadded(1, false, []byte("x"), make([]byte, 9))
		}},
		{"an even stream", false, func(s *script) { s.connect(2, authorityStream) }},
		{"a stream twice", false, func(s *script) { s.connect(1, authorityStream); s.connect(1, authorityStream) }},
		{"another method", false, func(s *script) {
			s.headers(1, false, ":method", "GET", ":scheme", "https", ":path", "/", ":authority", "x")
		}},
		{"another authority", false, func(s *script) { s.connect(1, "example.com") }},
		{"an offer that ends", false, func(s *script) { s.headers(1, true, ":method", "CONNECT", ":authority", authorityOffer) }},
		{"too many offers", false, func(s *script) {
			for id := uint32(1); id <= 2*offers+1; id += 2 {
				s.connect(id, authorityOffer)
			}
		}},
		{"too many streams", false, func(s *script) {
			for id := uint32(1); id <= 2*backlog+1; id += 2 {
				s.connect(id, authorityStream)
			}
		}},
		{"data for no stream", false, func(s *script) { _ = s.WriteData(1, false, nil) }},
		{"data behind the end", false, func(s *script) {
			s.connect(1, authorityStream)
			_ = s.WriteData(1, true, nil)
			_ = s.WriteData(1, false, []byte("x"))
		}},
		{"more than the window", false, func(s *script) {
			s.connect(1, authorityStream)
			for range mux.Least/mux.MaxFrame + 1 {
				_ = s.WriteData(1, false, make([]byte, mux.MaxFrame))
			}
		}},
		{"a frame too large", false, func(s *script) {
			s.connect(1, authorityStream)
			_ = s.WriteData(1, false, make([]byte, mux.MaxFrame+1))
		}},
		{"a stream's window without end", false, func(s *script) { s.connect(1, authorityStream); _ = s.WriteWindowUpdate(1, 1<<31-1) }},
		{"a push", true, func(s *script) {
			_ = s.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}},
		{"an answer to nothing", true, func(s *script) { s.headers(1001, false, ":status", "200") }},
		{"two answers", true, func(s *script) { s.headers(1, false, ":status", "200"); s.headers(1, false, ":status", "200") }},
		{"an answer that is none", true, func(s *script) { s.headers(1, false, ":status", "404") }},
		{"data on an offer", true, func(s *script) { _ = s.WriteData(1, false, []byte("x")) }},
		{"a reset of an offer", true, func(s *script) { _ = s.WriteRSTStream(1, http2.ErrCodeCancel) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
			s := newSession(carrier.NewPipe(c, tunnel.Peer{}), tc.server, tunnel.Options{})
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(io.Discard, peer) })
			say := newScript(!tc.server)
			tc.say(say)
			_, _ = peer.Write(say.buf.Bytes()) // it may be cut off before the end
			<-s.Context().Done()
			if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) || !errors.Is(err, mux.ErrProtocol) {
				t.Errorf("cause: %v", err)
			}
			_ = peer.Close()
			wg.Wait()
		})
	}
}

// A peer that asks and does not listen is cut off before its answers fill the
// memory.
func TestQuestionsAreBounded(t *testing.T) {
	peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
	s := newSession(carrier.NewPipe(c, tunnel.Peer{}), false, tunnel.Options{})
	say := newScript(true)
	for range 1000 {
		_ = say.WritePing(false, [8]byte{})
	}
	for s.Context().Err() == nil {
		if _, err := peer.Write(say.buf.Bytes()); err != nil {
			break
		}
		say.buf.Reset()
		for range 1000 {
			_ = say.WritePing(false, [8]byte{})
		}
	}
	<-s.Context().Done()
	if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) {
		t.Errorf("cause: %v", err)
	}
	_ = peer.Close()
}

// Whatever a peer sends, a session does not panic and can be closed.
func FuzzPeer(f *testing.F) {
	for _, client := range []bool{false, true} {
		s := newScript(client)
		s.connect(1, authorityStream)
		s.connect(3, authorityOffer)
		_ = s.WriteData(1, true, []byte("hello"))
		_ = s.WriteWindowUpdate(1, 1000)
		_ = s.WriteRSTStream(1, http2.ErrCodeCancel)
		_ = s.WriteGoAway(1, http2.ErrCodeNo, nil)
		f.Add(!client, s.buf.Bytes())
		s.headers(1, false, ":status", "200")
		f.Add(!client, s.buf.Bytes())
	}
	f.Fuzz(func(t *testing.T, client bool, in []byte) {
		peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
		s := newSession(carrier.NewPipe(c, tunnel.Peer{}), client, tunnel.Options{})
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
