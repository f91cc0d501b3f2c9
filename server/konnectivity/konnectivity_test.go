// Tests with konnectivity's own client, unmodified.

package konnectivity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A failed dial is answered with a valid text, for every error of an agent.
func TestDialFailureIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"code":      {&tunnel.DialError{Addr: "node-1:10250", Code: tunnel.NoNode}, "dial node-1:10250: no such node is connected"},
		"not UTF-8": {&tunnel.DialError{Addr: "node-1:10250", Code: tunnel.Refused, Text: "no\xff\xfe"}, "dial node-1:10250: no?"},
		"long":      {errors.New(strings.Repeat("x", 10_000)), strings.Repeat("x", maxText) + "…"},
		"empty":     {errors.New(""), "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			dial := func(context.Context, string, string) (net.Conn, error) { return nil, c.err }
			onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
				conn, err := h.dial(t.Context(), "node-1:10250")
				if err == nil || err.Error() != c.want {
					t.Errorf("%v, %v", conn, err)
				}
				if n := testutil.ToFloat64(h.metrics.Dials.WithLabelValues(tunnel.CodeOf(c.err).Name())); n != 1 {
					t.Errorf("%v dials counted", n)
				}
			})
		})
	}
}

// A dial that the client gives up is cancelled at once.
func TestClientGivesDialUp(t *testing.T) {
	ended := make(chan time.Duration, 1)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		began := time.Now()
		<-ctx.Done()
		ended <- time.Since(began)
		return nil, ctx.Err()
	}
	onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.dial(ctx, "node-1:10250"); err == nil {
			t.Error("connected")
		}
		if d := <-ended; d > 1100*time.Millisecond {
			t.Errorf("the dial ended after %v", d)
		}
	})
}

// The client gets the error before its own timeout.
func TestDialTimeoutIsTold(t *testing.T) {
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		<-ctx.Done()
		return nil, tunnel.NewDialError(addr, context.Cause(ctx))
	}
	onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
		_, err := h.dial(t.Context(), "node-1:10250")
		if err == nil || !strings.HasPrefix(err.Error(), "dial node-1:10250:") {
			t.Error(err)
		}
	})
}

// allArrives has a target send 10 MiB and close, and then its client read and close.
func allArrives(t *testing.T, conn net.Conn, far *memnet.Conn) {
	t.Helper()
	sent := make([]byte, 10<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(sent)
	gone := make(chan error, 1)
	go func() {
		_, err := far.Write(sent)
		gone <- errors.Join(err, far.Close())
	}()
	synctest.Wait()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
	_ = conn.Close()
}

// A target that sends 10 MiB and closes before a byte was read loses no data.
func TestTargetClosesFirst(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		allArrives(t, h.mustDial(), h.target())
	})
}

// All that a target sends arrives, also if it reads no more of what its client still writes.
func TestTargetReadsNoMore(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		conn := h.mustDial()
		far := h.target()
		far.CloseReadWithError(syscall.EPIPE)
		for range 2 {
			if _, err := conn.Write(make([]byte, maxQueued/2)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // it has been refused
		}
		allArrives(t, conn, far)
	})
}

// Data that a client wrote before it closed is not lost, also if the target reads it late.
func TestClientCloses(t *testing.T) {
	sent := strings.Repeat("0123456789abcdef", 64<<10)
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		conn := h.mustDial()
		far := h.target()
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- conn.Close() }()
		time.Sleep(drainTimeout / 2)
		reads(t, far, sent)
		if n, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d, %v", n, err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// A target that has ended its direction still gets the data that the front end had before.
// CLOSE_RSP ends both directions, so later data is dropped.
func TestTargetEndsItsDirection(t *testing.T) {
	sent := strings.Repeat("0123456789abcdef", 32<<10)
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		conn := h.mustDial()
		far := h.target()
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has arrived
		if err := far.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(drainTimeout / 2)
		reads(t, far, sent)
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d, %v", n, err)
		}
		_ = conn.Close()
	})
}

// A target that does not read delays the close of a client for a bounded time.
func TestClientClosesOnStalledTarget(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		conn := h.mustDial()
		_ = h.target()
		if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := conn.Close(); err == nil || err.Error() != errNotTaken.Error() {
			t.Error(err)
		}
		if d := time.Since(began); d != drainTimeout {
			t.Errorf("closed after %v", d)
		}
	})
}

