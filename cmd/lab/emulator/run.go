// Run: packets moved between two devices through two Links.

package emulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxPacket is the largest IP packet there is.
const maxPacket = 64 << 10

// A Wire joins two devices by a Link for each direction. It is safe for concurrent
// use.
type Wire struct {
	forth, back direction
}

// direction is a Link with what it takes to run it.
type direction struct {
	wake chan struct{} // has room for one: the due time may have changed
	mu   sync.Mutex    // guards link
	link *Link
}

// NewWire returns a wire with the shapes of both directions. The seed decides every
// chance on it.
func NewWire(forth, back Shape, seed uint64) (*Wire, error) {
	f, err := New(forth, seed)
	if err != nil {
		return nil, err
	}
	b, err := New(back, seed+1)
	if err != nil {
		return nil, err
	}
	return &Wire{
		forth: direction{wake: make(chan struct{}, 1), link: f},
		back:  direction{wake: make(chan struct{}, 1), link: b},
	}, nil
}

// SetShape changes both directions from now on; if a shape makes no sense, neither.
func (w *Wire) SetShape(forth, back Shape) error {
	if err := errors.Join(forth.Check(), back.Check()); err != nil {
		return fmt.Errorf("shape of a link: %w", err)
	}
	return errors.Join(w.forth.setShape(forth), w.back.setShape(back))
}

// Counts returns what has happened in both directions.
func (w *Wire) Counts() (forth, back Counts) { return w.forth.counts(), w.back.counts() }

// Run moves packets between near and far until ctx is done, then returns nil. One
// Read of a device is one packet, and so is one Write. It closes both devices:
// nothing else stops a Read. An error of a device that is not its closing ends the
// run.
func (w *Wire) Run(ctx context.Context, near, far io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ends [4]error
	var wg sync.WaitGroup
	for i, part := range []func() error{
		func() error { return w.forth.receive(near) },
		func() error { return w.back.receive(far) },
		func() error { return w.forth.deliver(ctx, far) },
		func() error { return w.back.deliver(ctx, near) },
	} {
		wg.Go(func() {
			defer cancel()
			ends[i] = part()
		})
	}
	<-ctx.Done()
	closing := errors.Join(near.Close(), far.Close())
	wg.Wait()
	for _, err := range ends {
		if err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, io.EOF) {
			return fmt.Errorf("emulate a link: %w", err)
		}
	}
	if closing != nil {
		return fmt.Errorf("emulate a link: %w", closing)
	}
	return nil
}

func (d *direction) setShape(s Shape) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.link.SetShape(s)
}

func (d *direction) counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.link.Counts()
}

// receive gives each packet of from to the link.
func (d *direction) receive(from io.Reader) error {
	buf := make([]byte, maxPacket)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return err
		}
		p := make([]byte, n)
		copy(p, buf)
		d.mu.Lock()
		d.link.Send(time.Now(), p)
		d.mu.Unlock()
		select {
		case d.wake <- struct{}{}:
		default: // deliver will look anyway
		}
	}
}

// deliver writes each packet to the far device when it is due.
func (d *direction) deliver(ctx context.Context, to io.Writer) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p, wait := d.next()
		if p != nil {
			if _, err := to.Write(p); err != nil && !lostByDevice(err) {
				return err
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-timer.C:
		}
	}
}

// next returns the packet that is due, or nil and how long to wait for one.
func (d *direction) next() ([]byte, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if p := d.link.Due(now); p != nil {
		return p, 0
	}
	due, ok := d.link.Next()
	if !ok {
		return nil, time.Hour
	}
	return nil, due.Sub(now)
}

// lostByDevice reports whether a device has refused one packet, as a network card
// does that is full or down; the next may pass.
func lostByDevice(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOBUFS)
}
