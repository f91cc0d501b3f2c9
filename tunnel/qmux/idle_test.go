// What idle sessions and streams hold.

package qmux

import (
	"io"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A stream that has said something holds nothing once that is acknowledged and read.
func TestIdleStreamHoldsNothing(t *testing.T) {
	d, a := overMemory(t, tunnel.Options{})
	defer func() { _, _ = d.Close(), a.Close() }()
	w, err := d.Open(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	r, err := a.Accept(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := waiting(t); ; {
		kept, unread := d.(*Session).Link().Queued, held(a.(*Session))
		if kept == 0 && unread == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d bytes are kept, %d are unread", kept, unread)
		}
	}
}

func held(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread
}
