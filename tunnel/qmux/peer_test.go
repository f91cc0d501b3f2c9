// What a peer may say, by hand: that which the draft has, that which breaks it, and
// anything.

package qmux

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A handmade peer writes records and reads frames.
type handmade struct {
	t     testing.TB
	conn  net.Conn
	in    recordReader
	rest  []byte
	limit uint64 // of stream 0
}

// byHand makes an accepting session whose peer is the test. With ext the peer knows the
// extension.
func byHand(t testing.TB, ext bool, o tunnel.Options) (*Session, *handmade) {
	t.Helper()
	near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	r := newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil })
	p := newHandmade(t, near)
	accepted := make(chan *Session, 1)
	go func() {
		s, err := r.acceptOwn(context.WithoutCancel(t.Context()), bare{newBatch(far)})
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- s
	}()
	if ext {
		p.begin(terms{keepalive: time.Hour, window: time.Minute})
	} else {
		p.greet(nil)
	}
	s := <-accepted
	t.Cleanup(func() { _, _ = s.Close(), near.Close() })
	return s, p
}

func newHandmade(t testing.TB, c net.Conn) *handmade {
	p := &handmade{t: t, conn: c}
	p.in = newRecordReader(c)
	return p
}

// greet declares the peer's parameters, and hears this end's.
func (p *handmade) greet(j *joining) {
	p.t.Helper()
	p.say((&parameters{data: maxInt, streamData: 1 << 20, theirData: 1 << 20, streams: 8, session: j}).encode())
	if f := p.hear(); f.kind != frameParameters {
		p.t.Fatalf("first frame: %+v", f)
	}
}

// begin asks for a session, and hears what it is called.
func (p *handmade) begin(asked terms) (id sessionID, s secret, t terms) {
	p.t.Helper()
	p.greet(&joining{kind: kindNew, terms: asked, insteadOf: insteadOfNone})
	f := p.hear()
	if f.kind != frameSession {
		p.t.Fatalf("second frame: %+v", f)
	}
	return f.session()
}

// join brings the connection to a session, in place of every other. It returns the
// answer: a SESSION or a CONNECTION_CLOSE.
func (p *handmade) join(id sessionID, s secret, attempt uint64) frame {
	p.t.Helper()
	p.greet(&joining{kind: kindJoin, id: id, secret: s, attempt: attempt, insteadOf: insteadOfAll})
	return p.hear()
}

// say writes a record.
func (p *handmade) say(frames ...[]byte) {
	p.t.Helper()
	b := make([]byte, sizeBytes)
	for _, f := range frames {
		b = append(b, f...)
	}
	putSize(b, len(b)-sizeBytes)
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// hear reads a frame.
func (p *handmade) hear() frame {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(patience))
	for len(p.rest) == 0 {
		frames, _, err := p.in.next()
		if err != nil {
			p.t.Fatalf("read: %v", err)
		}
		p.rest = append([]byte(nil), frames...)
	}
	f, rest, err := next(p.rest)
	if err != nil {
		p.t.Fatalf("frame: %v", err)
	}
	p.rest = rest
	if f.kind == frameMaxStreamData && f.stream == 0 {
		p.limit = f.offset
	}
	return f
}

// await reads frames until there is one of a kind.
func (p *handmade) await(kind uint64) frame {
	p.t.Helper()
	for {
		f := p.hear()
		if f.kind == kind {
			return f
		}
		if f.kind == framePing {
			p.say(appendInts(nil, framePong, f.stream))
		}
		if f.kind == frameClose || f.kind == frameApplicationClose {
			p.t.Fatalf("closed: %+v %s", f, f.data)
		}
	}
}

func streamFrame(id, offset uint64, data string, fin bool) []byte {
	return append(appendStreamHead(nil, id, offset, len(data), fin), data...)
}

