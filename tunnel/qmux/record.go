// What a connection says besides its streams' data, and the record that it goes in.

package qmux

import "time"

// room is how much fits in the record of what is small.
func (t *turn) room() int { return record - max(t.size, sizeBytes) }

// tail is where the next frame goes.
func (t *turn) tail() []byte {
	if t.b == nil {
		t.b, t.size = newBlock(mediumBlock), sizeBytes
	}
	return t.b.buf[t.size:t.size]
}

func (t *turn) add(b []byte) { t.size += copy(t.tail()[:len(b)], b) }

func (t *turn) ints(kind uint64, fields ...uint64) {
	t.size += len(appendInts(t.tail(), kind, fields...))
}

// largestControl is what one of the frames below takes at most.
const largestControl = 8 + 4*8

// controlLocked puts in what fits of what the connection and its streams have to say.
func (c *conn) controlLocked(t *turn) {
	y := &c.say
	if y.session != nil {
		t.add(y.session)
		y.session = nil
	}
	if y.pong {
		y.pong = false
		t.ints(framePong, y.pongNumber)
	}
	if y.ping {
		y.ping, t.ping = false, true
		c.questionLocked(t)
	}
	if y.streams {
		y.streams = false
		c.s.told = c.s.limitLocked()
		t.ints(frameMaxStreams, c.s.told)
	}
	if y.want > 0 {
		t.ints(frameWant, uint64(y.want))
		y.want = 0
	}
	for _, number := range y.doubted {
		t.ints(frameDoubted, number)
	}
	y.doubted = nil
	k := 0
	for k < len(c.control) && t.room() > 3*largestControl {
		if st := c.control[k]; st.asked == c {
			st.asked = nil
			st.spellLocked(t)
		}
		k++
	}
	c.control = append(c.control[:0], c.control[k:]...)
	k = 0
	for k < len(c.done) && t.room() > largestControl {
		t.ints(frameStreamDone, c.done[k])
		k++
	}
	c.done = append(c.done[:0], c.done[k:]...)
}

// spellLocked says what a stream has to say.
func (st *stream) spellLocked(t *turn) {
	say := st.say
	st.say = 0
	if say&sayReset != 0 {
		t.ints(frameResetStream, st.id, streamCanceled, st.out.high)
		if !st.s.extended {
			st.out.state = sendResetRecvd
			st.endedLocked()
		}
	}
	if say&sayStop != 0 && st.in.state <= recvSizeKnown {
		t.ints(frameStopSending, st.id, streamCanceled)
	}
	if say&sayAck == 0 {
		return
	}
	in := &st.in
	in.told = in.next
	switch {
	case !st.s.extended:
		if in.state == recvOpen {
			t.ints(frameMaxStreamData, st.id, in.limit)
		}
	case in.state >= recvDataRecvd:
		t.ints(frameStreamAckEnd, st.id, in.next, in.limit)
	default:
		t.ints(frameStreamAck, st.id, in.next, in.limit)
	}
}

// questionLocked asks for a sign of life.
func (c *conn) questionLocked(t *turn) {
	s := c.s
	s.pings++
	c.question, c.sent = s.pings, time.Now()
	t.ints(framePing, c.question)
	if s.extended && s.dialing {
		t.ints(frameSilence, uint64(s.pulse.allowed().Milliseconds()), uint64(s.pulse.rtt.Microseconds()))
	}
}

// answeredLocked takes the answer to a question.
func (c *conn) answeredLocked(number uint64) {
	if number != c.question {
		return // to one before
	}
	c.question = 0
	if c == c.s.firstLocked() {
		c.s.pulse.rtt = max(time.Since(c.sent), 1)
		c.s.pulse.answered()
	}
}
