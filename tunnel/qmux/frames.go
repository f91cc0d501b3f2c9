// What each frame that comes does.

package qmux

import (
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// frameLocked does what f says, which came on c in b.
func (s *Session) frameLocked(c *conn, f frame, b *block) error {
	switch f.kind {
	case framePadding, frameDataBlocked, frameStreamDataBlocked, frameStreamsBlocked, frameStreamsBlockedUni, frameMaxStreamsUni:
		return nil
	case frameStream, frameResetStream, frameStopSending, frameMaxStreamData, frameStreamAck, frameStreamAckEnd:
		return s.streamFrameLocked(c, f, b)
	case frameMaxData:
		s.dataMax = max(s.dataMax, f.stream)
		for _, st := range s.streams {
			s.sendLocked(st)
		}
	case frameMaxStreams:
		if f.stream > maxStreamCount {
			return broken(errFrameEncoding, "MAX_STREAMS of %d", f.stream)
		}
		if f.stream > s.allowed {
			s.allowed = f.stream
			s.changedLocked()
		}
	case framePing:
		c.say.pong, c.say.pongNumber = true, f.stream
		c.kickLocked()
	case framePong:
		if f.stream > s.pings {
			return broken(errProtocol, "answer to QX_PING %d of %d", f.stream, s.pings)
		}
		c.answeredLocked(f.stream)
	case frameClose, frameApplicationClose:
		if f.kind == frameApplicationClose && f.value == uint64(tunnel.Replaced) && c.number > 0 {
			s.lostLocked(c, late()) // it concerns this connection only
			break
		}
		for _, other := range s.conns {
			other.gone = true
			other.abort()
		}
		s.failLocked(closedBy(f))
	case frameParameters:
		return broken(errParameter, "QX_TRANSPORT_PARAMETERS twice")
	default:
		return s.extensionLocked(c, f)
	}
	return nil
}

// extensionLocked does what frames of this package's extension say.
func (s *Session) extensionLocked(c *conn, f frame) error {
	switch {
	case !s.extended:
		return broken(errFrameEncoding, "frame of type %#x", f.kind)
	case f.kind == frameStreamDone:
		return s.doneLocked(f.stream)
	case f.kind == frameSilence && !s.dialing:
		s.pulse.told(time.Duration(min(f.offset, 1<<32))*time.Millisecond, time.Duration(min(f.value, 1<<32))*time.Microsecond)
	case f.kind == frameWant && s.dialing:
		s.paths.wanted = int(min(f.stream, tunnel.MaxConnections))
		s.growLocked()
	case f.kind == frameDoubted:
		s.toldOfDoubtLocked(c, f.stream)
	default:
		return broken(errProtocol, "frame of type %#x at this end", f.kind)
	}
	return nil
}

// streamFrameLocked finds the stream that a frame is for.
func (s *Session) streamFrameLocked(c *conn, f frame, b *block) error {
	st, err := s.streamLocked(f.stream)
	if err != nil {
		return err
	}
	if st == nil { // it has ended
		if s.extended && (f.kind == frameStream || f.kind == frameResetStream) {
			if c.done = append(c.done, f.stream); len(c.done) > maxDone {
				return broken(errInternal, "more answers asked for than read")
			}
			s.ackSoonLocked()
		}
		return nil
	}
	switch f.kind {
	case frameStream:
		s.stats.Received += uint64(len(f.data))
		c.movesLocked()
		return st.receiveLocked(c, f, b)
	case frameResetStream:
		return st.resetByPeerLocked(c, f.offset)
	case frameStopSending:
		st.resetLocked()
		st.endedLocked()
		return nil
	case frameMaxStreamData:
		st.creditLocked(f.offset)
		return nil
	}
	if !s.extended {
		return broken(errFrameEncoding, "frame of type %#x", f.kind)
	}
	if err := st.ackedLocked(f.offset, f.kind == frameStreamAckEnd); err != nil {
		return err
	}
	st.creditLocked(f.value)
	return nil
}

// creditLocked lets more be sent on the stream.
func (st *stream) creditLocked(limit uint64) {
	if limit > st.out.credit {
		st.out.credit = limit
		st.s.sendLocked(st)
	}
}

// streamLocked is the stream of an id, which comes into being if the peer opens it;
// nil if it has ended. A frame for one opens all before it (RFC 9000, 3.2).
func (s *Session) streamLocked(id uint64) (*stream, error) {
	if st := s.streams[id]; st != nil {
		return st, nil
	}
	n := id >> 2
	switch {
	case id&2 != 0:
		return nil, broken(errStreamLimit, "unidirectional stream %d", id)
	case s.isOurs(id) && n >= s.opened:
		return nil, broken(errStreamState, "stream %d is not open", id)
	case s.isOurs(id) || n < s.theirs:
		return nil, nil
	case n >= s.told:
		return nil, broken(errStreamLimit, "stream %d, where %d are allowed", id, s.told)
	}
	var st *stream
	for ; s.theirs <= n; s.theirs++ {
		next := s.theirs<<2 | s.parity() ^ 1
		st = newStream(s, next)
		s.streams[next] = st
		if s.handler != nil {
			s.handler(st)
			s.accepted++
		} else {
			st.unseen = true
			s.waiting = append(s.waiting, st)
			s.changedLocked()
		}
	}
	s.raiseLocked() // for what ended while there were many left
	return st, nil
}

// doneLocked forgets a stream of which the peer knows nothing any more.
func (s *Session) doneLocked(id uint64) error {
	st := s.streams[id]
	if st == nil {
		if s.isOurs(id) && id>>2 >= s.opened || !s.isOurs(id) && id>>2 >= s.theirs {
			return broken(errStreamState, "STREAM_DONE of stream %d", id)
		}
		return nil
	}
	switch {
	case st.out.state == sendOpen && !st.out.fin:
		return broken(errProtocol, "STREAM_DONE of stream %d, which is open", id)
	case st.out.state == sendOpen || st.out.state == sendDataSent:
		st.discardLocked()
		st.out.state = sendDataRecvd
	case st.out.state == sendResetSent:
		st.out.state = sendResetRecvd
	}
	notify(st.out.wake)
	st.endedLocked()
	return nil
}

// forgetLocked takes a stream out that has ended. What it had left to say is that.
func (s *Session) forgetLocked(st *stream) {
	if s.streams[st.id] != st {
		return
	}
	delete(s.streams, st.id)
	s.closeWindowLocked(&st.in.window)
	st.discardLocked()
	if c := st.in.conn; s.extended && st.say&sayAck != 0 {
		if c == nil || c.gone {
			c = s.firstLocked()
		}
		if c != nil {
			c.done = append(c.done, st.id)
			s.ackSoonLocked()
		}
	}
	st.say, st.asked = 0, nil
	s.disownLocked(st)
	if s.isOurs(st.id) {
		s.open--
		s.changedLocked()
		return
	}
	s.ended++
	s.raiseLocked()
}

// changedLocked has Open and Accept look again.
func (s *Session) changedLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// limitLocked is how many streams the peer may have opened by now.
func (s *Session) limitLocked() uint64 {
	return max(s.told, min(s.accepted+backlog, s.ended+uint64(s.conf.maxStreams)))
}

// raiseLocked tells the peer that it may open more streams, if it has not many left.
func (s *Session) raiseLocked() {
	few := uint64(min(s.conf.maxStreams, backlog)) / 2
	if s.limitLocked() <= s.told || s.told-s.theirs > few {
		return
	}
	if c := s.firstLocked(); c != nil && !c.say.streams {
		c.say.streams = true
		if s.told == s.theirs {
			c.kickLocked()
		} else {
			s.ackSoonLocked()
		}
	}
}

func (id sessionID) String() string { return fmt.Sprintf("%x", id[:4]) }