// A peer that knows nothing but the draft is served, and told credit as RFC 9000 has it.
func TestPlainPeer(t *testing.T) {
	s, p := byHand(t, false, tunnel.Options{})
	p.say(streamFrame(0, 0, "hello", false))
	st, err := s.Accept(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(st, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := st.Write([]byte("to you")); err != nil {
		t.Fatal(err)
	}
	if f := p.await(frameStream); f.stream != 0 || string(f.data) != "to you" {
		t.Errorf("%+v", f)
	}
	sent := uint64(5)
	for total := 4 * uint64(initialWindow+extraWindow); sent < total; {
		if sent == max(p.limit, initialWindow) {
			p.await(frameMaxStreamData)
		}
		n := min(1<<10, max(p.limit, initialWindow)-sent)
		p.say(streamFrame(0, sent, string(make([]byte, n)), false))
		sent += n
		_, _ = io.ReadFull(st, make([]byte, n)) // or no more credit comes
	}
	p.say(streamFrame(0, sent, "", true))
	if _, err := st.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	if f := p.await(frameStream); !f.fin {
		t.Errorf("%+v", f)
	}
	out, err := s.Open(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = tunnel.Abort(out)
	if f := p.await(frameResetStream); f.stream != 1 {
		t.Errorf("%+v", f)
	}
	p.say(appendInts(nil, framePing, 77))
	if f := p.await(framePong); f.stream != 77 {
		t.Errorf("%+v", f)
	}
	p.say(closeFrame(0, true, "bye"))
	<-s.Context().Done()
	if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) {
		t.Errorf("%v", err)
	}
}

// A peer that breaks the protocol is told RFC 9000's code, and the session is over.
func TestBrokenPeers(t *testing.T) {
	ints := appendInts
	for _, c := range []struct {
		name  string
		plain bool // without the extension
		code  uint64
		says  [][]byte
	}{
		{"empty record", false, errProtocol, [][]byte{{}}},
		{"unknown frame", false, errFrameEncoding, [][]byte{{0x21}}},
		{"prohibited frame", false, errFrameEncoding, [][]byte{{0x01}}},
		{"truncated frame", false, errFrameEncoding, [][]byte{{0x05}}},
		{"parameters twice", false, errProtocol, [][]byte{(&parameters{}).encode()}},
		{"too much on a stream", false, errFlowControl, [][]byte{streamFrame(0, 1<<30, "x", false)}},
		{"more than the limit that was sent", false, errFlowControl, [][]byte{streamFrame(0, initialWindow, "x", false)}},
		{"a reset behind the limit that was sent", false, errFlowControl, [][]byte{ints(nil, frameResetStream, 0, 0, initialWindow+1)}},
		{"too many streams", false, errStreamLimit, [][]byte{streamFrame(backlog<<2, 0, "x", false)}},
		{"a unidirectional stream", false, errStreamLimit, [][]byte{streamFrame(2, 0, "x", false)}},
		{"a unidirectional stream of ours", false, errStreamState, [][]byte{streamFrame(3, 0, "x", false)}},
		{"STOP_SENDING of a unidirectional stream", false, errStreamState, [][]byte{ints(nil, frameStopSending, 2, 0)}},
		{"credit on a unidirectional stream", false, errStreamState, [][]byte{ints(nil, frameMaxStreamData, 2, 0)}},
		{"a unidirectional stream that is blocked", false, errStreamLimit, [][]byte{ints(nil, frameStreamDataBlocked, 2, 0)}},
		{"a unidirectional stream of ours that is blocked", false, errStreamState, [][]byte{ints(nil, frameStreamDataBlocked, 3, 0)}},
		{"too many streams that are blocked", false, errStreamLimit, [][]byte{ints(nil, frameStreamDataBlocked, backlog<<2, 0)}},
		{"a stream of ours that is not open and is blocked", false, errStreamState, [][]byte{ints(nil, frameStreamDataBlocked, 1, 0)}},
		{"a stream that is blocked from the start", false, 0, [][]byte{ints(nil, frameStreamDataBlocked, 0, 0), streamFrame(0, 0, "x", false)}},
		{"more streams than there are ids", false, errFrameEncoding, [][]byte{ints(nil, frameMaxStreams, 1<<60+1)}},
		{"more unidirectional streams than there are ids", false, errFrameEncoding, [][]byte{ints(nil, frameMaxStreamsUni, 1<<60+1)}},
		{"blocked at more streams than there are ids", false, errFrameEncoding, [][]byte{ints(nil, frameStreamsBlocked, 1<<60+1)}},
		{"blocked at more unidirectional streams than there are ids", false, errFrameEncoding, [][]byte{ints(nil, frameStreamsBlockedUni, 1<<60+1)}},
		{"as many streams as there are ids", false, 0, [][]byte{ints(nil, frameMaxStreamsUni, 1<<60), ints(nil, frameStreamsBlockedUni, 1<<60), ints(nil, frameStreamsBlocked, 1<<60)}},
		{"a stream of ours that is not open", false, errStreamState, [][]byte{streamFrame(1, 0, "x", false)}},
		{"data behind the end", false, errFinalSize, [][]byte{streamFrame(0, 0, "end", true), streamFrame(0, 3, "x", false)}},
		{"another end", false, errFinalSize, [][]byte{streamFrame(0, 5, "", true), streamFrame(0, 7, "", true)}},
		{"an end before what has come", false, errFinalSize, [][]byte{streamFrame(0, 0, "hello", false), streamFrame(0, 2, "", true)}},
		{"a reset before what has come", false, errFinalSize, [][]byte{streamFrame(0, 0, "hello", false), ints(nil, frameResetStream, 0, 0, 2)}},
		{"a reset behind the limit", false, errFlowControl, [][]byte{ints(nil, frameResetStream, 0, 0, 1<<40)}},
		{"a gap without the extension", true, errProtocol, [][]byte{streamFrame(0, 5, "x", false)}},
		{"bytes twice without the extension", true, errProtocol, [][]byte{streamFrame(0, 0, "hello", false), streamFrame(0, 0, "hello", false)}},
		{"an overlap without the extension", true, errProtocol, [][]byte{streamFrame(0, 0, "hello", false), streamFrame(0, 4, "o!", false)}},
		{"bytes again after the end without the extension", true, errProtocol, [][]byte{streamFrame(0, 0, "end", true), streamFrame(0, 2, "d", true)}},
		{"FIN again without the extension", true, 0, [][]byte{streamFrame(0, 0, "end", true), streamFrame(0, 3, "", true)}},
		{"bytes of a stream that is forgotten without the extension", true, errProtocol, [][]byte{
			streamFrame(0, 0, "end", false), ints(nil, frameResetStream, 0, 0, 3), ints(nil, frameStopSending, 0, 0), streamFrame(0, 0, "end", false),
		}},
		{"an acknowledgement without the extension", true, errFrameEncoding, [][]byte{streamFrame(0, 0, "x", false), ints(nil, frameStreamAck, 0, 0, 0)}},
		{"the extension without it", true, errFrameEncoding, [][]byte{ints(nil, frameSilence, 1, 1)}},
		{"an acknowledgement of what was not sent", false, errProtocol, [][]byte{streamFrame(0, 0, "x", false), ints(nil, frameStreamAck, 0, 1, 0)}},
		{"of an end that was not sent", false, errProtocol, [][]byte{streamFrame(0, 0, "x", false), ints(nil, frameStreamAckEnd, 0, 0, 0)}},
		{"done with a stream that is open", false, errProtocol, [][]byte{streamFrame(0, 0, "x", false), ints(nil, frameStreamDone, 0)}},
		{"done with a stream that never was", false, errStreamState, [][]byte{ints(nil, frameStreamDone, 400)}},
		{"an answer to no question", false, errProtocol, [][]byte{ints(nil, framePong, 1<<40)}},
		{"an answer to a question that has no number", false, errProtocol, [][]byte{ints(nil, framePong, 0)}},
		{"a question twice", false, errProtocol, [][]byte{ints(nil, framePing, 5), ints(nil, framePing, 5)}},
		{"an earlier question after a later one", false, errProtocol, [][]byte{ints(nil, framePing, 5), ints(nil, framePing, 4)}},
		{"questions from 0 on", false, 0, [][]byte{ints(nil, framePing, 0), ints(nil, framePing, 7)}},
		{"a wish of the wrong end's", false, 0, [][]byte{ints(nil, frameSilence, 1, 1)}},
		{"connections wanted of the end that does not dial", false, errProtocol, [][]byte{ints(nil, frameWant, 5)}},
		{"SESSION from the dialing end", false, errProtocol, [][]byte{sessionFrame(sessionID{}, secret{}, terms{})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, p := byHand(t, !c.plain, tunnel.Options{})
			for _, b := range c.says {
				p.say(b)
			}
			if c.code == 0 { // allowed
				p.say(appendInts(nil, framePing, 99))
				for p.await(framePong).stream != 99 { // answers to earlier ones
				}
				_ = p.conn.Close()
				return
			}
			f := p.hear()
			for f.kind != frameClose {
				f = p.hear()
			}
			_ = p.conn.Close() // it has heard
			if f.value != c.code || len(f.data) == 0 {
				t.Errorf("closed with %#x, %q; want %#x", f.value, f.data, c.code)
			}
			<-s.Context().Done()
			var broken *violation
			if err := context.Cause(s.Context()); !errors.As(err, &broken) || broken.Code != c.code || tunnel.CodeOf(err) != tunnel.Internal {
				t.Errorf("cause: %v", err)
			}
		})
	}
}

// Bytes may come twice, overlap, go back and come in any order, and are read once.
func TestOverlaps(t *testing.T) {
	s, p := byHand(t, true, tunnel.Options{})
	const text = "abcdefghijklmnopqrstuvwxyz"
	at := func(from, to int, fin bool) []byte { return streamFrame(0, uint64(from), text[from:to], fin) }
	p.say(at(10, 14, false), at(20, 26, true), at(12, 18, false), at(8, 22, false), at(16, 17, false))
	p.say(at(0, 3, false), at(0, 1, false), at(2, 9, false), at(0, 26, true), at(25, 26, true), at(26, 26, true))
	st, err := s.Accept(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(st); err != nil || string(got) != text {
		t.Errorf("read %q, %v", got, err)
	}
	if f := p.await(frameStreamAckEnd); f.offset != 26 {
		t.Errorf("%+v", f)
	}
	// Of a stream that is no more the peer is told so.
	p.say(appendInts(nil, frameStopSending, 0, 404))
	_ = st.Close()
	f := p.await(frameResetStream)
	if f.value != 404 {
		t.Errorf("reset with %d, not STOP_SENDING's code", f.value)
	}
	p.say(appendInts(nil, frameStreamAckEnd, 0, f.offset, 0))
	p.say(at(25, 26, true))
	p.await(frameStreamDone)
	if !s.holdsNothing() {
		t.Error("something is held for a stream that is no more")
	}
	_ = p.conn.Close()
}

// holdsNothing says whether the session holds nothing of streams.
func (s *Session) holdsNothing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread == 0 && s.retained == 0 && s.windowSpare == windowBudget
}

// Gaps are bounded, and so are answers that nobody reads.
func TestHostilePeers(t *testing.T) {
	t.Run("gaps", func(t *testing.T) {
		_, p := byHand(t, true, tunnel.Options{})
		for i := range maxGaps + 1 {
			p.say(streamFrame(0, uint64(2*i+1), "x", false))
		}
		f := p.hear()
		for f.kind != frameClose {
			f = p.hear()
		}
		if f.value != errProtocol {
			t.Errorf("%+v", f)
		}
		_ = p.conn.Close()
	})
	t.Run("answers", func(t *testing.T) {
		s, p := byHand(t, true, tunnel.Options{})
		p.say(appendInts(nil, frameResetStream, 0, 0, 0), appendInts(nil, frameStopSending, 0, 0))
		if f := p.await(frameResetStream); f.stream != 0 {
			t.Fatalf("%+v", f)
		}
		p.say(appendInts(nil, frameStreamAckEnd, 0, 0, 0))
		for range maxStreamDone { // asks for answers, and reads none
			p.conn.SetWriteDeadline(time.Now().Add(patience))
			b := append([]byte{0x40, 0}, streamFrame(0, 0, "", true)...)
			for len(b) < 4000 {
				b = append(b, streamFrame(0, 0, "", true)...)
			}
			putSize(b, len(b)-sizeBytes)
			if _, err := p.conn.Write(b); err != nil {
				break
			}
		}
		select {
		case <-s.Context().Done():
		case <-waiting(t).Done():
			t.Error("a peer that reads nothing has its answers kept")
		}
	})
}

// Whatever a peer says, this end neither panics nor keeps anything.
func FuzzPeer(f *testing.F) {
	for _, s := range spellings {
		f.Add(spelled(f, s.bytes), true)
	}
	f.Add(append(streamFrame(0, 0, "hello", false), streamFrame(0, 2, "", true)...), false)
	f.Fuzz(func(t *testing.T, b []byte, ext bool) {
		s, p := byHand(t, ext, tunnel.Options{MaxStreams: 4, Log: nil})
		go func() { _, _ = io.Copy(io.Discard, p.conn) }()
		go func() {
			for {
				st, err := s.Accept(s.Context())
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(st, st); _ = st.Close() }()
			}
		}()
		st, err := s.Open(t.Context())
		if err == nil {
			_, _ = st.Write([]byte("hello"))
		}
		for len(b) > 0 {
			n := min(len(b), 1000)
			r := append([]byte{0, 0}, b[:n]...)
			putSize(r, n)
			if _, err := p.conn.Write(r); err != nil {
				break
			}
			b = b[n:]
		}
		_ = p.conn.Close()
		_ = s.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.retained != 0 {
			t.Errorf("%d bytes kept", s.retained)
		}
	})
}

// TestMaxData: streams that wait for MAX_DATA send once for all frames of a record, and are looked
// at only if they may have waited: each frame has two bytes, and a session many streams.
func TestMaxData(t *testing.T) {
	s, p := byHand(t, true, tunnel.Options{})
	p.say(streamFrame(0, 0, "x", false))
	accepted, err := s.Accept(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	st := accepted.(*stream)
	s.mu.Lock()
	s.dataMax = 0
	s.mu.Unlock()
	says(t, st, "0123456789")
	var raise [][]byte
	for i := range uint64(10) {
		raise = append(raise, appendInts(nil, frameMaxData, i+1))
	}
	p.say(raise...)
	if f := p.await(frameStream); string(f.data) != "0123456789" {
		t.Errorf("sent at first: %q", f.data)
	}
	s.mu.Lock()
	s.dataMax, st.out.fin = maxInt, true // nothing but a look at the stream sends this
	s.mu.Unlock()
	p.say(raise...)
	p.say(appendInts(nil, framePing, 1))
	p.await(framePong)
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.out.state != sendOpen {
		t.Error("MAX_DATA that raises nothing had the stream looked at")
	}
}
