// Guard: what the library reads and writes, followed frame by frame.

package overyamux

import (
	"encoding/binary"
	"errors"
	"net"
	"time"
)

// maxPings is how many pings a peer may send within a second. The library sends one an
// interval, and answers each in a goroutine of its own. From a peer that reads no answers
// these would gather for as long as writeTimeout.
const maxPings = 100

var errPings = errors.New("peer floods this end with pings")

// yamux's header (spec.md): version, type, flags of two bytes, stream and length of four.
const (
	headerSize = 12

	typeData         = 0
	typeWindowUpdate = 1
	typePing         = 2

	flagSYN = 1
	flagFIN = 4
	flagRST = 8
)

// A guard is a connection on which no more pings come than may, and no more data than
// there is room for. Read and Write have one caller each.
type guard struct {
	net.Conn
	unread   *unread
	in, out  frames
	pings    int
	since    time.Time
	rejected error // by the functions below
}

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.in.follow(p[:n], g.head, g.data)
	if g.rejected != nil {
		return 0, g.rejected
	}
	return n, err
}

// Write implements net.Conn.
func (g *guard) Write(p []byte) (int, error) {
	g.out.follow(p, g.said, func(uint32, int) {})
	return g.Conn.Write(p)
}

// head takes a header of the peer's.
func (g *guard) head(h *header) {
	switch h[1] {
	case typeData, typeWindowUpdate:
		g.unread.head(h.stream(), h.flags(), false)
	case typePing:
		if now := time.Now(); now.Sub(g.since) > time.Second {
			g.pings, g.since = 0, now
		}
		if g.pings++; g.pings > maxPings {
			g.rejected = errPings
		}
	}
}

// data takes bytes of the peer's.
func (g *guard) data(stream uint32, n int) {
	if !g.unread.came(stream, n) {
		g.rejected = errUnread
	}
}

// said takes a header of this end's.
func (g *guard) said(h *header) {
	if h[1] == typeData || h[1] == typeWindowUpdate {
		g.unread.head(h.stream(), h.flags(), true)
	}
}

// A header is that of a frame.
type header [headerSize]byte

func (h *header) flags() uint16  { return binary.BigEndian.Uint16(h[2:]) }
func (h *header) stream() uint32 { return binary.BigEndian.Uint32(h[4:]) }
func (h *header) length() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// A frames is where one direction of a connection is.
type frames struct {
	header header
	have   int    // bytes of header
	body   uint32 // bytes of data to come, behind the header
}

// follow calls head with each header that p completes, and data for the bytes behind it.
func (f *frames) follow(p []byte, head func(*header), data func(stream uint32, n int)) {
	for len(p) > 0 {
		if f.body > 0 {
			n := min(int64(f.body), int64(len(p)))
			f.body, p = f.body-uint32(n), p[n:] //nolint:gosec // at most what it was
			data(f.header.stream(), int(n))
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have < headerSize {
			return
		}
		f.have = 0
		if f.header[1] == typeData {
			f.body = f.header.length()
		}
		head(&f.header)
	}
}
