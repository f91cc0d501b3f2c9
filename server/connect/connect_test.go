package connect

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a front end whose dials are made by dial, on a unix socket, until
// the test ends.
func serve(t *testing.T, c Config) string { t.Helper(); return serveHolding(t, c, answerTime) }

func serveHolding(t *testing.T, c Config, hold time.Duration) string {
	t.Helper()
	c.DrainTimeout = time.Millisecond // what a test leaves open is cut at its end
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.hold = hold
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// request sends raw and returns the answer and the connection behind it.
func request(t *testing.T, socket, raw string) (*http.Response, net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err = conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err = io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	return resp, conn, r
}

const connectRequest = "CONNECT node-1:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

// echoTarget answers what it reads once its peer has ended its half.
func echoTarget(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			_, _ = c.Write(b)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network != "tcp" || addr != "node-1:10250" {
			t.Errorf("dialed %s %s", network, addr)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
}

func TestTunnelKeepsHalfCloses(t *testing.T) {
	socket := serve(t, Config{Dial: echoTarget(t)})
	for name, early := range map[string]string{"client waits for the answer": "", "client speaks at once": "early "} {
		t.Run(name, func(t *testing.T) {
			resp, conn, r := request(t, socket, connectRequest+early)
			if resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status)
			}
			if r.Buffered() != 0 {
				t.Errorf("%d bytes came with the answer", r.Buffered())
			}
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			back, err := io.ReadAll(r)
			if err != nil || string(back) != early+"hello" {
				t.Errorf("got %q, %v", back, err)
			}
		})
	}
}

// TestTargetThatSpeaksFirst: its data is passed on once the client has sent data, or after
// answerTime, and not before.
func TestTargetThatSpeaksFirst(t *testing.T) {
	greeting := func(context.Context, string, string) (net.Conn, error) {
		far, near := memnet.Pipe(memnet.Addr("target"), memnet.Addr("server"))
		go func() {
			_, _ = io.WriteString(far, "welcome")
			_, _ = io.Copy(io.Discard, far)
		}()
		return near, nil
	}
	t.Run("client speaks", func(t *testing.T) {
		socket := serveHolding(t, Config{Dial: greeting}, 24*time.Hour)
		_, conn, r := request(t, socket, connectRequest)
		if r.Buffered() != 0 {
			t.Errorf("%d bytes came with the answer", r.Buffered())
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, r, "welcome")
	})
	t.Run("client waits", func(t *testing.T) {
		socket := serveHolding(t, Config{Dial: greeting}, time.Millisecond)
		_, _, r := request(t, socket, connectRequest)
		expect(t, r, "welcome")
	})
}

func expect(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestErrors checks the table, and errors without a code.
func TestErrors(t *testing.T) {
	tests := map[string]struct {
		err    error
		status int
		reason string
	}{
		"no node":   {&tunnel.DialError{Addr: "x", Code: tunnel.NoNode}, 503, "destination_unavailable"},
		"refused":   {&tunnel.DialError{Addr: "x", Code: tunnel.Refused, Text: "say \"no\"\n"}, 502, "connection_refused"},
		"denied":    {&tunnel.DialError{Addr: "x", Code: tunnel.Denied}, 403, "http_request_denied"},
		"timeout":   {context.DeadlineExceeded, 504, "connection_timeout"},
		"ambiguous": {&tunnel.DialError{Addr: "x", Code: tunnel.Ambiguous}, 502, "destination_not_found"},
		"unknown":   {errors.New("strange"), 502, "proxy_internal_error"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, tt.err }})
			resp, _, _ := request(t, socket, connectRequest)
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status {
				t.Errorf("status %s, want %d", resp.Status, tt.status)
			}
			if ps := resp.Header.Get("Proxy-Status"); !strings.HasPrefix(ps, "hawser; error="+tt.reason+`; details="`) || strings.ContainsAny(ps, "\r\n") {
				t.Errorf("Proxy-Status: %s", ps)
			}
			if !strings.Contains(string(body), strings.TrimSpace(tt.err.Error())) {
				t.Errorf("body %q", body)
			}
		})
	}
}

