// Phases: what is measured of one system at a time.

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxDials bounds the dials of a measurement: each leaves a port that cannot be
// used again for a while.
const maxDials = 5000

// besides is how many bulk streams keep a round trip company.
const besides = 8

// Figures are by name; see figureTable.
type figures map[string]float64

// A phase measures one thing.
type phase struct {
	what string
	run  func(ctx context.Context, d time.Duration, s *system) (figures, error)
}

// phases are made in this order.
var phases = []phase{
	{"new connections", dials},
	{"round trips, idle", func(ctx context.Context, d time.Duration, s *system) (figures, error) {
		return roundTrips(ctx, d, s, 0, "rtt_idle")
	}},
	{"round trips beside bulk", func(ctx context.Context, d time.Duration, s *system) (figures, error) {
		return roundTrips(ctx, d, s, besides, "rtt_bulk")
	}},
	{"1 stream to the client", func(ctx context.Context, d time.Duration, s *system) (figures, error) {
		return bulk(ctx, d, s, modeSource, 1, "down_1")
	}},
	{"1 stream to the target", func(ctx context.Context, d time.Duration, s *system) (figures, error) {
		return bulk(ctx, d, s, modeDiscard, 1, "up_1")
	}},
	{"16 streams to the client", func(ctx context.Context, d time.Duration, s *system) (figures, error) {
		return bulk(ctx, d, s, modeSource, 16, "down_16")
	}},
	{"128 streams to the client", func(ctx context.Context, d time.Duration, s *system) (figures, error) {
		return bulk(ctx, d, s, modeSource, 128, "down_128")
	}},
}

