// The wire: every frame and transport parameter, and how they are encoded.

package qmux

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/quic-go/quic-go/quicvarint"
)

// A connection carries QMux records (draft-ietf-quic-qmux-02, 3.2). i is a QUIC
// variable-length integer (RFC 9000, 16):
//
//	size i | frames, size bytes in all
//
// A frame lies in one record. The first frame on a connection is
// QX_TRANSPORT_PARAMETERS, from either end; no end waits for the other's before.
//
//	type          frame                     fields
//	0x00          PADDING                   -
//	0x04          RESET_STREAM              stream i, error i, final size i
//	0x05          STOP_SENDING              stream i, error i
//	0x08 … 0x0f   STREAM                    stream i, [offset i], [length i], data
//	0x10          MAX_DATA                  bytes i
//	0x11          MAX_STREAM_DATA           stream i, offset i
//	0x12, 0x13    MAX_STREAMS               streams i
//	0x14          DATA_BLOCKED              bytes i
//	0x15          STREAM_DATA_BLOCKED       stream i, offset i
//	0x16, 0x17    STREAMS_BLOCKED           streams i
//	0x1c          CONNECTION_CLOSE          error i, frame type i, length i, reason
//	0x1d          CONNECTION_CLOSE          error i, length i, reason
//	0x3f51…0d0a   QX_TRANSPORT_PARAMETERS   length i, parameters
//	0x348c…c7bd   QX_PING, to be answered   number i
//	0x348c…c7be   QX_PING, the answer       number i
//
// The following are the extension of this package. They are sent only if both ends
// have sent the parameter hawser_session. Then a stream's STREAM frames may also
// be received on any connection of the session, in any order, and more than once.
//
//	0x2a40        SESSION                   id [16], secret [32], keepalive i ms, window i ms
//	0x2a41        STREAM_ACK                stream i, received i, offset i
//	0x2a42        STREAM_ACK, of the end    stream i, received i, offset i
//	0x2a43        STREAM_DONE               stream i
//	0x2a44        SILENCE                   longest i ms, round trip i µs
//	0x2a45        WANT_CONNECTIONS          connections i
//	0x2a46        PATH_DOUBTED              connection i
//
// SESSION is the accepting end's answer to hawser_session; on that connection it comes
// directly after the parameters. STREAM_ACK acknowledges the first received bytes of
// the stream, and is MAX_STREAM_DATA for offset as well; that of the end also acknowledges
// FIN or RESET_STREAM. STREAM_DONE answers a frame for a stream that this end has
// forgotten, since both its directions have ended. SILENCE goes with a QX_PING of the
// dialing end and announces its longest silence from now on. WANT_CONNECTIONS asks the
// dialing end for so many connections beside the first. PATH_DOUBTED tells the dialing
// end that data sent to it on a connection is not acknowledged. From the dialing end it
// says that it has given the connection up.
//
// A CONNECTION_CLOSE of the application's (0x1d) with a code other than 0 is a refusal,
// and the code a tunnel.Code. With Replaced, on a connection that was to join a session,
// it ends that connection; any other ends the session, as RFC 9000 has it.
const (
	framePadding           = 0x00
	frameResetStream       = 0x04
	frameStopSending       = 0x05
	frameStream            = 0x08
	frameMaxData           = 0x10
	frameMaxStreamData     = 0x11
	frameMaxStreams        = 0x12
	frameMaxStreamsUni     = 0x13
	frameDataBlocked       = 0x14
	frameStreamDataBlocked = 0x15
	frameStreamsBlocked    = 0x16
	frameStreamsBlockedUni = 0x17
	frameClose             = 0x1c
	frameApplicationClose  = 0x1d
	frameParameters        = 0x3f5153300d0a0d0a
	framePing              = 0x348c67529ef8c7bd
	framePong              = 0x348c67529ef8c7be

	frameSession      = 0x2a40
	frameStreamAck    = 0x2a41
	frameStreamAckEnd = 0x2a42
	frameStreamDone   = 0x2a43
	frameSilence      = 0x2a44
	frameWant         = 0x2a45
	frameDoubted      = 0x2a46

	bitFin    = 0x01 // of a STREAM frame
	bitLength = 0x02
	bitOffset = 0x04

	maxRecord = 16382 // size of a record, without its Size (QMux, 5.2)
	sizeBytes = 2     // in which Size is always spelled here
	maxInt    = 1<<62 - 1
	maxReason = 256 // bytes of a CONNECTION_CLOSE that are kept

	idSize     = 16
	secretSize = 32
)