// TestStatusHasTheReason: kube-apiserver shows its users the status line and nothing else of a
// refusal.
func TestStatusHasTheReason(t *testing.T) {
	denied := &tunnel.DialError{Addr: "x", Code: tunnel.Denied, Text: "it is no port of a pod;\r\nX-Evil: 1\r\n\r\n --allow-target 10.0.0.1:443 would admit it" + strings.Repeat("\u00fc", 2*maxTargetText)}
	socket := serve(t, Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, denied }})
	resp, _, _ := request(t, socket, connectRequest)
	if !strings.HasPrefix(resp.Status, "403 Forbidden: ") || !strings.Contains(resp.Status, "--allow-target 10.0.0.1:443") || len(resp.Status) > maxTargetText+100 {
		t.Errorf("status %q", resp.Status)
	}
	if strings.ContainsFunc(resp.Status, func(r rune) bool { return r < ' ' || r > '~' }) || resp.Header.Get("X-Evil") != "" || resp.Header.Get("Proxy-Status") == "" {
		t.Errorf("status %q, header %v", resp.Status, resp.Header)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(body), denied.Error()) {
		t.Errorf("body %q, %v", body, err)
	}
}

// TestEveryCodeHasAnOutcome fails if a new code has no status.
func TestEveryCodeHasAnOutcome(t *testing.T) {
	for c := tunnel.Code(1); !strings.HasPrefix(c.String(), "code "); c++ {
		if _, ok := outcomes[c]; !ok {
			t.Errorf("no outcome for code %d, %q", c, c)
		}
	}
}

func TestOnlyConnectAndOnlyWhoMay(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialed")
		return nil, errors.New("no")
	}
	socket := serve(t, Config{Dial: dial, Authorize: func(*http.Request) error { return errors.New("not you") }})
	if resp, _, _ := request(t, socket, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", resp.Status)
	}
	resp, _, _ := request(t, socket, connectRequest)
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "not you") {
		t.Errorf("CONNECT: %s %q", resp.Status, body)
	}
}

// TestMetricsNameNoTargets keeps cardinality bounded whatever clients ask for.
func TestMetricsNameNoTargets(t *testing.T) {
	reg := prometheus.NewRegistry()
	socket := serve(t, Config{Metrics: reg, Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
		return nil, &tunnel.DialError{Addr: addr, Code: tunnel.NoNode}
	}})
	for _, target := range []string{"a:1", "b:2", "c:3"} {
		request(t, socket, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "hawser_connect_dials_total" {
			if n := len(f.GetMetric()); n != 1 {
				t.Errorf("%d series after three failures of one kind", n)
			}
			if v := f.GetMetric()[0].GetCounter().GetValue(); v != 3 {
				t.Errorf("%v dials counted, want 3", v)
			}
		}
	}
}

// TestRefusedConnectEndsTheConnection: what a client has sent for its target is not taken for a
// further request when the dial fails or is not allowed.
func TestRefusedConnectEndsTheConnection(t *testing.T) {
	for name, deny := range map[string]error{"dial fails": nil, "client is denied": errors.New("not you")} {
		t.Run(name, func(t *testing.T) {
			dials := make(chan string, 10)
			var authorized atomic.Int32
			socket := serve(t, Config{
				Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
					dials <- addr
					return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Refused}
				},
				Authorize: func(*http.Request) error { authorized.Add(1); return deny },
			})
			resp, _, r := request(t, socket, connectRequest+"CONNECT victim:22 HTTP/1.1\r\nHost: x\r\n\r\n")
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || !resp.Close {
				t.Errorf("%s, Connection: close %v, %v", resp.Status, resp.Close, err)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("after the answer: %q, %v", rest, err)
			}
			if n := authorized.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
			close(dials)
			for addr := range dials {
				if addr != "node-1:10250" {
					t.Errorf("dialed %s", addr)
				}
			}
		})
	}
}
