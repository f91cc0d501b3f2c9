// Tests of how frames are spelled.

package qmux

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/quicvarint"
)

// spelling is a frame, and the bytes that the draft, RFC 9000 or wire.go has for it.
var spellings = []struct {
	name  string
	bytes string
	frame frame
}{
	{"PADDING", "000000", frame{kind: framePadding}},
	{"RESET_STREAM", "04 04 00 40c8", frame{kind: frameResetStream, stream: 4, offset: 200}},
	{"STOP_SENDING", "05 07 01", frame{kind: frameStopSending, stream: 7, value: 1}},
	{"STREAM to the end of the record", "08 04 616263", frame{kind: frameStream, stream: 4, data: []byte("abc")}},
	{"STREAM with everything", "0f 04 4100 02 6162", frame{kind: frameStream, stream: 4, offset: 256, fin: true, data: []byte("ab")}},
	{"STREAM that only ends", "0d 01 05", frame{kind: frameStream, stream: 1, offset: 5, fin: true, data: []byte{}}},
	{"MAX_DATA", "10 80100000", frame{kind: frameMaxData, stream: 1 << 20}},
	{"MAX_STREAM_DATA", "11 08 7fff", frame{kind: frameMaxStreamData, stream: 8, offset: 0x3fff}},
	{"MAX_STREAMS", "12 40ff", frame{kind: frameMaxStreams, stream: 255}},
	{"DATA_BLOCKED", "14 00", frame{kind: frameDataBlocked}},
	{"STREAM_DATA_BLOCKED", "15 04 09", frame{kind: frameStreamDataBlocked, stream: 4, offset: 9}},
	{"STREAMS_BLOCKED", "16 03", frame{kind: frameStreamsBlocked, stream: 3}},
	{"CONNECTION_CLOSE", "1c 0a 00 02 6e6f", frame{kind: frameClose, value: errProtocol, data: []byte("no")}},
	{"CONNECTION_CLOSE of the application", "1d 06 00", frame{kind: frameApplicationClose, value: 6, data: []byte{}}},
	{"QX_TRANSPORT_PARAMETERS", "ff5153300d0a0d0a 02 0801", frame{kind: frameParameters, data: []byte{8, 1}}},
	{"QX_PING", "f48c67529ef8c7bd 05", frame{kind: framePing, stream: 5}},
	{"QX_PING, the answer", "f48c67529ef8c7be 05", frame{kind: framePong, stream: 5}},
	{"STREAM_ACK", "6a41 04 4100 8004 0000", frame{kind: frameStreamAck, stream: 4, offset: 256, value: 1 << 18}},
	{"STREAM_ACK of the end", "6a42 04 05 4800", frame{kind: frameStreamAckEnd, stream: 4, offset: 5, value: 2048}},
	{"STREAM_DONE", "6a43 04", frame{kind: frameStreamDone, stream: 4}},
	{"SILENCE", "6a44 76b0 43e8", frame{kind: frameSilence, offset: 14000, value: 1000}},
	{"WANT_CONNECTIONS", "6a45 03", frame{kind: frameWant, stream: 3}},
	{"PATH_DOUBTED", "6a46 02", frame{kind: frameDoubted, stream: 2}},
}