// open dials and writes the mode and what follows it in one go.
func open(ctx context.Context, s *system, mode byte, more ...byte) (net.Conn, error) {
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err = c.SetDeadline(time.Now().Add(patience)); err == nil {
		_, err = c.Write(append([]byte{mode}, more...))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// readEcho reads the one byte that open has sent to be echoed.
func readEcho(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if b[0] != 'x' {
		return errEcho
	}
	return nil
}

// dialEcho times a connection from its dial to its first byte back, and appends
// that to times.
func dialEcho(ctx context.Context, s *system, times []time.Duration) ([]time.Duration, error) {
	began := time.Now()
	c, err := open(ctx, s, modeEcho, 'x')
	if err != nil {
		return times, err
	}
	defer c.Close()
	if err := readEcho(c); err != nil {
		return times, err
	}
	return append(times, time.Since(began)), nil
}

// dials makes one connection after the other.
func dials(ctx context.Context, d time.Duration, s *system) (figures, error) {
	var (
		times []time.Duration
		err   error
	)
	for end := time.Now().Add(d); (time.Now().Before(end) || len(times) == 0) && len(times) < maxDials; {
		if times, err = dialEcho(ctx, s, times); err != nil {
			return nil, err
		}
	}
	return quantiles("dial", times), nil
}

// quantiles are the median and the 99th percentile, in microseconds.
func quantiles(name string, times []time.Duration) figures {
	slices.Sort(times)
	at := func(percent int) float64 {
		i := min(len(times)*percent/100, len(times)-1)
		return float64(times[i].Nanoseconds()) / 1e3
	}
	return figures{name + "_p50_us": at(50), name + "_p99_us": at(99)}
}

// roundTrips bounces 64 bytes, beside so many streams of bulk.
func roundTrips(ctx context.Context, d time.Duration, s *system, streams int, name string) (_ figures, err error) {
	c, err := open(ctx, s, modeEcho, 'x')
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err = readEcho(c); err != nil {
		return nil, err
	}
	l := newLoad(s, modeSource)
	defer func() { err = errors.Join(err, l.stop()) }()
	if err = l.start(ctx, streams); err != nil {
		return nil, err
	}
	if streams > 0 {
		if err = pause(ctx, warmUp(d)); err != nil {
			return nil, err
		}
	}
	var (
		times     []time.Duration
		out, back = filler()[:64], make([]byte, 64)
		before    = l.moved()
		began     = time.Now()
	)
	for time.Since(began) < d || len(times) == 0 {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
		at := time.Now()
		if _, err := c.Write(out); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, back); err != nil {
			return nil, err
		}
		times = append(times, time.Since(at))
		if !bytes.Equal(out, back) {
			return nil, errEcho
		}
	}
	f := quantiles(name, times)
	if streams > 0 {
		f[name+"_MBps"] = perSecond(l.moved()-before, time.Since(began))
	}
	return f, nil
}

// bulk moves as much as can be through so many streams.
func bulk(ctx context.Context, d time.Duration, s *system, mode byte, streams int, name string) (_ figures, err error) {
	l := newLoad(s, mode)
	defer func() { err = errors.Join(err, l.stop()) }()
	if err = l.start(ctx, streams); err != nil {
		return nil, err
	}
	if err = pause(ctx, warmUp(d)); err != nil {
		return nil, err
	}
	cpu := func() (control, node time.Duration, err error) {
		if s.control == nil {
			return 0, 0, nil
		}
		a, err := s.control.used()
		if err != nil {
			return 0, 0, err
		}
		b, err := s.node.used()
		return a.CPU, b.CPU, err
	}
	control0, node0, err := cpu()
	if err != nil {
		return nil, err
	}
	before, began := l.moved(), time.Now()
	if err = pause(ctx, d); err != nil {
		return nil, err
	}
	for l.moved() == before && time.Since(began) < patience { // a machine busy with something else
		if err = pause(ctx, d); err != nil {
			return nil, err
		}
	}
	moved, took := l.moved()-before, time.Since(began)
	control1, node1, err := cpu()
	if err != nil {
		return nil, err
	}
	if moved == 0 {
		return nil, fmt.Errorf("nothing has moved in %s", took)
	}
	f := figures{name + "_MBps": perSecond(moved, took)}
	if s.control != nil {
		gb := float64(moved) / 1e9
		f[name+"_control_s_per_GB"] = (control1 - control0).Seconds() / gb
		f[name+"_node_s_per_GB"] = (node1 - node0).Seconds() / gb
		f[name+"_both_s_per_GB"] = (control1 - control0 + node1 - node0).Seconds() / gb
	}
	return f, nil
}

func perSecond(moved int64, took time.Duration) float64 { return float64(moved) / 1e6 / took.Seconds() }

// warmUp is how long bulk moves before anything is measured.
func warmUp(d time.Duration) time.Duration { return min(d/4, 300*time.Millisecond) }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A load is streams that move as much as they can.
type load struct {
	system *system
	mode   byte
	conns  []net.Conn
	down   atomic.Int64 // bytes that reached the client
	halt   atomic.Bool
	moving sync.WaitGroup

	mu  sync.Mutex
	err error // guarded by mu; the first
}

func newLoad(s *system, mode byte) *load { return &load{system: s, mode: mode} }

// start opens streams. None moves before all are open, or those which do would
// hold up the others.
func (l *load) start(ctx context.Context, streams int) error {
	l.system.target.sourcing.Store(l.mode == modeSource)
	for range streams {
		c, err := l.system.dial(ctx)
		if err != nil {
			return err
		}
		l.conns = append(l.conns, c)
	}
	for _, c := range l.conns {
		if _, err := c.Write([]byte{l.mode}); err != nil {
			return err
		}
		l.moving.Go(func() { l.move(c) })
	}
	return nil
}

// move moves until stop, and what comes until its end.
func (l *load) move(c net.Conn) {
	b := filler()
	for l.mode == modeSource || !l.halt.Load() {
		var (
			n   int
			err error
		)
		if l.mode == modeSource {
			if n, err = c.Read(b); err == nil && l.halt.Load() {
				err = c.SetReadDeadline(time.Now().Add(patience)) // it comes on, however much there is
			}
			l.down.Add(int64(n))
		} else {
			_, err = c.Write(b)
		}
		if err != nil && (!l.halt.Load() || errors.Is(err, os.ErrDeadlineExceeded)) {
			l.mu.Lock()
			if l.err == nil {
				l.err = err
			}
			l.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// moved is how much has arrived.
func (l *load) moved() int64 {
	if l.mode == modeDiscard {
		return l.system.target.received.Load()
	}
	return l.down.Load()
}

// stop ends the streams. It fails if one ended by itself. Those to the client end at
// the target, in good order: some transports take a minute to pass on that a stream was
// given up in the middle.
func (l *load) stop() error {
	l.halt.Store(true)
	if l.mode == modeSource {
		l.system.target.sourcing.Store(false)
		for _, c := range l.conns {
			_ = c.SetReadDeadline(time.Now().Add(patience)) // if that fails c has failed
		}
		l.moving.Wait()
	}
	for _, c := range l.conns {
		_ = c.Close() // mover and target notice
	}
	l.moving.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
