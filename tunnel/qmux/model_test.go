// A session against a model: whatever is cut, and in whatever order connections bring
// things, each byte is read once, and in order.

package qmux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A cutter makes connections in memory and cuts them.
type cutter struct {
	registry *registry
	accepted chan *Session
	delays   []time.Duration // of the connections' directions, in turn
	// cut says of the n-th record of the session, from 1, whether its connection is cut
	// before or after it has got through.
	cut func(n int) (before, after bool)

	carrying sync.WaitGroup

	mu      sync.Mutex // guards the following
	records int
	made    int
}

// dial makes a connection, both ends of which go through the cutter.
func (k *cutter) dial(context.Context) (secured, error) {
	near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	k.mu.Lock()
	one, two := k.delay(), k.delay()
	k.made++
	k.mu.Unlock()
	a, b := newFragile(k, near, far, one), newFragile(k, far, near, two)
	go func() {
		s, err := k.registry.acceptOwn(context.Background(), bare{newBatch(b)})
		if err == nil && s != nil {
			k.accepted <- s
		}
	}()
	return bare{newBatch(a)}, nil
}

func (k *cutter) delay() time.Duration {
	if len(k.delays) == 0 {
		return 0
	}
	d := k.delays[0]
	k.delays = append(k.delays[1:], d)
	return d
}

// A fragile connection may be cut, and takes its time.
type fragile struct {
	net.Conn
	k     *cutter
	other net.Conn
	delay time.Duration

	under chan parcel // on its way
	done  chan struct{}
	once  sync.Once
}

// A parcel is bytes, after which the direction may end or the connection be cut.
type parcel struct {
	bytes    []byte
	due      time.Time
	end, cut bool
}

func newFragile(k *cutter, c, other net.Conn, delay time.Duration) *fragile {
	f := &fragile{Conn: c, k: k, other: other, delay: delay, under: make(chan parcel, 1<<12), done: make(chan struct{})}
	k.carrying.Go(f.carry)
	return f
}

// carry brings what is under way to the other end.
func (f *fragile) carry() {
	for {
		select {
		case p := <-f.under:
			time.Sleep(time.Until(p.due))
			_, _ = f.Conn.Write(p.bytes) // or it is cut
			if p.end {
				_ = tunnel.CloseWrite(f.Conn)
			}
			if p.cut {
				f.breaks()
			}
		case <-f.done:
			return
		}
	}
}

// Write takes p, the records of a turn, one by one.
func (f *fragile) Write(p []byte) (n int, err error) {
	for n < len(p) {
		one := p[n:][:sizeBytes+int(binary.BigEndian.Uint16(p[n:])&0x3fff)] // see putSize
		f.k.mu.Lock()
		f.k.records++
		before, after := f.k.cut(f.k.records)
		f.k.mu.Unlock()
		if before {
			f.breaks()
			return n, syscall.ECONNRESET
		}
		select {
		case f.under <- parcel{bytes: bytes.Clone(one), due: time.Now().Add(f.delay), cut: after}:
			n += len(one)
		case <-f.done:
			return n, net.ErrClosed
		}
	}
	return n, nil
}

func (f *fragile) breaks() { _, _ = tunnel.Abort(f.Conn), tunnel.Abort(f.other) }

// CloseWrite ends our direction.
func (f *fragile) CloseWrite() error {
	select {
	case f.under <- parcel{due: time.Now().Add(f.delay), end: true}:
	case <-f.done:
	}
	return nil
}

// Close ends both.
func (f *fragile) Close() error {
	f.once.Do(func() { close(f.done) })
	return f.Conn.Close()
}

// run has both ends say things to each other on k's connections, checks them, and says
// how many records there were.
func (k *cutter) run(t *testing.T, sizes []int) (records int) {
	t.Helper()
	o := tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: 10 * time.Minute, Connections: 4}}
	k.registry = newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil })
	k.accepted = make(chan *Session, 1)
	first, _ := k.dial(t.Context())
	d, err := dialOn(t.Context(), first, k.dial, o)
	for err != nil { // the cut hit the greeting: whoever dials tries again
		var again secured
		again, _ = k.dial(t.Context())
		select {
		case old := <-k.accepted:
			_ = old.Close()
		default:
		}
		d, err = dialOn(t.Context(), again, k.dial, o)
	}
	a := <-k.accepted
	for a.id != d.id {
		_ = a.Close()
		a = <-k.accepted
	}
	var group sync.WaitGroup
	for _, end := range []struct{ near, far *Session }{{d, a}, {a, d}} {
		group.Go(func() { echoes(end.far, len(sizes)+1) })
		for i, size := range sizes {
			group.Go(func() { talk(t, end.near, size, uint64(i)) })
		}
		group.Go(func() { giveUp(t, end.near) })
	}
	group.Wait()
	// What was to be acknowledged has been: soon, or after another connection.
	for range 120 {
		time.Sleep(time.Second) // the bubble's clock
		synctest.Wait()
		if d.isEmpty() && a.isEmpty() {
			break
		}
	}
	for name, s := range map[string]*Session{"dialer": d, "accepter": a} {
		if !s.holdsNothing() {
			t.Errorf("%s holds something in the end: %+v", name, s.Link())
		}
		if n := s.streamCount(); n > 0 {
			t.Errorf("%s has %d streams in the end", name, n)
		}
	}
	k.mu.Lock()
	records = k.records
	k.mu.Unlock()
	_, _ = d.Close(), a.Close()
	k.carrying.Wait() // each connection has been closed
	return records
}

