// Guard: a reader that passes on what a well-behaved client sends, and nothing else.

package spdyframes

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/moby/spdystream/spdy"
)

// The headers of a stream, and the type of one for errors: k8s.io/api/core/v1, StreamType and so on.
const (
	typeHeader    = "streamType"
	requestHeader = "requestID"
	errorType     = "error"
	resizeType    = "resize"
)

// guardBuffer is how much is read at a time.
const guardBuffer = 32 << 10

// A Guard reads the frames of a client. One goroutine may read, and another call Written.
type Guard struct {
	from   io.Reader
	limits Limits
	frames Frames
	opened int                      // streams in all
	open   map[uint32]bool          // those that the client may send on: whether they are for data
	sizes  map[uint32]*sizes        // those of open that terminal sizes come on
	kept   map[uint32]end           // those that the library keeps: which ends have ended them
	alone  map[string]time.Duration // when a connection got a stream for errors alone, in waited
	waited time.Duration            // for the client

	buf []byte
	out []byte // not yet handed out
	err error

	answers answers
}

// An end is a set of ends of a connection. The library keeps a stream until both have ended it, or
// one has reset it.
type end uint8

const (
	byClient end = 1 << iota
	byServer
	both = byClient | byServer
)

// Limits bound the streams of a client; zero is no bound.
type Limits struct {
	Streams int // in all
	Open    int // at a time; one that a single end has ended counts

	// Pair is how long after the stream for errors of a forwarded connection that for its data may
	// follow; zero is no bound, and no order. The library forgets a pair that is late, and never
	// ends what it has read for it.
	Pair time.Duration
	// Answer is how long the end is put off at most until all streams have been answered; zero is not
	// at all. The library waits for ever to write to a stream that it could not answer.
	Answer time.Duration
}

// NewGuard makes one that reads from from, from the first frame on.
func NewGuard(from io.Reader, l Limits) *Guard {
	return &Guard{
		from: from, limits: l, open: make(map[uint32]bool), sizes: make(map[uint32]*sizes),
		kept: make(map[uint32]end), alone: make(map[string]time.Duration),
		answers: answers{due: make(map[uint32]bool), fewer: make(chan struct{}, 1)},
	}
}

// Read implements io.Reader. Frames of data may be split. After a frame that is not passed on all
// reads fail.
func (g *Guard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(g.out) == 0 {
		if g.err != nil {
			g.answers.wait(g.limits.Answer)
			return 0, g.err
		}
		if g.buf == nil {
			g.buf = make([]byte, guardBuffer)
		}
		began := time.Now()
		n, err := g.from.Read(g.buf)
		g.waited += time.Since(began)
		g.out = g.out[:0]
		if g.err = g.take(g.buf[:n]); g.err == nil {
			g.err = err
		}
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}

// take adds what may be passed of b to what is handed out.
func (g *Guard) take(b []byte) error {
	for len(b) > 0 {
		body, control, rest, err := g.frames.Next(b)
		if err == nil && control != nil {
			err = g.check(control)
		}
		if err != nil {
			return err
		}
		if control != nil {
			g.out = append(g.out, control...)
		} else if body != nil {
			id, flags := g.frames.Stream(), g.frames.Flags()
			// What comes on a stream that is over is left out: kubectl sends more after its reset.
			switch data, open := g.open[id]; {
			case open && !data && len(body) > 0:
				return fmt.Errorf("%w: data on stream %d, which is for errors", ErrRefused, id)
			case open:
				if s := g.sizes[id]; s != nil {
					if err := s.take(body); err != nil {
						return err
					}
				}
				g.out = AppendData(g.out, id, flags, body)
			}
			if flags&FinFlag != 0 {
				g.ended(id, byClient)
			}
		}
		b = rest
	}
	return nil
}

// ended notes that an end has ended a stream, or both.
func (g *Guard) ended(id uint32, by end) {
	if by&byClient != 0 {
		g.close(id)
	}
	before, ok := g.kept[id]
	if !ok {
		return
	}
	if g.kept[id] = before | by; before|by == both {
		g.close(id)
		delete(g.kept, id)
	}
}

// close notes that the client sends no more on a stream.
func (g *Guard) close(id uint32) {
	delete(g.open, id)
	delete(g.sizes, id)
}

// check counts the streams.
func (g *Guard) check(control []byte) error {
	frame, err := g.frames.Read(control)
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *spdy.SynStreamFrame:
		return g.admit(f)
	case *spdy.RstStreamFrame:
		g.ended(uint32(f.StreamId), both)
	case *spdy.SynReplyFrame, *spdy.HeadersFrame: // no server opens streams, or reads more headers
		return fmt.Errorf("%w: %T from a client", ErrRefused, frame)
	}
	return nil
}

