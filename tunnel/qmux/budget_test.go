// What is kept to send again, and who may have how much of it.

package qmux

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

func randomBytes(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// A session keeps to its bound while nothing is acknowledged, and goes on when
// something is; the other direction goes on meanwhile.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 256 << 10
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		d.mu.Lock()
		d.conf.maxRetained = size
		d.mu.Unlock()
		near, far := opened(t, d, a)
		data := randomBytes(1, 4*size)
		_ = near.SetWriteDeadline(time.Now().Add(time.Minute))
		wrote, err := near.Write(data)
		if !errors.Is(err, os.ErrDeadlineExceeded) || wrote < size/4 || wrote >= len(data) {
			t.Fatalf("wrote %d, %v", wrote, err)
		}
		if kept := d.Link().Queued; kept > size {
			t.Errorf("%d bytes are kept", kept)
		}
		says(t, far, "against the stream")
		hears(t, near, "against the stream")
		n.cut() // what has come is not sent again
		time.Sleep(10 * time.Second)
		if l := d.Link(); l.Resumes == 0 || l.Replayed != 0 {
			t.Errorf("%+v", l)
		}
		got := make([]byte, wrote)
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, data[:wrote]) {
			t.Errorf("read: %v", err)
		}
		time.Sleep(time.Second) // it is acknowledged soon
		if kept := d.Link().Queued; kept != 0 {
			t.Errorf("%d bytes are kept of a session that says nothing", kept)
		}
		n.close(t, d, a)
	})
}

// With nothing left of the budget a stream goes on with a small block.
func TestBudgetEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		n.registry.conf.budget = &budget{limit: 1}
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, a, d)
		data := randomBytes(2, 1<<20)
		go func() { _, _ = near.Write(data) }() // the reader notices
		got := make([]byte, len(data))
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read: %v", err)
		}
		if kept := a.Link().Queued; kept > 0 {
			t.Errorf("%d bytes are kept", kept)
		}
		n.close(t, d, a)
	})
}

// Parked sessions keep to the budget that they share, each takes something, and it is
// given back.
func TestBudgetIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			pairs = 50
			limit = 1 << 20
		)
		n := newNetwork(tunnel.Options{})
		budget := &budget{limit: limit}
		n.registry.conf.budget = budget
		var all []*Session
		var streams []tunnel.Stream
		for i := range pairs {
			n.set(func() { n.identity = fmt.Sprint("system:node:", i) })
			d, a := n.pair(t, tunnel.Options{})
			st, _ := opened(t, a, d)
			all, streams = append(all, d, a), append(streams, st)
		}
		n.set(func() { n.down = errNoWay })
		n.cut()
		synctest.Wait()
		data := make([]byte, 1<<20)
		wrote := 0
		for _, st := range streams {
			_ = st.SetWriteDeadline(time.Now().Add(time.Millisecond))
			k, err := st.Write(data)
			if k == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("wrote %d, %v", k, err)
			}
			wrote += k
		}
		if used := budget.used.Load(); used > limit || used < limit/2 || wrote > limit+pairs*smallBlock {
			t.Errorf("%d bytes of the budget are used, %d were written", used, wrote)
		}
		n.close(t, all...)
		if used := budget.used.Load(); used != 0 {
			t.Errorf("in the end: %d", used)
		}
	})
}

// An idle session holds its connection's reader and little else, whatever it has carried
// before.
func TestIdleMemory(t *testing.T) {
	const (
		pairs = 200
		limit = 20 << 10 // an end, and its part of the connection in memory: 8 to 12 KiB, and up to 15 with the race detector
	)
	n := newNetwork(tunnel.Options{})
	usage := func() uint64 {
		var m runtime.MemStats
		for range 8 { // pools are emptied by the second, and each halves stacks that are too large
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := usage()
	var all []*Session
	data := make([]byte, 64<<10)
	for i := range pairs {
		n.set(func() { n.identity = fmt.Sprint("system:node:", i) })
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		says(t, near, string(data))
		hears(t, far, string(data))
		_, _ = near.Close(), far.Close()
		all = append(all, d, a)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, s := range all {
		for ctx := waiting(t); s.Link().Queued > 0 || s.streamCount() > 0; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%d streams, %+v", s.streamCount(), s.Link())
			}
		}
	}
	each := (int64(usage()) - int64(before)) / int64(len(all))
	t.Logf("%d bytes", each)
	if each > limit {
		t.Errorf("an idle end holds %d bytes", each)
	}
	runtime.KeepAlive(data)
	var closing sync.WaitGroup
	for _, s := range all {
		closing.Go(func() { _ = s.Close() }) // never fails
	}
	closing.Wait()
	n.close(t)
}
