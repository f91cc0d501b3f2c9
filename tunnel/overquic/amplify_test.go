// What comes back to an address that has sent nothing: whoever writes another's address
// into packets must not have a server flood it.

package overquic

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestAmplification(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenPacket(pc, tunnel.Options{TLS: tunneltest.TLS(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, func(_ context.Context, s tunnel.Session) { <-s.Context().Done() }); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	defer wg.Wait()
	defer cancel()
	first := firstFlight(t)
	unknown := bytes.Clone(first[0])
	copy(unknown[1:5], "\xfa\xce\xb0\x0c") // another version
	for name, sent := range map[string][][]byte{
		"a handshake's first flight": first,
		"a version that is none":     repeated(unknown, 100),
		"a connection that is none":  repeated(append([]byte{0x40}, bytes.Repeat([]byte{7}, 60)...), 100),
		"noise":                      repeated(bytes.Repeat([]byte{0xff}, 1200), 100),
		"a long header, cut short":   repeated(first[0][:100], 100),
	} {
		t.Run(name, func(t *testing.T) {
			victim := gather(t, l.Addr())
			all := 0
			for _, p := range sent {
				if _, err := victim.Write(p); err != nil {
					t.Fatal(err)
				}
				all += len(p)
			}
			settled(t, l.(*listener))
			// The library looks before each packet, so that the last one may go beyond.
			if got := int(victim.bytes.Load()); got > 3*all+1452 {
				t.Errorf("%d bytes came back for %d", got, all)
			} else if name == "a handshake's first flight" && got == 0 {
				t.Error("nothing came back: that was no handshake")
			}
		})
	}
}

func repeated(p []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = p
	}
	return out
}

// firstFlight is what a client sends before it has heard anything.
func firstFlight(t *testing.T) [][]byte {
	t.Helper()
	deaf, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if s, err := Transport().Dial(ctx, deaf.LocalAddr().String(), tunnel.Options{TLS: tunneltest.TLS(t)}); err == nil {
			t.Error("a session with nobody")
			_ = s.Close()
		}
	})
	var flight [][]byte
	buf := make([]byte, 2048)
	for {
		wait := patience
		if flight != nil {
			wait = 20 * time.Millisecond // or else the rest of it is retransmissions
		}
		_ = deaf.SetReadDeadline(time.Now().Add(wait))
		n, _, err := deaf.ReadFrom(buf)
		if flight != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			return flight
		}
		if err != nil {
			t.Fatal(err)
		}
		flight = append(flight, bytes.Clone(buf[:n]))
	}
}

// A victim counts what comes.
type victim struct {
	net.Conn
	bytes atomic.Int64
}

func gather(t *testing.T, server net.Addr) *victim {
	t.Helper()
	c, err := net.Dial("udp", server.String())
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{Conn: c}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			v.bytes.Add(int64(n))
		}
	})
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	return v
}

// settled waits until the server has looked at all packets, and has given up every
// handshake, having sent again whatever it sends again.
func settled(t *testing.T, l *listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := Transport().Dial(ctx, l.Addr().String(), tunnel.Options{TLS: tunneltest.TLS(t)}) // it comes behind them
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for tick := time.Tick(10 * time.Millisecond); l.handshakes.Load() != 0; {
		select {
		case <-tick:
		case <-ctx.Done():
			t.Fatalf("%d handshakes are under way", l.handshakes.Load())
		}
	}
}