// admit looks at a new stream.
func (g *Guard) admit(f *spdy.SynStreamFrame) error {
	id, kind := uint32(f.StreamId), f.Headers.Get(typeHeader)
	g.opened++
	g.open[id], g.kept[id] = kind != errorType, 0
	if kind == resizeType {
		g.sizes[id] = new(sizes)
	}
	if f.CFHeader.Flags&spdy.ControlFlagFin != 0 {
		g.ended(id, byClient)
	}
	for _, over := range g.answers.takeEnds() {
		g.ended(over.stream, over.by)
	}
	if m := g.limits.Streams; m > 0 && g.opened > m {
		return fmt.Errorf("%w: more than the %d streams of the request", ErrRefused, m)
	}
	if m := g.limits.Open; m > 0 && max(len(g.kept), len(g.alone)) > m {
		return fmt.Errorf("%w: more than %d streams at a time", ErrRefused, m)
	}
	if g.limits.Pair > 0 {
		of := f.Headers.Get(requestHeader)
		if kind == errorType {
			of = cmp.Or(of, fmt.Sprint(id))
			if _, ok := g.alone[of]; ok {
				return fmt.Errorf("%w: stream %d is a second one for the same errors", ErrRefused, id)
			}
			g.alone[of] = g.waited
		} else {
			of = cmp.Or(of, fmt.Sprint(id-2)) // as the library has it
			since, ok := g.alone[of]
			if delete(g.alone, of); !ok || g.waited-since > g.limits.Pair {
				return fmt.Errorf("%w: stream %d has none for its errors, or that was opened more than %v ago", ErrRefused, id, g.limits.Pair)
			}
		}
	}
	g.answers.await(id)
	return nil
}

// Written is told all that is written to the client. One goroutine may call it at a time.
func (g *Guard) Written(p []byte) { g.answers.written(p) }

// answers are the streams that are to be answered.
type answers struct {
	mu     sync.Mutex // guards the following
	due    map[uint32]bool
	frames Frames
	lost   bool    // what is written makes no sense
	ends   []ended // since they were taken

	fewer chan struct{} // has one after a change
}

// ended is a stream that the server has ended; by is both if it has reset it.
type ended struct {
	stream uint32
	by     end
}

func (a *answers) await(stream uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due[stream] = true
}

func (a *answers) answeredLocked(stream uint32) {
	delete(a.due, stream)
	select {
	case a.fewer <- struct{}{}:
	default:
	}
}

// written looks for replies and ends.
func (a *answers) written(p []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(p) > 0 && !a.lost {
		var body, control []byte
		var err error
		if body, control, p, err = a.frames.Next(p); err != nil {
			a.lost = true
		}
		if body != nil && a.frames.Flags()&FinFlag != 0 {
			a.ends = append(a.ends, ended{a.frames.Stream(), byServer})
		}
		if len(control) < headerSize+4 {
			continue
		}
		switch kind := spdy.ControlFrameType(binary.BigEndian.Uint16(control[2:])); kind {
		case spdy.TypeSynReply, spdy.TypeRstStream:
			id := binary.BigEndian.Uint32(control[headerSize:]) & 0x7fffffff
			a.answeredLocked(id)
			if kind == spdy.TypeRstStream {
				a.ends = append(a.ends, ended{id, both})
			} else if control[4]&FinFlag != 0 {
				a.ends = append(a.ends, ended{id, byServer})
			}
		}
	}
}

// takeEnds returns what the server has ended since the last time.
func (a *answers) takeEnds() []ended {
	a.mu.Lock()
	defer a.mu.Unlock()
	ends := a.ends
	a.ends = nil
	return ends
}

// wait returns when all have been answered, or that time is over.
func (a *answers) wait(most time.Duration) {
	over := time.NewTimer(most)
	defer over.Stop()
	for {
		a.mu.Lock()
		due := len(a.due)
		a.mu.Unlock()
		if due == 0 {
			return
		}
		select {
		case <-a.fewer:
		case <-over.C:
			return
		}
	}
}
