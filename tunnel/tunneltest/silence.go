// What a transport must pass whose sessions end with their connection.

package tunneltest

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// RunSilence runs what sessions must pass whose peer falls silent.
func RunSilence(t *testing.T, mk MakeResumer) {
	for name, busy := range map[string]bool{"Idle": false, "Busy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testSilence(t, mk, busy)
		})
	}
}

// Calls that wait fail with the cause of the session: who reads a stream alone has no other reason
// to log.
func testSilence(t *testing.T, mk MakeResumer, busy bool) {
	a, b, net := mk(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: 50 * time.Millisecond, DetachWindow: -1}})
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	near, far := streams(t, a, b)
	back, forth := streams(t, b, a)
	full, _ := streams(t, a, b)
	_, answers := streams(t, a, b)
	net.Stall(true)
	var calls sync.WaitGroup
	fails := func(what string, s tunnel.Session, call func() error) {
		calls.Go(func() {
			err := call()
			<-s.Context().Done()
			if cause := context.Cause(s.Context()); !errors.Is(cause, tunnel.Dead) || !errors.Is(err, tunnel.Dead) {
				t.Errorf("%s: %v; the session: %v", what, err, cause)
			}
		})
	}
	read := func(st tunnel.Stream) func() error {
		return func() error { _, err := st.Read(make([]byte, 1)); return err }
	}
	fails("read of the opener", a, read(near))
	fails("read of the accepter", b, read(far))
	fails("read of the other opener", b, read(back))
	fails("read of the other accepter", a, read(forth))
	if busy {
		fails("write of the opener", a, func() error { _, err := io.Copy(full, pattern{}); return err })
		fails("write of the accepter", b, func() error { _, err := io.Copy(answers, pattern{}); return err })
	}
	finishes(t, "calls of a dead session", calls.Wait)
}