// The transport parameters that are allowed (QMux, 5.1; RFC 9000,
// 18.2), and those of this package:
//
//	0x0b8f7a1c4d5e6f21   hawser_session   kind u8 | keepalive u32 ms | window u32 ms
//	                                      | id [16] | secret [32] | attempt u64 | instead of u64
//	0x0b8f7a1c4d5e6f22   hawser_server    name, 1 to 255 bytes
//
// Kind 0 is sent by the accepting end and says that it has the extension; 1 asks for a
// new session; 2 adds a connection to a session. Attempts are numbered from 1. Instead of
// names, by its attempt, the connection that the new one replaces: 0 is the session's
// first one, none replaces no other, and all replaces every other one. The accepting end may
// send its name: a refusal by one of another name does not end a session.
const (
	paramMaxIdleTimeout            = 0x01
	paramMaxData                   = 0x04
	paramMaxStreamDataLocal        = 0x05
	paramMaxStreamDataRemote       = 0x06
	paramMaxStreamDataUni          = 0x07
	paramMaxStreams                = 0x08
	paramMaxStreamsUni             = 0x09
	paramMaxRecordSize             = 0x0571c59429cd0845
	paramSession                   = 0x0b8f7a1c4d5e6f21
	paramServer                    = 0x0b8f7a1c4d5e6f22
	maxServerName                  = 255
	lastRFC9000Param               = 0x10
	sessionParamSize               = 1 + 4 + 4 + idSize + secretSize + 8 + 8
	kindKnows                uint8 = 0
	kindNew                  uint8 = 1
	kindJoin                 uint8 = 2

	insteadOfNone = 1<<64 - 1
	insteadOfAll  = 1<<64 - 2
)

type (
	sessionID [idSize]byte
	secret    [secretSize]byte
)

// terms are what both ends agree on when a session begins.
type terms struct{ keepalive, window time.Duration }

// and is the agreement: the longer keepalive, within bounds, and the shorter window.
func (t terms) and(o terms) terms {
	return terms{keepalive: min(max(t.keepalive, o.keepalive), maxKeepalive), window: min(t.window, o.window)}
}

// A joining is the parameter hawser_session.
type joining struct {
	kind      uint8
	terms     terms
	id        sessionID
	secret    secret
	attempt   uint64
	insteadOf uint64
}

func (j *joining) append(b []byte) []byte {
	b = append(b, j.kind)
	b = binary.BigEndian.AppendUint32(b, uint32(j.terms.keepalive.Milliseconds()))
	b = binary.BigEndian.AppendUint32(b, uint32(j.terms.window.Milliseconds()))
	b = append(append(b, j.id[:]...), j.secret[:]...)
	b = binary.BigEndian.AppendUint64(b, j.attempt)
	return binary.BigEndian.AppendUint64(b, j.insteadOf)
}

func parseJoining(b []byte) (*joining, error) {
	if len(b) != sessionParamSize || b[0] > kindJoin {
		return nil, protocolError(errParameter, "hawser_session of %d bytes", len(b))
	}
	ms := func(b []byte) time.Duration { return time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond }
	j := &joining{kind: b[0], terms: terms{keepalive: ms(b[1:]), window: ms(b[5:])}}
	b = b[9:]
	b = b[copy(j.id[:], b):]
	b = b[copy(j.secret[:], b):]
	j.attempt, j.insteadOf = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	if j.kind == kindNew && (j.terms.keepalive <= 0 || j.terms.window <= 0) {
		return nil, protocolError(errParameter, "hawser_session without times")
	}
	return j, nil
}

// parameters are one end's transport parameters.
type parameters struct {
	idle       time.Duration // 0: none
	data       uint64        // that may be sent on all streams
	streamData uint64        // that may be sent on a stream that this end opened, or the other
	theirData  uint64
	streams    uint64 // that the other end may open
	record     uint64
	session    *joining // nil: knows no extension
	server     string   // the accepting end's name; empty if it did not send one
}

