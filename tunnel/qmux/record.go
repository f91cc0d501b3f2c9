// What a connection says besides its streams' data, and the record that it goes in.

package qmux

import "time"

// A recordWriter fills one record.
type recordWriter struct {
	c    *conn
	b    *block // nil while there is nothing in it
	n    int
	data int  // bytes of streams
	ping bool // a question is in it
}

// room is how much fits in.
func (w *recordWriter) room() int {
	if w.b == nil {
		return record - sizeBytes
	}
	return record - w.n
}

// tail is where the next frame goes.
func (w *recordWriter) tail() []byte {
	if w.b == nil {
		w.b, w.n = newBlock(mediumBlock), sizeBytes
	}
	return w.b.buf[w.n:w.n]
}

func (w *recordWriter) add(b []byte) { w.n += copy(w.tail()[:len(b)], b) }

func (w *recordWriter) ints(kind uint64, fields ...uint64) {
	w.n += len(appendInts(w.tail(), kind, fields...))
}

func (w *recordWriter) stream(id, offset uint64, length int, fin bool) {
	w.n += len(appendStreamHead(w.tail(), id, offset, length, fin))
}

// finish spells the record's Size and says how long it is; 0 if there is none.
func (w *recordWriter) finish() int {
	if w.b == nil {
		return 0
	}
	putSize(w.b.buf, w.n-sizeBytes)
	return w.n
}

// largestControl is what one of the frames below takes at most.
const largestControl = 8 + 4*8

// controlLocked puts in what fits of what the connection and its streams have to say.
func (c *conn) controlLocked(w *recordWriter) {
	y := &c.say
	if y.session != nil {
		w.add(y.session)
		y.session = nil
	}
	if y.pong {
		y.pong = false
		w.ints(framePong, y.pongNumber)
	}
	if y.ping {
		y.ping, w.ping = false, true
		c.questionLocked(w)
	}
	if y.streams {
		y.streams = false
		c.s.told = c.s.limitLocked()
		w.ints(frameMaxStreams, c.s.told)
	}
	if y.want > 0 {
		w.ints(frameWant, uint64(y.want))
		y.want = 0
	}
	for _, number := range y.doubted {
		w.ints(frameDoubted, number)
	}
	y.doubted = nil
	k := 0
	for k < len(c.control) && w.room() > 3*largestControl {
		if st := c.control[k]; st.asked == c {
			st.asked = nil
			st.spellLocked(w)
		}
		k++
	}
	c.control = append(c.control[:0], c.control[k:]...)
	k = 0
	for k < len(c.done) && w.room() > largestControl {
		w.ints(frameStreamDone, c.done[k])
		k++
	}
	c.done = append(c.done[:0], c.done[k:]...)
}

// spellLocked says what a stream has to say.
func (st *stream) spellLocked(w *recordWriter) {
	say := st.say
	st.say = 0
	if say&sayReset != 0 {
		w.ints(frameResetStream, st.id, streamCanceled, st.out.high)
		if !st.s.extended {
			st.out.state = sendResetRecvd
			st.endedLocked()
		}
	}
	if say&sayStop != 0 && st.in.state <= recvSizeKnown {
		w.ints(frameStopSending, st.id, streamCanceled)
	}
	if say&sayAck == 0 {
		return
	}
	in := &st.in
	in.told = in.next
	switch {
	case !st.s.extended:
		if in.state == recvOpen {
			w.ints(frameMaxStreamData, st.id, in.limit)
		}
	case in.state >= recvDataRecvd:
		w.ints(frameStreamAckEnd, st.id, in.next, in.limit)
	default:
		w.ints(frameStreamAck, st.id, in.next, in.limit)
	}
}

// questionLocked asks for a sign of life.
func (c *conn) questionLocked(w *recordWriter) {
	s := c.s
	s.pings++
	c.question, c.sent = s.pings, time.Now()
	w.ints(framePing, c.question)
	if s.extended && s.dialing {
		w.ints(frameSilence, uint64(s.pulse.allowed().Milliseconds()), uint64(s.pulse.rtt.Microseconds()))
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
