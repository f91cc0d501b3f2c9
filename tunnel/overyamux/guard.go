// Guard: what the library reads, without floods of pings.

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
	typeData   = 0
	typePing   = 2
)

// A guard is a connection that counts the pings that come on it. Read has one caller.
type guard struct {
	net.Conn
	header [headerSize]byte
	have   int    // bytes of header
	body   uint32 // bytes of data to come, behind the header

	pings int
	since time.Time
}

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if n > 0 && !g.allows(p[:n]) {
		return 0, errPings
	}
	return n, err
}

// allows follows the frames in p.
func (g *guard) allows(p []byte) bool {
	for len(p) > 0 {
		if g.body > 0 {
			n := uint32(min(int64(g.body), int64(len(p))))
			g.body, p = g.body-n, p[n:]
			continue
		}
		n := copy(g.header[g.have:], p)
		g.have, p = g.have+n, p[n:]
		if g.have < headerSize {
			break
		}
		g.have = 0
		switch g.header[1] {
		case typeData:
			g.body = binary.BigEndian.Uint32(g.header[8:])
		case typePing:
			if now := time.Now(); now.Sub(g.since) > time.Second {
				g.pings, g.since = 0, now
			}
			if g.pings++; g.pings > maxPings {
				return false
			}
		}
	}
	return true
}
