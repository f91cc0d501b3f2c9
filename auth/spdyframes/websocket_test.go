package spdyframes

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/net/websocket"
)

const (
	binaryOpcode = 0x2
	pingOpcode   = 0x9
)

// frame appends a masked frame.
func frame(out []byte, opcode byte, payload string) []byte {
	out = append(out, 0x80|opcode)
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	key := []byte{7, 0, 0xff, 42}
	out = append(out, key...)
	for i := range len(payload) {
		out = append(out, payload[i]^key[i%len(key)])
	}
	return out
}

// TestWebSocketPasses: what clients send comes out as it was, whatever the pieces in which it is read.
func TestWebSocketPasses(t *testing.T) {
	size := `{"Width":80,"Height":24}` + "\n"
	var sent []byte
	for range maxSize {
		sent = frame(sent, binaryOpcode, "\x04"+size)
		sent = frame(sent, binaryOpcode, "4"+base64.StdEncoding.EncodeToString([]byte(size)))
		sent = frame(sent, binaryOpcode, "4not base64")
	}
	sent = frame(sent, pingOpcode, "\x04"+strings.Repeat("x", 100))
	sent = frame(sent, binaryOpcode, "")
	sent = frame(sent, binaryOpcode, "\x00"+strings.Repeat("x", 40<<10))
	sent = frame(sent, binaryOpcode, "\x00"+strings.Repeat("x", 2<<20))
	sent = frame(sent, binaryOpcode, "\xff\x00")
	for what, from := range map[string]io.Reader{
		"whole": bytes.NewReader(sent), "in halves": iotest.HalfReader(bytes.NewReader(sent)), "byte by byte": iotest.OneByteReader(bytes.NewReader(sent)),
	} {
		got, err := io.ReadAll(&webSocket{from: from, withSizes: true})
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d bytes came out as %d, %v", what, len(sent), len(got), err)
		}
	}
	// Other requests have other data on the channel.
	sent = frame(nil, binaryOpcode, "\x04"+strings.Repeat("x", 2*maxSizesFrame))
	if got, err := io.ReadAll(&webSocket{from: bytes.NewReader(sent)}); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("without sizes: %d bytes came out as %d, %v", len(sent), len(got), err)
	}
}

func TestWebSocketRefuses(t *testing.T) {
	const part = 500
	xs := strings.Repeat("x", part)
	in64 := "4" + base64.StdEncoding.EncodeToString([]byte(xs+"x"))
	many := func(opcode byte, payload string) (sent []byte) {
		for range maxSize/part + 1 {
			sent = frame(sent, binaryOpcode, "\x00stdin")
			sent = frame(sent, opcode, payload)
		}
		return sent
	}
	var mixed []byte
	for range 3 {
		mixed = frame(frame(mixed, binaryOpcode, "\x04"+xs), binaryOpcode, "4"+base64.StdEncoding.EncodeToString([]byte("[]")))
	}
	for what, sent := range map[string][]byte{
		"a size with others in base64":         mixed,
		"a large frame":                        frame(nil, binaryOpcode, strings.Repeat("x", maxFrame+1)),
		"a huge frame":                         {0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"a frame with a large size":            frame(nil, binaryOpcode, "\x04"+strings.Repeat("x", maxSize+1)),
		"a size in many frames":                many(binaryOpcode, "\x04"+xs),
		"a size in frames that continue":       many(0, "\x04"+xs),
		"a size in frames of a reserved kind":  many(0xf, "\x04"+xs),
		"a size in frames of base64":           many(binaryOpcode, in64),
		"a large frame for sizes":              frame(nil, binaryOpcode, "4"+strings.Repeat("-", maxSizesFrame)),
		"sizes in an unmasked frame":           append([]byte{0x82, 126, 0x04, 0x02, sizesChannel}, strings.Repeat("x", maxSize+1)...),
		"a frame that is large without a mask": {0x82, 127, 0, 0, 0, 0, 2, 0, 0, 0},
	} {
		for how, from := range map[string]io.Reader{"whole": bytes.NewReader(sent), "byte by byte": iotest.OneByteReader(bytes.NewReader(sent))} {
			g := &webSocket{from: from, withSizes: true}
			_, err := io.ReadAll(g)
			if !errors.Is(err, ErrRefused) {
				t.Errorf("%s, %s: %v", what, how, err)
			}
			if _, again := g.Read(make([]byte, 1)); !errors.Is(again, ErrRefused) {
				t.Errorf("%s, %s, and then: %v", what, how, again)
			}
		}
	}
}

// A hijacked is the ResponseWriter of a client on a connection.
type hijacked struct {
	http.ResponseWriter
	net.Conn
	from io.Reader
}

func (h *hijacked) Write(b []byte) (int, error) { return h.Conn.Write(b) }

func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.Conn, bufio.NewReadWriter(bufio.NewReader(h.from), bufio.NewWriter(h.Conn)), nil
}

// A mute connection takes all that is written.
type mute struct{ net.Conn }

func (mute) Write(b []byte) (int, error) { return len(b), nil }
func (mute) Close() error                { return nil }

func (h *hijacked) Header() http.Header { return http.Header{} }

// upgrade is a request for a WebSocket connection.
func upgrade() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://node/exec", nil)
	for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} {
		r.Header.Set(k, v)
	}
	return r
}

// received is what the library makes of frames.
func received(b []byte) (messages [][]byte) {
	websocket.Server{Handler: func(ws *websocket.Conn) {
		for {
			var message []byte
			if websocket.Message.Receive(ws, &message) != nil {
				return
			}
			messages = append(messages, message)
		}
	}}.ServeHTTP(GuardWebSocket(&hijacked{Conn: mute{}, from: bytes.NewReader(b)}, true, func() {}), upgrade())
	return messages
}

// FuzzWebSocket: no message and no size that the library gets from a guard is large.
func FuzzWebSocket(f *testing.F) {
	f.Add(frame(nil, binaryOpcode, "\x04{\"Width\":80}"), uint16(3))
	f.Add(frame(frame(nil, pingOpcode, "x"), 0, "\x04{\"x\":\""+strings.Repeat("}", 100)), uint16(2000))
	f.Add(frame(nil, binaryOpcode, "4"+base64.StdEncoding.EncodeToString([]byte(`{"x":"}`))), uint16(2000))
	f.Add(frame(nil, binaryOpcode, "\x00"+strings.Repeat("x", 200)), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, times uint16) {
		var raw, in64 []byte
		for _, m := range received(bytes.Repeat(b, min(int(times)%4096, 1<<20/max(1, len(b))))) {
			if len(m) > maxFrame {
				t.Fatalf("a message of %d bytes", len(m))
			}
			switch {
			case len(m) == 0:
			case m[0] == sizesChannel:
				raw = append(raw, m[1:]...)
			case m[0] == sizesChannelDigit:
				text, err := base64.StdEncoding.DecodeString(string(m[1:]))
				if err == nil {
					in64 = append(in64, text...)
				}
			}
		}
		checkSizes(t, raw)
		checkSizes(t, in64)
	})
}

// TestReceived: the fuzzed connection works.
func TestReceived(t *testing.T) {
	sent := frame(frame(nil, binaryOpcode, "\x04{}"), 0, "more")
	if got := fmt.Sprintf("%q", received(sent)); got != `["\x04{}" "more"]` {
		t.Errorf("%s", got)
	}
}
