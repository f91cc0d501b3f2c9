// The tally: what the two ends tell each other beside the streams.

package overquic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The tally is a unidirectional stream in either direction. What is said on it
// begins with a byte that says what it is:
//
//	1                         accepted: one more of your streams
//	2 window(4) interval(4)   hello: how long a session of mine may stay
//	                          parked, and my keepalive; both in milliseconds,
//	                          a window of 0 being none
//	3 within(4) zeros(16)     beat: you hear from me again within so many
//	                          milliseconds
//	4                         moved: your packets come from another address
//
// Numbers are big-endian. Only the dialing end beats, and only the accepting one
// says moved. A beat is as long as it is because a server that has forgotten the
// connection answers no packet of 42 bytes or less with a stateless reset.
const (
	kindAccepted = 1
	kindHello    = 2
	kindBeat     = 3
	kindMoved    = 4

	// kindDeaf is what the dialing end says in a datagram (RFC 9221) when nothing
	// of the accepting end's reaches it any more. On the tally it would wait for
	// all that has to be sent again.
	kindDeaf = 5
	// kindHurry is Move's own and never on the wire: try another path now.
	kindHurry = 0
)

// beatPadding makes a packet with nothing else in it long enough for an answer.
const beatPadding = 16

// A word is one thing said on a tally.
type word struct {
	kind     byte
	window   time.Duration // in a hello
	interval time.Duration // in a hello, and in a beat
}

var errWord = errors.New("malformed tally")

// appendWord appends w, whose times are cut to what the wire can carry.
func appendWord(b []byte, w word) []byte {
	b = append(b, w.kind)
	switch w.kind {
	case kindHello:
		b = appendMillis(b, w.window)
		b = appendMillis(b, w.interval)
	case kindBeat:
		b = appendMillis(b, w.interval)
		b = append(b, make([]byte, beatPadding)...)
	}
	return b
}

func appendMillis(b []byte, d time.Duration) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(min(max(d.Milliseconds(), 0), 1<<32-1)))
}

func millis(b []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond
}

// decodeWord is the word at the start of b and its size; the size is 0 if there
// is more to come.
func decodeWord(b []byte) (w word, size int, err error) {
	if len(b) == 0 {
		return word{}, 0, nil
	}
	w.kind, size = b[0], 1
	switch w.kind {
	case kindAccepted, kindMoved:
		return w, size, nil
	case kindHello:
		size += 8
	case kindBeat:
		size += 4 + beatPadding
	default:
		return word{}, 0, fmt.Errorf("%w: kind %d", errWord, w.kind)
	}
	if len(b) < size {
		return word{}, 0, nil
	}
	if w.kind == kindHello {
		w.window, w.interval = millis(b[1:]), millis(b[5:])
	} else {
		w.interval = millis(b[1:])
	}
	if w.interval <= 0 {
		return word{}, 0, fmt.Errorf("%w: no interval", errWord)
	}
	return w, size, nil
}
