// Frames: what each frame that is received does.

package qmux

import (
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// frameLocked handles a frame that was received on c and lies in b.
func (s *Session) frameLocked(c *conn, f frame, b *block) error {
	if !s.extended && f.kind >= frameSession && f.kind <= frameDoubted {
		return protocolError(errFrameEncoding, "frame of type %#x", f.kind)
	}
	switch f.kind {
	case framePadding, frameDataBlocked:
	case frameStream, frameResetStream, frameStopSending, frameMaxStreamData, frameStreamDataBlocked, frameStreamAck, frameStreamAckEnd:
		return s.streamFrameLocked(c, f, b)
	case frameMaxData:
		s.dataRaised = s.dataRaised || s.dataSent >= s.dataMax && f.stream > s.dataMax
		s.dataMax = max(s.dataMax, f.stream)
	case frameMaxStreams, frameMaxStreamsUni, frameStreamsBlocked, frameStreamsBlockedUni:
		if f.stream > maxStreamCount {
			return protocolError(errFrameEncoding, "frame of type %#x for %d streams", f.kind, f.stream)
		}
		if f.kind == frameMaxStreams && f.stream > s.maxStreams {
			s.maxStreams = f.stream
			s.wakeWaitersLocked()
		}
	case framePing:
		if f.stream < c.control.nextPing {
			return protocolError(errProtocol, "QX_PING %d after %d", f.stream, c.control.nextPing-1)
		}
		c.control.pong, c.control.nextPing = true, f.stream+1
		c.startWritingLocked()
	case framePong:
		if f.stream == 0 || f.stream > s.pings { // QX_PINGs are numbered from 1 here
			return protocolError(errProtocol, "answer to QX_PING %d of %d", f.stream, s.pings)
		}
		c.pongLocked(f.stream)
	case frameClose, frameApplicationClose:
		if f.kind == frameApplicationClose && f.value == uint64(tunnel.Replaced) && c.number > 0 {
			s.lostLocked(c, superseded()) // it concerns only this connection
			break
		}
		for _, other := range s.conns {
			other.detached = true
			other.abort()
		}
		s.failLocked(closedBy(f))
	case frameParameters:
		return protocolError(errProtocol, "QX_TRANSPORT_PARAMETERS twice")
	default:
		return s.extensionLocked(c, f)
	}
	return nil
}

// extensionLocked handles the frames of this package's extension.
func (s *Session) extensionLocked(c *conn, f frame) error {
	switch {
	case f.kind == frameStreamDone:
		return s.doneLocked(f.stream)
	case f.kind == frameSilence && !s.dialing:
		s.keepalive.announced(time.Duration(min(f.offset, 1<<32))*time.Millisecond, time.Duration(min(f.value, 1<<32))*time.Microsecond)
	case f.kind == frameWant && s.dialing:
		s.paths.wanted = int(min(f.stream, uint64(s.conf.connections-1)))
		if s.paths.wanted >= len(s.conns) {
			s.addConnsLocked()
		}
	case f.kind == frameDoubted:
		s.pathDoubtedLocked(c, f.stream)
	default:
		return protocolError(errProtocol, "frame of type %#x at this end", f.kind)
	}
	return nil
}

// streamFrameLocked handles a frame that names a stream.
func (s *Session) streamFrameLocked(c *conn, f frame, b *block) error {
	st, err := s.streamLocked(f)
	if err != nil {
		return err
	}
	if st == nil { // the stream has ended
		if !s.extended && len(f.data) > 0 {
			return protocolError(errProtocol, "stream %d: data after its end", f.stream)
		}
		if s.extended && (f.kind == frameStream || f.kind == frameResetStream) {
			if c.streamDone = append(c.streamDone, f.stream); len(c.streamDone) > maxStreamDone {
				return protocolError(errInternal, "more answers asked for than read")
			}
			s.ackSoonLocked()
		}
		return nil
	}
	switch f.kind {
	case frameStream:
		c.movedLocked()
		return st.receiveLocked(c, f, b)
	case frameResetStream:
		return st.resetByPeerLocked(c, f.offset)
	case frameStopSending:
		st.resetLocked(f.value) // RFC 9000, 3.5: with the peer's code
		st.endedLocked()
	case frameMaxStreamData:
		st.creditLocked(f.offset)
	case frameStreamDataBlocked: // a limit is raised as data is read
	default: // STREAM_ACK
		c.movedLocked()
		err := st.ackedLocked(f.offset, f.kind == frameStreamAckEnd)
		if err == nil {
			st.creditLocked(f.value)
			s.resumeBulkLocked()
		}
		return err
	}
	return nil
}

// creditLocked raises the offset up to which the peer allows data.
func (st *stream) creditLocked(limit uint64) {
	if limit > st.out.maxData {
		st.out.maxData = limit
		st.s.sendLocked(st)
	}
}

// streamLocked is the stream that a frame names; nil if it has ended. The first frame of a
// stream of the peer's opens it and all before it (RFC 9000, 3.2).
func (s *Session) streamLocked(f frame) (*stream, error) {
	id, n := f.stream, f.stream>>2
	if st := s.streams[id]; st != nil {
		return st, nil
	}
	switch {
	case id&2 != 0 && (id&1 == s.parity() || f.kind == frameStopSending || f.kind == frameMaxStreamData):
		return nil, protocolError(errStreamState, "frame of type %#x on unidirectional stream %d", f.kind, id)
	case id&2 != 0:
		return nil, protocolError(errStreamLimit, "unidirectional stream %d", id)
	case s.isOurs(id) && n >= s.opened:
		return nil, protocolError(errStreamState, "stream %d is not open", id)
	case s.isOurs(id) || n < s.peerOpened:
		return nil, nil
	case n >= s.maxStreamsSent:
		return nil, protocolError(errStreamLimit, "stream %d, where %d are allowed", id, s.maxStreamsSent)
	}
	var st *stream
	for ; s.peerOpened <= n; s.peerOpened++ {
		next := s.peerOpened<<2 | s.parity() ^ 1
		st = newStream(s, next)
		s.streams[next] = st
		if s.handler != nil {
			s.handler(st)
			s.accepted++
		} else {
			s.acceptQueue = append(s.acceptQueue, st)
			s.wakeWaitersLocked()
		}
	}
	s.raiseMaxStreamsLocked() // for streams that have ended since the last MAX_STREAMS
	return st, nil
}

// doneLocked handles STREAM_DONE: the peer has forgotten the stream.
func (s *Session) doneLocked(id uint64) error {
	st := s.streams[id]
	if st == nil {
		if s.isOurs(id) && id>>2 >= s.opened || !s.isOurs(id) && id>>2 >= s.peerOpened {
			return protocolError(errStreamState, "STREAM_DONE of stream %d", id)
		}
		return nil
	}
	switch {
	case st.out.state == sendOpen && !st.out.fin:
		return protocolError(errProtocol, "STREAM_DONE of stream %d, which is open", id)
	case st.out.state == sendOpen || st.out.state == sendDataSent:
		st.discardLocked()
		st.out.dataAcked()
	default:
		st.out.resetAcked()
	}
	notify(st.out.wake)
	st.endedLocked()
	s.resumeBulkLocked()
	return nil
}

// forgetLocked removes a stream that has ended. STREAM_DONE takes the place of its last
// acknowledgement.
func (s *Session) forgetLocked(st *stream) {
	if s.streams[st.id] != st {
		return
	}
	delete(s.streams, st.id)
	s.closeWindowLocked(&st.in.window)
	st.discardLocked()
	if c := st.in.conn; s.extended && st.control&pendingAck != 0 {
		if c == nil || c.detached {
			c = s.firstLocked()
		}
		if c != nil {
			c.streamDone = append(c.streamDone, st.id)
			s.ackSoonLocked()
		}
	}
	st.control, st.controlOn = 0, nil
	s.unassignLocked(st)
	if s.isOurs(st.id) {
		s.open--
		s.wakeWaitersLocked()
		return
	}
	s.ended++
	s.raiseMaxStreamsLocked()
}

// wakeWaitersLocked wakes the calls of waitFor.
func (s *Session) wakeWaitersLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// maxStreamsLocked is how many streams the peer may have opened by now.
func (s *Session) maxStreamsLocked() uint64 {
	return max(s.maxStreamsSent, min(s.accepted+backlog, s.ended+uint64(s.conf.maxStreams)))
}

// raiseMaxStreamsLocked sends MAX_STREAMS if the peer may open more streams and has used
// half of what it knows of.
func (s *Session) raiseMaxStreamsLocked() {
	few := uint64(min(s.conf.maxStreams, backlog)) / 2
	if s.maxStreamsLocked() <= s.maxStreamsSent || s.maxStreamsSent-s.peerOpened > few {
		return
	}
	if c := s.firstLocked(); c != nil && !c.control.maxStreams {
		c.control.maxStreams = true
		if s.maxStreamsSent == s.peerOpened {
			c.startWritingLocked()
		} else {
			s.ackSoonLocked()
		}
	}
}

func (id sessionID) String() string { return fmt.Sprintf("%x", id[:4]) }
