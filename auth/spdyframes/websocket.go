package spdyframes

// The WebSocket frames of clients.

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
)

const (
	// maxFrame bounds a WebSocket frame, in bytes: the library keeps a whole one. Those of kubectl
	// have about 32 KiB. Other clients send in one what they are given, such as an archive.
	maxFrame = 16 << 20
	// maxSizesFrame bounds one with terminal sizes, which may be in base64.
	maxSizesFrame = 2 * maxSize

	// The first byte of a frame is its channel, and in base64 the digit of that. The protocols of
	// exec and attach ignore what would be the other's.
	sizesChannel      = 4
	sizesChannelDigit = '0' + sizesChannel

	// Frames from closeOpcode to pongOpcode have no channel.
	closeOpcode = 0x8
	pongOpcode  = 0xa
)

// GuardWebSocket returns w with a Hijack of which the reader fails with [ErrRefused] at a WebSocket
// frame of more than 16 MiB, and, if sizes is set, at a terminal size of more than 1 KiB on channel 4,
// where exec and attach have them. What is read from the connection itself is not guarded. The
// connection is an [Unread], which calls gone.
func GuardWebSocket(w http.ResponseWriter, sizes bool, gone func()) http.ResponseWriter {
	return &webSocketWriter{w, sizes, gone}
}

// A webSocketWriter has no Unwrap: the node's library would hijack what is inside.
type webSocketWriter struct {
	http.ResponseWriter
	sizes bool
	gone  func()
}

// Hijack implements http.Hijacker.
func (w *webSocketWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u := newWebSocketUnread(conn, rw.Reader, w.gone)
	return u, bufio.NewReadWriter(bufio.NewReader(&webSocket{from: u, withSizes: w.sizes}), bufio.NewWriter(u)), nil
}

// A webSocket reads the frames of a client (RFC 6455, 5.2). It is for one goroutine.
type webSocket struct {
	from      io.Reader
	withSizes bool
	err       error

	header [14]byte
	have   int    // of the header
	left   uint64 // of the frame after its header
	key    []byte // the frame's mask, if it has one

	// The library takes each frame for a message, even one that continues another.
	looked  bool   // whether the frame may have sizes
	payload []byte // of such a frame so far
	raw     sizes
	encoded sizes // in base64
}

// Read implements io.Reader. After a frame that is not passed on all reads fail.
func (g *webSocket) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.from.Read(p)
	if g.err = g.take(p[:n]); g.err != nil {
		return 0, g.err
	}
	return n, err
}

func (g *webSocket) take(b []byte) error {
	for len(b) > 0 {
		var n int
		var err error
		if g.left == 0 {
			n = copy(g.header[g.have:g.headerSize()], b)
			if g.have += n; g.have == g.headerSize() {
				err = g.begin()
			}
		} else {
			n = int(min(g.left, uint64(len(b))))
			err = g.look(b[:n])
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// headerSize is the size of the header, or of the part that tells it.
func (g *webSocket) headerSize() int {
	const fixed, mask = 2, 4
	if g.have < fixed {
		return fixed
	}
	n := fixed
	switch g.header[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if g.header[1]&0x80 != 0 {
		n += mask
	}
	return n
}

// begin reads a whole header.
func (g *webSocket) begin() error {
	switch n := g.header[1] & 0x7f; n {
	case 126:
		g.left = uint64(binary.BigEndian.Uint16(g.header[2:]))
	case 127:
		g.left = binary.BigEndian.Uint64(g.header[2:])
	default:
		g.left = uint64(n)
	}
	if g.left > maxFrame {
		return fmt.Errorf("%w: a WebSocket frame of %d bytes", ErrRefused, g.left)
	}
	g.key = nil
	if g.header[1]&0x80 != 0 {
		g.key = g.header[g.have-4 : g.have]
	}
	g.have = 0
	opcode := g.header[0] & 0xf
	g.looked = g.withSizes && (opcode < closeOpcode || opcode > pongOpcode)
	g.payload = g.payload[:0]
	return nil
}

// look reads a part of a frame after its header.
func (g *webSocket) look(b []byte) error {
	g.left -= uint64(len(b))
	if !g.looked {
		return nil
	}
	for _, c := range b {
		if g.key != nil {
			c ^= g.key[len(g.payload)%len(g.key)]
		}
		g.payload = append(g.payload, c)
		if channel := g.payload[0]; channel != sizesChannel && channel != sizesChannelDigit {
			g.looked = false
			return nil
		}
		if len(g.payload) > maxSizesFrame {
			return fmt.Errorf("%w: a WebSocket frame with more than %d bytes of terminal sizes", ErrRefused, maxSizesFrame)
		}
	}
	if g.left > 0 {
		return nil
	}
	text := g.payload[1:]
	if g.payload[0] == sizesChannel {
		return g.raw.take(text)
	}
	n, err := base64.StdEncoding.Decode(text, text)
	if err != nil {
		return nil //nolint:nilerr // the library leaves it out
	}
	return g.encoded.take(text[:n])
}
