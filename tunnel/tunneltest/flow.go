// Flows: bulk in all directions, whose every byte is accounted for, and faults in
// between.

package tunneltest

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A flow sends random bytes along one direction of a stream and knows on the far
// side whether they are the same.
type flow struct {
	size     int64
	toll     *toll // of all flows
	from, to tunnel.Stream
}

func (f flow) run(t *testing.T, seed uint64) {
	var wg sync.WaitGroup
	said, heard := sha256.New(), sha256.New()
	wg.Go(func() {
		var key [32]byte
		key[0] = byte(seed)
		src := io.TeeReader(io.LimitReader(rand.NewChaCha8(key), f.size), said)
		// The writes are of all sizes, and the reads too.
		if err := inPieces(f.from, src, rand.New(rand.NewPCG(seed, 1))); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := f.from.CloseWrite(); err != nil {
			t.Errorf("close write: %v", err)
		}
	})
	n, err := io.Copy(io.MultiWriter(heard, f.toll), f.to)
	wg.Wait()
	if err != nil || n != f.size || !same(said, heard) {
		t.Errorf("of %d bytes %d arrived, the same: %t, %v", f.size, n, same(said, heard), err)
	}
}

func same(a, b hash.Hash) bool { return bytes.Equal(a.Sum(nil), b.Sum(nil)) }

// inPieces writes what r gives in pieces of random sizes.
func inPieces(w io.Writer, r io.Reader, random *rand.Rand) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(r, buf[:1+random.IntN(len(buf))])
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		if err != nil {
			return nil // the end
		}
	}
}

// A toll counts what arrives. Past next bytes nothing more is taken before the
// fault that is due has come, however slow the machine is.
type toll struct {
	mu      sync.Mutex
	raised  sync.Cond
	n, next int64
	due     chan struct{} // holds at most one
}

func newToll(first int64) *toll {
	t := &toll{next: first, due: make(chan struct{}, 1)}
	t.raised.L = &t.mu
	return t
}

func (t *toll) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n += int64(len(p)); t.n >= t.next; {
		select {
		case t.due <- struct{}{}:
		default:
		}
		t.raised.Wait()
	}
	return len(p), nil
}

// raise lets step bytes more arrive.
func (t *toll) raise(step int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = t.n + step
	t.raised.Broadcast()
}

func (t *toll) count() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// flows runs two streams opened from either end, with bulk in both directions of
// each, and calls fault once every step bytes until all has arrived.
func (r *resumption) flows(t *testing.T, size, step int64, fault func()) {
	t.Helper()
	toll := newToll(step)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for i := range uint64(4) {
		a, b := r.dialer, r.accepter
		if i%2 == 1 {
			a, b = b, a
		}
		near, far := streams(t, a, b)
		wg.Go(func() { flow{size: size, toll: toll, from: near, to: far}.run(t, 2*i) })
		wg.Go(func() { flow{size: size, toll: toll, from: far, to: near}.run(t, 2*i+1) })
	}
	go func() {
		defer close(done)
		wg.Wait()
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer toll.raise(math.MaxInt64 / 2)
	idle := time.Now()
	for last := int64(0); ; {
		select {
		case <-done:
			return
		case <-toll.due:
			fault()
			toll.raise(step)
		case <-tick.C:
		}
		n := toll.count()
		if n > last {
			last, idle = n, time.Now()
		}
		if time.Since(idle) > patience {
			t.Fatalf("nothing arrives any more after %d bytes: %+v", n, r.dialer.Link())
		}
	}
}
