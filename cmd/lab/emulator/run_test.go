package emulator

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// rig runs a wire between two pipes, in virtual time.
type rig struct {
	near, far net.Conn // the ends a test holds
	wire      *Wire
	stop      context.CancelFunc
	done      chan error
}

func newRig(t *testing.T, forth, back Shape) *rig {
	t.Helper()
	w, err := NewWire(forth, back, 7)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &rig{wire: w, stop: stop, done: make(chan error, 1)}
	near, a := net.Pipe()
	far, b := net.Pipe()
	r.near, r.far = near, far
	go func() { r.done <- w.Run(ctx, a, b) }()
	return r
}

func (r *rig) close(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := r.near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the device is still open: %v", err)
	}
	_ = r.near.Close()
	_ = r.far.Close()
}

// read returns the next packet's number.
func read(t *testing.T, from net.Conn) int {
	t.Helper()
	buf := make([]byte, maxPacket)
	n, err := from.Read(buf)
	if err != nil || n < 4 {
		t.Fatalf("read %d bytes, %v", n, err)
	}
	return int(binary.BigEndian.Uint32(buf))
}

func write(t *testing.T, to net.Conn, n int) {
	t.Helper()
	if _, err := to.Write(numbered(n, 1250)); err != nil {
		t.Fatal(err)
	}
}

func TestRunDelaysEachWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Shape{Delay: 50 * time.Millisecond}, Shape{Delay: 20 * time.Millisecond})
		defer r.close(t)
		began := time.Now()
		for i := range 3 {
			write(t, r.near, i)
		}
		for i := range 3 {
			if n := read(t, r.far); n != i {
				t.Errorf("packet %d in place %d", n, i)
			}
		}
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("forth took %v", took)
		}
		write(t, r.far, 9)
		if n := read(t, r.near); n != 9 || time.Since(began) != 70*time.Millisecond {
			t.Errorf("packet %d after %v", n, time.Since(began))
		}
		forth, back := r.wire.Counts()
		if forth.Delivered != 3 || back.Delivered != 1 {
			t.Errorf("counts %+v and %+v", forth, back)
		}
	})
}

// TestRunWakesForAnEarlierPacket has a packet overtake the one for which the wire
// already waits.
func TestRunWakesForAnEarlierPacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Shape{Reorder: 1, Hold: time.Second}, Shape{})
		defer r.close(t)
		began := time.Now()
		write(t, r.near, 1)
		synctest.Wait()
		if err := r.wire.SetShape(Shape{}, Shape{}); err != nil {
			t.Fatal(err)
		}
		write(t, r.near, 2)
		if n := read(t, r.far); n != 2 || time.Since(began) != 0 {
			t.Errorf("packet %d after %v", n, time.Since(began))
		}
		if n := read(t, r.far); n != 1 || time.Since(began) != time.Second {
			t.Errorf("packet %d after %v", n, time.Since(began))
		}
	})
}

func TestRunPaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Shape{Rate: 125_000}, Shape{})
		defer r.close(t)
		began := time.Now()
		for i := range 20 {
			write(t, r.near, i)
		}
		for i := range 20 {
			if n := read(t, r.far); n != i || time.Since(began) != time.Duration(i+1)*10*time.Millisecond {
				t.Fatalf("packet %d after %v", n, time.Since(began))
			}
		}
	})
}

func TestRunStopsWithPacketsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Shape{Delay: time.Hour}, Shape{})
		write(t, r.near, 1)
		synctest.Wait()
		r.close(t)
	})
}

func TestRunEndsWhenADeviceIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Shape{}, Shape{})
		_ = r.far.Close()
		r.close(t)
	})
}

func TestRunReportsABrokenDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := NewWire(Shape{}, Shape{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		mine, theirs := net.Pipe()
		defer mine.Close()
		broken := errors.New("on fire")
		if err := w.Run(t.Context(), theirs, burning{broken}); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

// burning is a device that only fails.
type burning struct{ err error }

func (b burning) Read([]byte) (int, error)  { return 0, b.err }
func (b burning) Write([]byte) (int, error) { return 0, b.err }
func (b burning) Close() error              { return nil }

func TestWireRefusesBadShapes(t *testing.T) {
	if _, err := NewWire(Shape{}, Shape{Loss: 2}, 1); err == nil {
		t.Error("a loss of 200 % was taken")
	}
	w, err := NewWire(Shape{}, Shape{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if w.SetShape(Shape{MTU: 5}, Shape{Loss: 2}) == nil {
		t.Error("a loss of 200 % was taken")
	}
	if w.forth.link.shape != (Shape{}) {
		t.Error("one direction was changed though the other was refused")
	}
}