func spelled(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(text), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSpellings(t *testing.T) {
	for _, s := range spellings {
		b := spelled(t, s.bytes)
		f, rest, err := next(b)
		if err != nil || len(rest) > 0 || !same(f, s.frame) {
			t.Errorf("%s: %+v, %x left, %v; want %+v", s.name, f, rest, err, s.frame)
		}
		if s.frame.kind == framePadding || s.frame.kind == frameStream && s.frame.offset == 0 {
			continue // shorter is something else, and still a frame
		}
		for n := range b {
			if _, _, err := next(b[:n]); err == nil {
				t.Errorf("%s: %d bytes of it are a frame", s.name, n)
			}
		}
	}
}

func same(a, b frame) bool {
	return bytes.Equal(a.data, b.data) && a.kind == b.kind && a.stream == b.stream && a.offset == b.offset && a.value == b.value && a.fin == b.fin
}

// What the draft forbids, and what nobody knows, is an error of the draft's kind.
func TestForbiddenFrames(t *testing.T) {
	for _, text := range []string{
		"01", "02 00 00 00 00", "06 00 00", "07 00", "18 00 00 00", "19 00", "1a 0000000000000000", "1b 0000000000000000", "1e", "30", "40ff",
		"", "0c 04 ffffffffffffffff 61",
	} {
		_, _, err := next(spelled(t, text))
		var p *violation
		if !errors.As(err, &p) || p.Code != errFrameEncoding {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestParameters(t *testing.T) {
	p := parameters{data: maxInt, streamData: initialWindow, theirData: 12345, streams: 256, record: maxRecord, session: &joining{
		kind: kindJoin, id: sessionID{1, 2, 3}, secret: secret{4, 5, 6}, attempt: 7, insteadOf: insteadOfAll,
	}}
	for _, p := range []parameters{p, {record: maxRecord}, {record: maxRecord, server: "a"}, {record: maxRecord, server: strings.Repeat("a", 255)}, {record: maxRecord, session: &joining{
		kind: kindNew, terms: terms{keepalive: 14 * time.Second, window: time.Minute}, insteadOf: insteadOfNone,
	}}} {
		f, rest, err := next(p.encode())
		if err != nil || len(rest) > 0 || f.kind != frameParameters {
			t.Fatalf("%+v, %x left, %v", f, rest, err)
		}
		if got, err := parseParameters(f.data); err != nil || !reflect.DeepEqual(*got, p) {
			t.Errorf("%+v, %v; want %+v", got, err, p)
		}
	}
	for name, text := range map[string]string{
		"original_destination_connection_id": "00 00", "ack_delay_exponent": "0a 01 03", "twice": "08 01 05 08 01 06", "no integer": "04 02 01 01",
		"cut short": "04 04 80", "too many streams": "08 08 ffffffffffffffff", "too many unidirectional streams": "09 08 d000000000000001", "small records": "c571c59429cd0845 01 05",
		"session of another size": "cb8f7a1c4d5e6f21 01 00", "server without a name": "cb8f7a1c4d5e6f22 00",
		"server with a long name": "cb8f7a1c4d5e6f22 4100" + strings.Repeat(" 61", 256),
	} {
		_, err := parseParameters(spelled(t, text))
		var p *violation
		if !errors.As(err, &p) || p.Code != errParameter {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := parseParameters(spelled(t, "20 02 4400 01 04 80004e20")); err != nil || p.idle != 20*time.Second {
		t.Errorf("an unknown parameter and an idle timeout: %+v, %v", p, err)
	}
	many := parameters{data: 7}
	b := many.encode()
	for id := uint64(1000); len(b) < maxRecord-10; id++ {
		b = append(quicvarint.Append(b, id), 0)
	}
	if p, err := parseParameters(b[9:]); err != nil || p.data != 7 {
		t.Errorf("a record full of unknown parameters: %+v, %v", p, err)
	}
}

// A frame that was read can be read again from what it says of itself.
func FuzzFrames(f *testing.F) {
	for _, s := range spellings {
		f.Add(spelled(f, s.bytes))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			fr, rest, err := next(b)
			if err != nil {
				var p *violation
				if !errors.As(err, &p) {
					t.Fatalf("%v", err)
				}
				return
			}
			if len(rest) >= len(b) {
				t.Fatal("a frame of no bytes")
			}
			switch fr.kind {
			case frameStream:
				again := append(appendStreamHead(nil, fr.stream, fr.offset, len(fr.data), fr.fin), fr.data...)
				if g, _, err := next(again); err != nil || !same(fr, g) {
					t.Fatalf("%+v is %+v again, %v", fr, g, err)
				}
			case frameParameters:
				if p, err := parseParameters(fr.data); err == nil && p.record < maxRecord {
					t.Fatalf("%+v", p)
				}
			}
			b = rest
		}
	})
}

// Records come as they were sent, in whatever pieces and with whatever pauses they arrive.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{0x40, 0x01, 0x00, 0x02, 0x10, 0x00}, uint8(1))
	f.Add(append([]byte{0x7f, 0xfe}, make([]byte, maxRecord)...), uint8(200))
	for n := idleBuffer - 9; n <= idleBuffer; n++ { // a Size may be longer than it has to be
		for _, size := range []int{2, 4, 8} {
			f.Add(append(quicvarint.AppendWithLen(nil, uint64(n), size), make([]byte, n)...), uint8(200))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		r := newRecordReader(&pieces{b: b, step: int(step) + 1})
		defer r.drop()
		var got []byte
		for {
			frames, _, err := r.next()
			if errors.Is(err, errWouldBlock) {
				continue
			}
			if err != nil {
				break
			}
			if len(frames) > maxRecord {
				t.Fatalf("%d bytes of frames", len(frames))
			}
			got = append(got, frames...)
		}
		var want []byte
		for len(b) > 0 {
			d := decoder{b: b}
			n := d.int()
			if n > maxRecord {
				break
			}
			frames := d.bytes(n)
			if d.bad {
				break
			}
			want, b = append(want, frames...), d.b
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes of frames, want %d", len(got), len(want))
		}
	})
}

// pieces is a reader of a few bytes at a time, with a pause before each.
type pieces struct {
	b     []byte
	step  int
	ready bool
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, errors.New("the end")
	}
	if p.ready = !p.ready; p.ready {
		return 0, errWouldBlock
	}
	n := copy(b, p.b[:min(p.step, len(p.b))])
	p.b = p.b[n:]
	return n, nil
}
