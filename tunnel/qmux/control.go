// Control frames: everything that a connection sends besides stream data of bulk, and the
// record that carries it.

package qmux

import "time"

// room is how many bytes still fit in the turn's control record.
func (t *turn) room() int { return record - max(t.size, sizeBytes) }

// tail is where the next frame is appended. It allocates the record on first use.
func (t *turn) tail() []byte {
	if t.b == nil {
		t.b, t.size = newBlock(mediumBlock), sizeBytes
	}
	return t.b.buf[t.size:t.size]
}

func (t *turn) add(b []byte) { t.size += copy(t.tail()[:len(b)], b) }

func (t *turn) addFrame(kindAndFields ...uint64) {
	t.size += len(appendInts(t.tail(), kindAndFields...))
}

// maxControlFrame is the largest size in bytes of one of the frames below.
const maxControlFrame = 8 + 4*8

// appendControlLocked appends the pending control frames of the connection and of its
// streams, as far as they fit.
func (c *conn) appendControlLocked(t *turn) {
	y := &c.control
	if y.session != nil {
		t.add(y.session)
		y.session = nil
	}
	if y.pong {
		y.pong = false
		t.addFrame(framePong, y.nextPing-1) // the latest one
	}
	if y.ping {
		y.ping, t.ping = false, true
		c.s.pings++
		c.pingNumber, c.pingSent = c.s.pings, time.Now()
		t.addFrame(framePing, c.pingNumber)
		if k := &c.s.keepalive; c.s.extended && c.s.dialing {
			t.addFrame(frameSilence, uint64(k.nextInterval().Milliseconds()), uint64(k.rtt.Microseconds()))
		}
	}
	if y.maxStreams {
		y.maxStreams = false
		c.s.maxStreamsSent = c.s.maxStreamsLocked()
		t.addFrame(frameMaxStreams, c.s.maxStreamsSent)
	}
	if y.wantConns > 0 {
		t.addFrame(frameWant, uint64(y.wantConns))
		y.wantConns = 0
	}
	for _, number := range y.doubted {
		t.addFrame(frameDoubted, number)
	}
	y.doubted = nil
	k := 0
	for k < len(c.controlStreams) && t.room() > 3*maxControlFrame {
		if st := c.controlStreams[k]; st.controlOn == c {
			st.controlOn = nil
			st.appendControlLocked(t)
		}
		k++
	}
	c.controlStreams = append(c.controlStreams[:0], c.controlStreams[k:]...)
	k = 0
	for k < len(c.streamDone) && t.room() > maxControlFrame {
		t.addFrame(frameStreamDone, c.streamDone[k])
		k++
	}
	c.streamDone = append(c.streamDone[:0], c.streamDone[k:]...)
}

// appendControlLocked appends the pending control frames of one stream.
func (st *stream) appendControlLocked(t *turn) {
	say := st.control
	st.control = 0
	if say&pendingReset != 0 {
		t.addFrame(frameResetStream, st.id, st.out.code, st.out.high)
		if !st.s.extended {
			st.out.resetAcked() // such a peer acknowledges nothing
			st.endedLocked()
		}
	}
	if say&pendingStop != 0 && st.in.state <= recvSizeKnown {
		t.addFrame(frameStopSending, st.id, streamCanceled)
	}
	if say&pendingAck == 0 {
		return
	}
	in := &st.in
	in.acked, in.told = in.next, in.limit
	switch {
	case !st.s.extended:
		if in.state == recvOpen {
			t.addFrame(frameMaxStreamData, st.id, in.limit)
		}
	case in.state >= recvDataRecvd:
		t.addFrame(frameStreamAckEnd, st.id, in.next, in.limit)
	default:
		t.addFrame(frameStreamAck, st.id, in.next, in.limit)
	}
}

// pongLocked handles the answer to a QX_PING.
func (c *conn) pongLocked(number uint64) {
	if number != c.pingNumber {
		return // to an earlier ping
	}
	c.pingNumber = 0
	if c == c.s.firstLocked() {
		rtt := time.Since(c.pingSent)
		c.s.keepalive.measured(rtt)
		c.s.keepalive.pongReceived()
		if rtt < minAckTimeout {
			c.s.paths.rejoin.falseDoubts = 0 // the path is as good as others again
		}
	}
}
