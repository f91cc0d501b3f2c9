package overquic

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// Many sessions whose readers stall hold no more than what each may hold in any case and
// what was granted; when they have ended all of that is there again.
func TestReceiveBudget(t *testing.T) {
	const (
		sessions, streams = 6, 64 // more than the window of a session has room for
		piece             = 16 << 10
	)
	intake := tunnel.NewIntake(16 << 20)
	l, accepted := listen(t, tunnel.Options{Intake: intake})
	var (
		wg      sync.WaitGroup
		ends    []tunnel.Session
		written atomic.Int64
	)
	for range sessions {
		a, err := Transport().Dial(t.Context(), l.Addr().String(), tunnel.Options{TLS: tunneltest.TLS(t), Intake: tunnel.NewIntake(0)})
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, a, <-accepted)
		for range streams {
			near, err := a.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { // until the session ends
				for buf, err := make([]byte, piece), error(nil); err == nil; {
					var n int
					n, err = near.Write(buf)
					written.Add(int64(n))
				}
			})
		}
	}
	fixed := int64(sessions * firstWindow)
	// A Write that waits has not said yet what of it was taken.
	await(t, "full windows", func() bool { return written.Load() >= fixed-sessions*streams*piece })
	for before := int64(0); before < written.Load(); { // until nothing more is taken
		before = written.Load()
		<-time.After(300 * time.Millisecond)
	}
	granted := intake.Granted()
	for _, s := range ends {
		_ = s.Close()
	}
	wg.Wait() // a Write that was waiting says what of it was taken
	// Each stream may have a packet more, which waits to be sent.
	held := written.Load()
	t.Logf("%d sessions hold %d bytes, and were granted %d", sessions, held, granted)
	if granted > intake.Limit()/2 || held > fixed+granted+sessions*streams*1500 {
		t.Errorf("%d sessions hold %d bytes, and were granted %d", sessions, held, granted)
	}
	await(t, "what was granted", func() bool { return intake.Granted() == 0 })
}

// A handshake that comes to nothing has nothing of the budget.
func TestFailedHandshakeReturnsItsBudget(t *testing.T) {
	intake := tunnel.NewIntake(64 << 20)
	l, _ := listen(t, tunnel.Options{Intake: intake})
	conf := tunneltest.TLS(t)
	conf.Certificates = nil
	for range 10 {
		if s, err := Transport().Dial(t.Context(), l.Addr().String(), tunnel.Options{TLS: conf, Intake: intake}); err == nil {
			<-s.Context().Done()
		}
	}
	await(t, "what was granted", func() bool { return intake.Granted() == 0 })
	await(t, "the handshakes", func() bool { return l.Handshakes().Failed == 10 })
}

// Those that come first leave something to others.
func TestBegin(t *testing.T) {
	intake := tunnel.NewIntake(1 << 30)
	first := intake.Share(firstStream, headroom)
	for range 10_000 {
		intake.Share(firstStream, headroom)
	}
	if got := intake.Granted(); first != headroom || got > intake.Limit()/4 {
		t.Errorf("the first got %d bytes, and all of them %d", first, got)
	}
}