// isEmpty says whether the session holds no stream, and nothing of any.
func (s *Session) isEmpty() bool { return s.holdsNothing() && s.streamCount() == 0 }

func (s *Session) streamCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// echoes gives n streams back what they say.
func echoes(s *Session, n int) {
	var group sync.WaitGroup
	defer group.Wait()
	for range n {
		st, err := s.Accept(context.Background())
		if err != nil {
			return
		}
		group.Go(func() {
			if _, err := io.Copy(st, st); err != nil {
				_ = tunnel.Abort(st)
				return
			}
			_ = st.Close()
		})
	}
}

// talk says size bytes on a stream, and hears them again.
func talk(t *testing.T, s *Session, size int, seed uint64) {
	st, err := s.Open(context.Background())
	if err != nil {
		t.Errorf("open: %v", err)
		return
	}
	said := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(size)})
	_, _ = source.Read(said) // never fails
	r := rand.New(source)
	var group sync.WaitGroup
	group.Go(func() {
		for rest := said; len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(40<<10))
			if _, err := st.Write(rest[:n]); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			rest = rest[n:]
		}
		if err := st.CloseWrite(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	heard, err := io.ReadAll(st)
	if err != nil || !bytes.Equal(heard, said) {
		t.Errorf("%d bytes: heard %d, the same: %t, %v", size, len(heard), bytes.Equal(heard, said), err)
	}
	group.Wait()
	_ = st.Close()
}

// giveUp says something on a stream and gives it up.
func giveUp(t *testing.T, s *Session) {
	st, err := s.Open(context.Background())
	if err != nil {
		t.Errorf("open: %v", err)
		return
	}
	_, _ = st.Write(make([]byte, 100<<10)) // some of which will come back
	_, _ = io.ReadFull(st, make([]byte, 1000))
	_ = tunnel.Abort(st)
	if _, err := st.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read of a stream that was given up: %v", err)
	}
}

// never cuts.
func never(int) (before, after bool) { return false, false }

// TestCutEverywhere cuts a session once, at each of its records, before and after that has
// got through: at every acknowledgement, and between the records of a turn. The largest
// streams are cut at some of theirs. They move to connections of their own.
func TestCutEverywhere(t *testing.T) {
	for _, tt := range []struct {
		sizes []int
		step  int
		conns int // that a session makes at least, if none is cut
	}{
		{[]int{0, 1, 5000, 40 << 10}, 1, 1},
		{[]int{300 << 10}, 23, 2},
	} {
		k, records := &cutter{cut: never}, 0
		synctest.Test(t, func(t *testing.T) { records = k.run(t, tt.sizes) })
		if records < 20 || k.made < tt.conns {
			t.Fatalf("only %d records on %d connections", records, k.made)
		}
		if testing.Short() {
			tt.step *= 7
		}
		for at := 1; at <= records && !t.Failed(); at += tt.step {
			for _, after := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					k := &cutter{cut: func(n int) (bool, bool) { return n == at && !after, n == at && after }}
					k.run(t, tt.sizes)
					if t.Failed() {
						t.Logf("cut at record %d, after it: %t", at, after)
					}
				})
			}
		}
		t.Logf("cut %d records, each %d", records, tt.step)
	}
}

// TestCutAndReorder cuts connections of different speeds again and again.
func TestCutAndReorder(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var delays []time.Duration
			for range 7 {
				delays = append(delays, time.Duration(r.IntN(20))*time.Millisecond)
			}
			k := &cutter{delays: delays, cut: func(int) (bool, bool) { n := r.IntN(180); return n == 0, n == 1 }}
			k.run(t, []int{300, 100 << 10, 400 << 10, 400 << 10})
			if t.Failed() {
				t.Logf("seed %d, %d connections", seed, k.made)
			}
		})
		if t.Failed() {
			return
		}
	}
}
