// Sending: one goroutine, whatever has gathered.

package link

import (
	"sync"
	"time"
)

// outbound is what a link knows of its own bytes; the link's mu guards it.
type outbound struct {
	ring     ring
	sent     uint64 // offset of the next byte to send on the transport
	high     uint64 // of the first byte that was never sent
	deadline deadline
	writing  bool // somebody is in Write and has its turn
	waiting  int  // in Write
	ack      bool // one is due
	ping     bool // likewise
	pong     bool // likewise
	deaf     bool // likewise; the transport is given up soon after
	bye      bool // has gone out on this transport
}

// scratches recycles the buffers in which a frame's head meets its body. It is a
// cache and holds nothing that anybody could observe.
var scratches = sync.Pool{New: func() any { return new([record]byte) }}

// send is the goroutine that writes to transports. There is one, so no two
// transports are ever written to at a time.
func (l *Link) send() {
	l.mu.Lock()
	for {
		t, h, c := l.nextLocked()
		if t == nil {
			break
		}
		var body []byte
		if c != nil {
			c.lent = true
			body = c.buf[h.offset-c.start:][:h.length]
		}
		l.mu.Unlock()
		began := l.now()
		err := t.write(h, body)
		l.mu.Lock()
		if c != nil {
			c.unlend()
		}
		if err == nil && t.batch != nil && l.lullLocked(t, h) {
			l.mu.Unlock()
			err = t.batch.Flush()
			l.mu.Lock()
		}
		l.paceLocked(t, h.size()+len(body), began)
		switch {
		case err != nil:
			l.lostLocked(t, err)
		case h.kind == frameBye && t == l.cur:
			if l.out.bye = true; l.state.eof {
				l.finishLocked() // both have said it
			}
		}
	}
	l.mu.Unlock()
	if l.ended != nil {
		l.ended(l)
	}
}

// paceLocked has no more lie before t than it takes in a moment, here and below.
func (l *Link) paceLocked(t *transport, n int, began time.Duration) {
	changed := l.pace.wrote(n, began, l.now())
	if !changed && t.paced || l.conf.Unsent == nil || t.batch == nil {
		return
	}
	t.paced = true
	l.conf.Unsent(t.batch.Conn, l.Ahead()/2)
}

// lullLocked says whether h was the last frame to go out for now: what a batch
// holds must not wait for the next.
func (l *Link) lullLocked(t *transport, h head) bool {
	return h.kind != frameData || t != l.cur || l.out.sent == l.out.ring.end
}

// nextLocked waits for something to send and a transport to send it on, and
// tells the chunk in which the body lies. It returns no transport once the link
// is over.
func (l *Link) nextLocked() (*transport, head, *chunk) {
	for !l.state.over {
		if l.cur != nil {
			if h, c := l.frameLocked(); h.kind != 0 {
				return l.cur, h, c
			}
		}
		l.todo.Wait()
	}
	return nil, head{}, nil
}

// frameLocked is the next frame for the transport, of kind 0 if there is none.
func (l *Link) frameLocked() (head, *chunk) {
	h := head{offset: l.out.sent, ack: l.in.consumed}
	var c *chunk
	switch {
	case l.out.bye:
		return head{}, nil
	case l.state.eof: // nobody is left to read anything else
		h.kind = frameBye
	case l.out.deaf:
		l.out.deaf = false
		return head{kind: frameDeaf}, nil
	case l.out.ping:
		h = head{kind: framePing}
		h.allowed, h.rtt = l.pulse.asking(l.now())
		l.out.ping = false
		return h, nil
	case l.out.pong:
		l.out.pong = false
		return head{kind: framePong}, nil
	case l.out.sent < l.out.ring.end:
		c = l.out.ring.at(l.out.sent)
		h.kind, h.length = frameData, int(c.end()-l.out.sent)
	case l.state.closed:
		h.kind = frameBye
	case l.out.ack:
		h.kind = frameAck
	default:
		return head{}, nil
	}
	l.sendingLocked(h)
	return h, c
}

// sendingLocked notes what h will have said. Whether it arrives is another
// matter: if not, the next transport starts over.
func (l *Link) sendingLocked(h head) {
	l.out.sent += uint64(h.length)
	l.out.high = max(l.out.high, l.out.sent)
	l.in.acked = h.ack
	l.out.ack = false
	if l.out.waiting > 0 && h.length > 0 {
		l.room.Broadcast()
	}
}

// write sends a frame: its head and as much of the body as shares a TLS record
// with it, then the rest as it lies.
func (t *transport) write(h head, body []byte) error {
	buf, _ := scratches.Get().(*[record]byte)
	defer scratches.Put(buf)
	h.put(buf[:])
	n := copy(buf[h.size():], body)
	if _, err := t.conn.Write(buf[:h.size()+n]); err != nil {
		return err
	}
	if n == len(body) {
		return nil
	}
	_, err := t.conn.Write(body[n:])
	return err
}