// encode makes a QX_TRANSPORT_PARAMETERS frame.
func (p *parameters) encode() []byte {
	var v []byte
	add := func(id, value uint64) { v = appendInts(v, id, uint64(quicvarint.Len(value)), value) }
	add(paramMaxData, p.data)
	add(paramMaxStreamDataLocal, p.streamData)
	add(paramMaxStreamDataRemote, p.theirData)
	add(paramMaxStreams, p.streams)
	if p.session != nil {
		v = p.session.append(appendInts(v, paramSession, sessionParamSize))
	}
	if name := p.server[:min(len(p.server), maxServerName)]; name != "" {
		v = append(appendInts(v, paramServer, uint64(len(name))), name...)
	}
	return append(appendInts(nil, frameParameters, uint64(len(v))), v...)
}

func parseParameters(b []byte) (p *parameters, err error) {
	p = &parameters{record: maxRecord}
	var idle, unused, uni uint64
	integers := map[uint64]*uint64{
		paramMaxIdleTimeout: &idle, paramMaxData: &p.data, paramMaxRecordSize: &p.record,
		paramMaxStreamDataLocal: &p.streamData, paramMaxStreamDataRemote: &p.theirData, paramMaxStreamDataUni: &unused,
		paramMaxStreams: &p.streams, paramMaxStreamsUni: &uni,
	}
	seen := make(map[uint64]bool)
	for d := (decoder{b: b}); len(d.b) > 0; {
		id := d.int()
		value := decoder{b: d.bytes(d.int())}
		integer := integers[id]
		switch {
		case d.bad:
			return nil, protocolError(errParameter, "parameters cut short")
		case seen[id]:
			return nil, protocolError(errParameter, "parameter %#x twice", id)
		case id == paramSession:
			if p.session, err = parseJoining(value.b); err != nil {
				return nil, err
			}
		case id == paramServer:
			if len(value.b) == 0 || len(value.b) > maxServerName {
				return nil, protocolError(errParameter, "hawser_server of %d bytes", len(value.b))
			}
			p.server = string(value.b)
		case integer != nil:
			if *integer = value.int(); value.bad || len(value.b) > 0 {
				return nil, protocolError(errParameter, "parameter %#x is no integer", id)
			}
		case id <= lastRFC9000Param:
			return nil, protocolError(errParameter, "parameter %#x", id)
		} // unknown ones are ignored: there are as many as fit into a record
		seen[id] = true
	}
	switch {
	case max(p.streams, uni) > maxStreamCount:
		return nil, protocolError(errParameter, "%d streams", max(p.streams, uni))
	case p.record < maxRecord:
		return nil, protocolError(errParameter, "records of %d bytes", p.record)
	}
	p.idle = time.Duration(min(idle, 1<<32)) * time.Millisecond
	return p, nil
}

// A frame is one of those above; which fields count depends on its kind.
type frame struct {
	kind   uint64 // of a STREAM frame, without its bits
	stream uint64 // or a number of streams, bytes or connections, or of a ping
	offset uint64 // final size of RESET_STREAM, received of STREAM_ACK, frame type of a close
	value  uint64 // error code; offset of STREAM_ACK
	fin    bool
	data   []byte // of STREAM; reason; parameters; what SESSION says. It is part of the record.
}