// A reset by the target ends the client's connection, with an error that names the target.
func TestTargetBreaksOff(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		conn := h.mustDial()
		_ = h.target().Abort()
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // the client has no other error
			t.Errorf("%d, %v", n, err)
		}
		_ = conn.Close()
		// What the client's Close says of it is by chance: its tunnel has ended as well.
		r := h.raw()
		r.dial(1)
		_ = h.target().Abort()
		if p := r.recv().GetCloseResponse(); !strings.Contains(p.GetError(), "read from target") {
			t.Errorf("the client hears %v", p)
		}
	})
}

// The target of a killed client gets a reset.
func TestClientDies(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		r := h.raw()
		r.dial(1)
		far := h.target()
		r.close()
		if n, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// Data of a target that sends first reaches a client that is slow with the answer.
func TestTargetThatSpeaksFirst(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		began := time.Now()
		conn := h.mustDial()
		far := h.target()
		if _, err := io.WriteString(far, "welcome"); err != nil {
			t.Fatal(err)
		}
		reads(t, conn, "welcome")
		if d := time.Since(began); d < answerTime {
			t.Errorf("heard after %v", d)
		}
		_ = conn.Close()
	})
}

// Half of 50 tunnels have stalled readers, on either side. The others are not delayed in
// the bubble's time.
func TestStalledReadersAmongTunnels(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		h.hold = 0
		var wg sync.WaitGroup
		var live, all []net.Conn
		var stalled []*memnet.Conn
		for i := range 50 {
			conn := h.mustDial()
			far := h.target()
			all = append(all, conn)
			switch i % 4 {
			case 0: // the client does not read
				go func() { _, _ = far.Write(make([]byte, 64<<20)) }()
			case 1: // the target does not
				stalled = append(stalled, far)
				go func() {
					for range 64 {
						if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
							return
						}
					}
				}()
			default:
				echo(&wg, far)
				live = append(live, conn)
			}
		}
		synctest.Wait()
		began := time.Now()
		for i, conn := range live {
			text := fmt.Sprintf("tunnel %d", i)
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			reads(t, conn, text)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("they waited for %v", d)
		}
		for _, far := range stalled { // konnectivity's Close waits for its Write
			_ = far.Abort()
		}
		synctest.Wait()
		for _, conn := range all {
			wg.Go(func() { _ = conn.Close() })
		}
		wg.Wait()
	})
}

// A target that reads late gets all data, and its client is blocked meanwhile, so that
// memory is bounded.
func TestBackpressureOfSingleConnection(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		conn := h.mustDial()
		far := h.target()
		const pieces, size = 64, 1 << 20
		written := make(chan int, pieces)
		go func() {
			defer close(written)
			for i := range pieces {
				if _, err := conn.Write(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
					t.Error(err)
				}
				written <- i
			}
		}()
		synctest.Wait()
		if n := len(written); n > 8 {
			t.Errorf("%d MiB were taken for a target that does not read", n)
		}
		for i := range pieces {
			reads(t, far, string(bytes.Repeat([]byte{byte(i)}, size)))
		}
		_ = conn.Close()
	})
}

// Tunnels that are open when the server stops are cut after the drain.
func TestServerDrains(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		var wg sync.WaitGroup
		quick, slow := h.mustDial(), h.mustDial()
		echo(&wg, h.target())
		echo(&wg, h.target())
		late := h.raw()
		late.dial(1)
		echo(&wg, h.target())
		began := time.Now()
		h.stop()
		synctest.Wait()
		late.send(dialReq(2))
		if e := late.recv().GetDialResponse().GetError(); e != "dial node-1:10250: draining" {
			t.Errorf("answer %q", e)
		}
		if _, err := io.WriteString(quick, "goes on"); err != nil {
			t.Error(err)
		}
		reads(t, quick, "goes on")
		_ = quick.Close()
		if n, err := slow.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d, %v", n, err)
		}
		<-h.stopped
		if d := time.Since(began); d != drainTimeout {
			t.Errorf("it took %v", d)
		}
		_ = slow.Close()
		wg.Wait()
	})
}

// A client that pings as often as gRPC allows keeps its idle tunnel.
func TestClientThatPings(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		ping := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true})
		conn, err := singleUse(t.Context(), "node-1:10250", "passthrough:///front", append(h.options(), ping)...)
		if err != nil {
			t.Fatal(err)
		}
		far := h.target()
		time.Sleep(10 * time.Minute)
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		reads(t, far, "hello")
		_ = conn.Close()
	})
}
