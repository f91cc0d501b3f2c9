// Package spdyframes looks at the SPDY/3.1 frames of exec, attach and port forwarding before the
// library does that serves them. A frame with headers may cost its reader thousands of times
// its size: the headers are compressed, and a header's value is cut into as many as it has NULs.
//
// The mental model: a [Frames] cuts what one end sends into pieces, and reads the control frames,
// all of which have to be read in their order, since their headers are compressed in one sequence.
// A [Guard] does so with all that a client sends, and ends the connection where a client sends what
// none of kubectl's kind does. [GuardWebSocket] does it with the WebSocket frames of exec, attach and
// port forwarding. An [Unread] notices the end of a client of which nothing is read.
//
// What this package is not: an implementation of SPDY or WebSocket. It opens no streams and controls
// no flow.
package spdyframes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/moby/spdystream/spdy"
)

const (
	// headerSize is the size of a frame's header.
	headerSize = 8
	// FinFlag marks the last frame of a stream.
	FinFlag = 1

	// A control frame has at most maxControl bytes, and at most maxHeaders headers of at most
	// maxField bytes. Those of exec, attach and port forwarding have three headers of less than 40
	// bytes.
	maxControl = 4 << 10
	maxHeaders = 32
	maxField   = 1 << 10
)

// ErrRefused is wrapped by the errors about frames that are not passed on.
var ErrRefused = errors.New("refused")

// Frames cuts a sequence of bytes, of one direction of one connection, into frames. The zero value
// is at its beginning. It is for one goroutine.
type Frames struct {
	header  [headerSize]byte
	have    int    // of the header
	left    int    // of the frame after its header
	control []byte // a control frame so far

	in     bytes.Buffer // what framer reads
	framer *spdy.Framer // nil before the first control frame
}

func (f *Frames) isControl() bool { return f.header[0]&0x80 != 0 }

// Stream is that of the current data frame.
func (f *Frames) Stream() uint32 { return binary.BigEndian.Uint32(f.header[:4]) }

// Flags are those of the current data frame, without FinFlag if more of it is to come.
func (f *Frames) Flags() byte {
	if f.left > 0 {
		return f.header[4] &^ FinFlag
	}
	return f.header[4]
}

// Next takes a piece of at most one frame off p: the body of a data frame or what there is of it,
// or a whole control frame with its header. Both are nil while a header or a control frame is
// incomplete. It fails if a control frame is too large.
func (f *Frames) Next(p []byte) (body, control, rest []byte, err error) {
	if f.have < headerSize {
		n := copy(f.header[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have < headerSize {
			return nil, nil, p, nil
		}
		f.left = int(binary.BigEndian.Uint32(f.header[4:]) & 0xffffff)
		if f.isControl() {
			if f.left > maxControl {
				return nil, nil, p, fmt.Errorf("%w: a control frame of %d bytes", ErrRefused, f.left)
			}
			f.control = append(f.control[:0], f.header[:]...)
		} else if f.left == 0 {
			f.have = 0
			return []byte{}, nil, p, nil
		}
	}
	n := min(f.left, len(p))
	f.left -= n
	if f.left == 0 {
		f.have = 0
	}
	if !f.isControl() {
		return p[:n], nil, p[n:], nil
	}
	f.control = append(f.control, p[:n]...)
	if f.left == 0 {
		return nil, f.control, p[n:], nil
	}
	return nil, nil, p[n:], nil
}

// Read reads a control frame of Next. It fails if the frame makes no sense, or has more or larger
// headers than there are.
func (f *Frames) Read(control []byte) (spdy.Frame, error) {
	f.in.Reset()
	_, _ = f.in.Write(control) // never fails
	if f.framer == nil {
		var err error
		if f.framer, err = spdy.NewFramerWithOptions(io.Discard, &f.in,
			spdy.WithMaxControlFramePayloadSize(maxControl), spdy.WithMaxHeaderCount(maxHeaders), spdy.WithMaxHeaderFieldSize(maxField)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	frame, err := f.framer.ReadFrame()
	if err != nil {
		return nil, fmt.Errorf("%w: a control frame: %w", ErrRefused, err)
	}
	// The library goes by what a kind of frame has, not by the length: the rest is frames to it.
	if n := f.in.Len(); n > 0 {
		return nil, fmt.Errorf("%w: a control frame with %d bytes too many", ErrRefused, n)
	}
	return frame, nil
}

// AppendData appends a data frame to out.
func AppendData(out []byte, stream uint32, flags byte, body []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, stream)
	out = binary.BigEndian.AppendUint32(out, uint32(flags)<<24|uint32(len(body)))
	return append(out, body...)
}
