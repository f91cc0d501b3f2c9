// Tests of connections without a request.

package connect

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/server/internal/fronts"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A realServer is a front end on a network in memory.
type realServer struct {
	*Server
	t   *testing.T
	net tunneltest.Network
	log strings.Builder
}

// withFrontEnd runs f beside a front end whose targets echo, on the bubble's clock.
func withFrontEnd(t *testing.T, f func(t *testing.T, q *realServer)) {
	synctest.Test(t, func(t *testing.T) {
		q := &realServer{t: t}
		var wg sync.WaitGroup
		defer wg.Wait()
		dial := func(context.Context, string, string) (net.Conn, error) {
			near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
			wg.Go(func() {
				_, _ = io.Copy(far, far)
				_ = far.Close()
			})
			return near, nil
		}
		var err error
		if q.Server, err = New(Config{Dial: dial, Log: slog.New(slog.NewTextHandler(&q.log, nil))}); err != nil {
			t.Fatal(err)
		}
		l, err := q.net.Listen(t.Context(), "tcp", "front")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		defer cancel()
		wg.Go(func() {
			if err := q.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		})
		f(t, q)
	})
}

// say connects and sends text.
func (q *realServer) say(text string) net.Conn {
	q.t.Helper()
	c := q.connect()
	if _, err := io.WriteString(c, text); err != nil {
		q.t.Fatal(err)
	}
	return c
}

func (q *realServer) connect() net.Conn {
	q.t.Helper()
	c, err := q.net.Dial(q.t.Context(), "tcp", "front")
	if err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() { _ = c.Close() })
	return c
}

func answer(t *testing.T, c net.Conn) (*bufio.Reader, *http.Response) {
	t.Helper()
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	return r, resp
}

// closedAfter is how long the server waits before it closes c.
func closedAfter(t *testing.T, r io.Reader) time.Duration {
	t.Helper()
	began := time.Now()
	_, _ = io.Copy(io.Discard, r) // an end or a reset
	return time.Since(began)
}

func TestTimesOfConnectionsWithoutARequest(t *testing.T) {
	withFrontEnd(t, func(t *testing.T, q *realServer) {
		for _, text := range []string{"", "CONNECT node", "CONNECT node-1:1 HTTP/1.1\r\nX: "} {
			if d := closedAfter(t, q.say(text)); d != headerTimeout {
				t.Errorf("%q: closed after %v", text, d)
			}
		}
		kept := q.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		r, resp := answer(t, kept)
		if _, err := io.CopyN(io.Discard, r, resp.ContentLength); err != nil {
			t.Fatal(err)
		}
		if d := closedAfter(t, r); d != idleTimeout {
			t.Errorf("kept open for %v without a further request", d)
		}
		synctest.Wait()
		if n, i := testutil.ToFloat64(q.metrics.Closed.WithLabelValues(fronts.NoRequest)), testutil.ToFloat64(q.metrics.Closed.WithLabelValues(fronts.Idle)); n != 3 || i != 1 {
			t.Errorf("%v closed without a request, %v idle", n, i)
		}
		open := q.say(connectRequest)
		r, _ = answer(t, open)
		time.Sleep(4 * time.Hour) // the bubble's clock
		if _, err := io.WriteString(open, "still here"); err != nil {
			t.Fatal(err)
		}
		expect(t, r, "still here")
		_ = open.Close()
	})
}

// Slow clients, and clients that send too much, do not keep others out, and the log stays
// small.
func TestCrowdWithoutARequest(t *testing.T) {
	withFrontEnd(t, func(t *testing.T, q *realServer) {
		for range 4 * maxIdlers {
			_, _ = io.WriteString(q.connect(), "CONNECT node-1:1 HTTP/1.1\r\n") // others may have replaced it already
		}
		synctest.Wait()
		if inside := q.idlers.Count(); inside != descriptors.AtMost(maxIdlers) {
			t.Errorf("%d without a request", inside)
		}
		c := q.say(connectRequest)
		r, resp := answer(t, c)
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, r, "hello")
		_ = c.Close()
		large := q.say("CONNECT node-1:1 HTTP/1.1\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n")
		if _, resp := answer(t, large); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("an oversized header: %s", resp.Status)
		}
		time.Sleep(headerTimeout) // the bubble's clock
		synctest.Wait()
		if inside := q.idlers.Count(); inside != 0 {
			t.Errorf("%d are still without a request", inside)
		}
		if n := testutil.ToFloat64(q.metrics.Closed.WithLabelValues(fronts.NoRequest)); n < 4*maxIdlers {
			t.Errorf("%v counted", n)
		}
		if n := strings.Count(q.log.String(), "\n"); n < 1 || n > 2 {
			t.Errorf("%d lines in the log:\n%s", n, q.log.String())
		}
	})
}

// A client with Hawser-Early gets the data of a target that sends first at once. Others get
// it after they have sent data.
func TestEarlyTargets(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		far, near := memnet.Pipe(memnet.Addr("target"), memnet.Addr("server"))
		go func() {
			_, _ = io.WriteString(far, "welcome")
			_, _ = io.Copy(io.Discard, far)
		}()
		return near, nil
	}
	for name, c := range map[string]struct{ header, say string }{
		"asks":            {"Hawser-Early: yes\r\n", ""},
		"asks in capital": {"hawser-early: YES\r\n", ""},
		"has spoken":      {"", "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serveHolding(t, Config{Dial: dial}, 24*time.Hour)
			_, _, r := request(t, socket, "CONNECT node-1:10250 HTTP/1.1\r\nHost: x\r\n"+c.header+"\r\n"+c.say)
			expect(t, r, "welcome")
		})
	}
}

// A client that has sent data for its target and ended its direction gets its tunnel, however
// long the dial takes. One that has sent nothing behind its request is taken to have left.
func TestHalfCloseDuringDial(t *testing.T) {
	for _, took := range []time.Duration{watchAfter / 2, 5 * time.Second} {
		withFrontEnd(t, func(t *testing.T, q *realServer) {
			dial := q.cfg.Dial
			var gaveUp bool
			q.cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				select {
				case <-time.After(took):
					return dial(ctx, network, addr)
				case <-ctx.Done():
					gaveUp = true
					return nil, context.Cause(ctx)
				}
			}
			c := q.say(connectRequest + "hello")
			if err := tunnel.CloseWrite(c); err != nil {
				t.Fatal(err)
			}
			r, resp := answer(t, c)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("a dial of %v: %s", took, resp.Status)
			}
			if got, err := io.ReadAll(r); string(got) != "hello" || err != nil {
				t.Errorf("a dial of %v: the tunnel has %q, %v", took, got, err)
			}
			if gaveUp {
				t.Errorf("a dial of %v was given up", took)
			}
			took = time.Hour
			reset := q.say(connectRequest + "hello")
			time.Sleep(watchAfter) // the bubble's clock
			began := time.Now()
			if err := tunnel.Abort(reset); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if d := time.Since(began); !gaveUp || d != 0 {
				t.Errorf("a client that reset its connection: the dial was given up %v, after %v", gaveUp, d)
			}
			gaveUp = false
			silent := q.say(connectRequest)
			if err := tunnel.CloseWrite(silent); err != nil {
				t.Fatal(err)
			}
			time.Sleep(watchAfter) // the bubble's clock
			synctest.Wait()
			if !gaveUp {
				t.Error("the dial of a client that left goes on")
			}
		})
	}
}