// next decodes the first frame of a record's frames.
func next(b []byte) (f frame, rest []byte, err error) {
	d := decoder{b: b}
	f.kind = d.int()
	switch {
	case f.kind == framePadding:
		d.b = bytes.TrimLeft(d.b, string(rune(framePadding)))
	case f.kind&^7 == frameStream:
		d.stream(&f)
	case f.kind == frameResetStream:
		f.stream, f.value, f.offset = d.int(), d.int(), d.int()
	case f.kind == frameStopSending:
		f.stream, f.value = d.int(), d.int()
	case f.kind == frameMaxStreamData, f.kind == frameStreamDataBlocked:
		f.stream, f.offset = d.int(), d.int()
	case f.kind == frameStreamAck, f.kind == frameStreamAckEnd:
		f.stream, f.offset, f.value = d.int(), d.int(), d.int()
	case f.kind == frameSilence:
		f.offset, f.value = d.int(), d.int()
	case f.kind == frameMaxData, f.kind >= frameMaxStreams && f.kind <= frameDataBlocked,
		f.kind == frameStreamsBlocked, f.kind == frameStreamsBlockedUni, f.kind == framePing, f.kind == framePong,
		f.kind == frameStreamDone, f.kind == frameWant, f.kind == frameDoubted:
		f.stream = d.int()
	case f.kind == frameClose:
		f.value, f.offset = d.int(), d.int()
		f.data = d.bytes(d.int())
	case f.kind == frameApplicationClose:
		f.value = d.int()
		f.data = d.bytes(d.int())
	case f.kind == frameParameters:
		f.data = d.bytes(d.int())
	case f.kind == frameSession:
		f.data = d.bytes(idSize + secretSize)
		f.offset, f.value = d.int(), d.int()
	default:
		if !d.bad {
			return frame{}, nil, protocolError(errFrameEncoding, "frame of type %#x", f.kind)
		}
	}
	if d.bad {
		return frame{}, nil, protocolError(errFrameEncoding, "frame of type %#x cut short", f.kind)
	}
	return f, d.b, nil
}

// stream decodes a STREAM frame (RFC 9000, 19.8).
func (d *decoder) stream(f *frame) {
	bits := f.kind
	f.kind, f.fin = frameStream, bits&bitFin != 0
	f.stream = d.int()
	if bits&bitOffset != 0 {
		f.offset = d.int()
	}
	if bits&bitLength != 0 {
		f.data = d.bytes(d.int())
	} else {
		f.data = d.bytes(uint64(len(d.b)))
	}
	if f.offset+uint64(len(f.data)) > maxInt {
		d.bad = true
	}
}

// A decoder decodes fields from b and remembers whether one was missing.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) int() uint64 {
	v, n, err := quicvarint.Parse(d.b)
	if err != nil {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

// appendInts encodes integers, such as those of a frame that has only those.
func appendInts(b []byte, fields ...uint64) []byte {
	for _, f := range fields {
		b = quicvarint.Append(b, f)
	}
	return b
}

// appendStreamHead encodes a STREAM frame without its data. If length is negative the data
// must be the rest of the record.
func appendStreamHead(b []byte, stream, offset uint64, length int, fin bool) []byte {
	kind := byte(frameStream | bitOffset)
	if fin {
		kind |= bitFin
	}
	if length >= 0 {
		kind |= bitLength
	}
	b = quicvarint.Append(append(b, kind), stream)
	b = quicvarint.Append(b, offset)
	if length >= 0 {
		b = quicvarint.Append(b, uint64(length))
	}
	return b
}

// closeFrame encodes a CONNECTION_CLOSE: the protocol's (0x1c) or the application's (0x1d).
func closeFrame(code uint64, application bool, reason string) []byte {
	reason = reason[:min(len(reason), maxReason)]
	var b []byte
	if application {
		b = appendInts(b, frameApplicationClose, code, uint64(len(reason)))
	} else {
		b = appendInts(b, frameClose, code, 0, uint64(len(reason)))
	}
	return append(b, reason...)
}

// sessionFrame encodes a SESSION.
func sessionFrame(id sessionID, s secret, t terms) []byte {
	b := appendInts(nil, frameSession)
	b = append(append(b, id[:]...), s[:]...)
	return appendInts(b, uint64(t.keepalive.Milliseconds()), uint64(t.window.Milliseconds()))
}

// session is the fields of a SESSION.
func (f *frame) session() (id sessionID, s secret, t terms) {
	copy(s[:], f.data[copy(id[:], f.data):])
	ms := func(n uint64) time.Duration { return time.Duration(min(n, 1<<32)) * time.Millisecond }
	return id, s, terms{keepalive: ms(f.offset), window: ms(f.value)}
}

// putSize encodes the Size of a record of n bytes, in two bytes.
func putSize(b []byte, n int) { binary.BigEndian.PutUint16(b, uint16(n)|0x4000) }
