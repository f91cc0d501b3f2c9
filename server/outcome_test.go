package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// An outcome is the result of a dial: the agent's error, the error of the hub's caller, and
// the answer to an HTTP client.
type outcome struct {
	name   string
	addr   string
	err    error // of the agent's dial; for addresses that reach the agent
	code   tunnel.Code
	is     error // a standard error that callers look for
	status int
	reason string // in Proxy-Status
	text   string // in the answer's body
	again  bool   // with Retry-After
}

func syscallError(errno syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
}

// outcomesOfDials is the table. The agent's dial to 10.0.0.N fails with the error of row N.
func outcomesOfDials() []outcome {
	rows := []outcome{
		{name: "refused", err: syscallError(syscall.ECONNREFUSED), code: tunnel.Refused, is: syscall.ECONNREFUSED, status: 502, reason: "connection_refused", text: "connection refused"},
		{name: "no route", err: syscallError(syscall.EHOSTUNREACH), code: tunnel.Unreachable, is: syscall.EHOSTUNREACH, status: 502, reason: "destination_ip_unroutable", text: "no route to host"},
		{name: "no network", err: syscallError(syscall.ENETUNREACH), code: tunnel.Unreachable, is: syscall.EHOSTUNREACH, status: 502, reason: "destination_ip_unroutable", text: "network is unreachable"},
		{name: "host down", err: syscallError(syscall.EHOSTDOWN), code: tunnel.Unreachable, is: syscall.EHOSTUNREACH, status: 502, reason: "destination_ip_unroutable", text: "host is down"},
		{name: "timed out", err: syscallError(syscall.ETIMEDOUT), code: tunnel.Timeout, is: os.ErrDeadlineExceeded, status: 504, reason: "connection_timeout", text: "connection timed out", again: true},
		{name: "no answer", err: errSilent, code: tunnel.Timeout, is: os.ErrDeadlineExceeded, status: 504, reason: "connection_timeout", text: "deadline exceeded", again: true},
		{name: "not permitted", err: syscallError(syscall.EPERM), code: tunnel.Denied, status: 403, reason: "http_request_denied", text: "operation not permitted"},
		{name: "forbidden", err: &tunnel.DialError{Code: tunnel.Denied, Text: "not on the list"}, code: tunnel.Denied, status: 403, reason: "http_request_denied", text: "not on the list"},
		{name: "no such name", err: &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "db.internal", IsNotFound: true}}, code: tunnel.Unresolved, status: 502, reason: "dns_error", text: "no such host"},
		{name: "no descriptors at the node", err: &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, code: tunnel.Busy, status: 503, reason: "connection_limit_reached", text: "too many open files", again: true},
		{name: "too many streams", err: &tunnel.DialError{Code: tunnel.Busy, Text: "1024 streams are open already"}, code: tunnel.Busy, status: 503, reason: "connection_limit_reached", text: "1024 streams are open already", again: true},
		{name: "reset", err: syscallError(syscall.ECONNRESET), code: tunnel.Lost, is: syscall.ECONNRESET, status: 502, reason: "connection_terminated", text: "connection reset by peer", again: true},
		{name: "agent is stopping", err: &tunnel.DialError{Code: tunnel.Draining, Text: "the node's agent is stopping"}, code: tunnel.Draining, status: 503, reason: "destination_unavailable", text: "the node's agent is stopping", again: true},
		{name: "fault", err: errors.New("strange"), code: tunnel.Internal, status: 502, reason: "proxy_internal_error", text: "strange"},
	}
	for i := range rows {
		rows[i].addr = fmt.Sprintf("10.0.0.%d%%n:80", i)
	}
	return append(rows,
		outcome{name: "nobody listens", addr: "closed%n:80", code: tunnel.Refused, is: syscall.ECONNREFUSED, status: 502, reason: "connection_refused", text: "connection refused"},
		outcome{name: "no such node", addr: "absent:10250", code: tunnel.NoNode, status: 503, reason: "destination_unavailable", text: "node absent is not connected", again: true},
		outcome{name: "no node has the address", addr: "10.9.9.9:80", code: tunnel.NoNode, status: 503, reason: "destination_unavailable", text: "no node has address 10.9.9.9", again: true},
		outcome{name: "two nodes have it", addr: "192.168.1.10:80", code: tunnel.Ambiguous, status: 502, reason: "destination_not_found", text: "dial 192.168.1.10%NODE instead"},
		outcome{name: "no such name for a node", addr: "Node_1:80", code: tunnel.Invalid, status: 400, reason: "http_request_error", text: "Node_1"},
	)
}

// errSilent makes the agent's dial wait until its opener gives up.
var errSilent = errors.New("silent")

// rowDialer returns the results of the table.
func rowDialer(t *testing.T, rows []outcome) func(ctx context.Context, network, addr string) (net.Conn, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0") // where no test beside this one listens
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	_ = l.Close()
	byAddr := make(map[string]error)
	for _, row := range rows {
		byAddr[strings.Replace(row.addr, "%n", "", 1)] = row.err
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch err := byAddr[addr]; {
		case errors.Is(err, errSilent):
			<-ctx.Done()
			return nil, ctx.Err()
		case err != nil:
			return nil, err
		case addr == "closed:80":
			return new(net.Dialer).DialContext(ctx, network, closed)
		default:
			near, far := net.Pipe()
			go func() {
				_, _ = io.Copy(far, far)
				_ = far.Close()
			}()
			return near, nil
		}
	}
}

// A rig is a hub with one transport on a real port, a CONNECT front end, and
// node n, whose agent's dials fail as the rows say.
type rig struct {
	hub     *Hub
	socket  string
	links   tunnel.Listener
	session tunnel.Session // the agent's end
	cut     func()         // breaks the agent's connection and prevents another
}

// patience is the timeout of a dial to addr. It is short if there will be no answer.
func patience(addr string, rows []outcome) time.Duration {
	for _, row := range rows {
		if row.addr == addr && errors.Is(row.err, errSilent) {
			return time.Second
		}
	}
	return time.Minute
}

func newRig(t *testing.T, transport tunnel.Transport, listen func(o tunnel.Options) (tunnel.Listener, error), rows []outcome) *rig {
	t.Helper()
	ca := newAuthority(t)
	serving, mine := ca.server(), ca.client("system:node:n", "system:nodes")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	links, err := listen(tunnel.Options{TLS: auth.ServerTLS(certificate(serving), ca.authorities), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := New(Config{Listeners: []tunnel.Listener{links}, DrainTimeout: -1, ParkedPatience: -1})
	if err != nil {
		t.Fatal(err)
	}
	hub.SetRoutes("n", prefixes("192.168.1.10")...)
	hub.SetRoutes("m", prefixes("192.168.1.10")...)
	front, err := connect.New(connect.Config{DialTimeout: time.Minute, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, patience(addr, rows))
		defer cancel()
		return hub.DialContext(ctx, network, addr)
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := &rig{hub: hub, links: links, socket: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{hub.Run, func(ctx context.Context) error { return front.Serve(ctx, l) }} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	wire := &fragile{}
	h.cut = wire.cut
	h.session = h.connectAgent(t, transport, links.Addr().String(), tunnel.Options{TLS: auth.ClientTLS(showing(mine), ca.Pool(), ""), Dial: wire.dial, Log: log}, rowDialer(t, rows))
	return h
}

// connectAgent connects node n.
func (h *rig) connectAgent(t *testing.T, transport tunnel.Transport, addr string, o tunnel.Options, dial func(ctx context.Context, network, addr string) (net.Conn, error)) tunnel.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := transport.Dial(ctx, addr, o)
	if err != nil {
		t.Fatal(err)
	}
	control, _, err := tunnel.Greet(ctx, s, one("n"))
	if err != nil {
		t.Fatal(err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = control.Run(life, nil) })
	wg.Go(func() {
		_ = tunneltest.ServeRequests(life, s, func(ctx context.Context, r *tunnel.Request) { _, _ = tunnel.Answer(ctx, r, dial) })
	})
	t.Cleanup(func() {
		stop()
		_ = s.Close()
		wg.Wait()
	})
	if err := h.hub.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// A fragile wire can be cut; then no other connection can be made.
type fragile struct {
	mu    sync.Mutex // guards the following
	conns []net.Conn
	over  bool
}

func (f *fragile) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return nil, syscallError(syscall.ENETUNREACH)
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		f.conns = append(f.conns, c)
	}
	return c, err
}

func (f *fragile) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for _, c := range f.conns {
		_ = tunnel.Abort(c)
	}
}

// onTransports runs f for each transport.
func onTransports(t *testing.T, f func(t *testing.T, transport tunnel.Transport, listen func(o tunnel.Options) (tunnel.Listener, error))) {
	t.Helper()
	for _, transport := range []tunnel.Transport{qmux.Transport(), overyamux.Transport(), overh2.Transport(), overquic.Transport()} {
		t.Run(transport.Name, func(t *testing.T) {
			f(t, transport, func(o tunnel.Options) (tunnel.Listener, error) {
				if transport.Name == overquic.Transport().Name {
					packets, err := net.ListenPacket("udp", "127.0.0.1:0")
					if err != nil {
						return nil, err
					}
					return overquic.ListenPacket(packets, o)
				}
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return nil, err
				}
				return transport.Listen(ln, o)
			})
		})
	}
}

// TestOutcomes checks the results from the target's error to the client's status line, for
// each kind of dial and each transport.
func TestOutcomes(t *testing.T) {
	rows := outcomesOfDials()
	onTransports(t, func(t *testing.T, transport tunnel.Transport, listen func(o tunnel.Options) (tunnel.Listener, error)) {
		t.Parallel() // most of it is waiting for dials to fail
		h := newRig(t, transport, listen, rows)
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				h.checkDials(t, row)
				h.checkStatus(t, row)
			})
		}
	})
}

// checkDials dials both ways.
func (h *rig) checkDials(t *testing.T, row outcome) {
	t.Helper()
	wait := patience(row.addr, []outcome{row})
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	_, err := h.hub.DialContext(ctx, "tcp", row.addr)
	var de *tunnel.DialError
	if !errors.As(err, &de) || de.Code != row.code || row.is != nil && !errors.Is(err, row.is) || !strings.HasPrefix(err.Error(), "dial "+row.addr+": ") {
		t.Errorf("dial: %v", err)
	}
	early, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c, eerr := h.hub.DialEarly(early, "tcp", row.addr)
	if eerr == nil {
		_, _ = c.Write(make([]byte, 64<<10)) // it may never be read; the error names Read
		_, eerr = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.As(eerr, &de) || de.Code != row.code || row.is != nil && !errors.Is(eerr, row.is) || !strings.HasPrefix(eerr.Error(), "dial "+row.addr+": ") {
		t.Errorf("early dial: %v", eerr)
	}
}

// checkStatus asks the CONNECT front end.
func (h *rig) checkStatus(t *testing.T, row outcome) {
	t.Helper()
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	target := strings.ReplaceAll(row.addr, "%", "%25")
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	ps := resp.Header.Get("Proxy-Status")
	if resp.StatusCode != row.status || !strings.HasPrefix(ps, "hawser; error="+row.reason+";") || !strings.Contains(string(body), row.text) {
		t.Errorf("%s, Proxy-Status %s, %q", resp.Status, ps, body)
	}
	want := ""
	if row.again {
		want = "1"
	}
	if got := resp.Header.Get("Retry-After"); got != want {
		t.Errorf("Retry-After %q, want %q", got, want)
	}
}

// TestOutcomesOfSessions checks the outcomes that the session causes.
func TestOutcomesOfSessions(t *testing.T) {
	parked := outcome{addr: "n:1", code: tunnel.Parked, status: 503, reason: "destination_unavailable", text: "node n has been reconnecting for ", again: true}
	gone := outcome{addr: "n:1", code: tunnel.NoNode, status: 503, reason: "destination_unavailable", text: "node n is not connected", again: true}
	onTransports(t, func(t *testing.T, transport tunnel.Transport, listen func(o tunnel.Options) (tunnel.Listener, error)) {
		h := newRig(t, transport, listen, nil)
		connections := uint64(1)
		if transport.Name == overh2.Name {
			connections = 2
		}
		if d := h.links; d.Transport() != transport.Name || d.Handshakes() != (tunnel.Handshakes{Done: connections}) {
			t.Errorf("handshakes are not counted: %T", h.links)
		}
		c, err := h.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		parks := transport.Can.Resume && transport.Name != overquic.Transport().Name // which cannot be cut, only silenced
		if parks {
			h.cut()
			for s, ok := h.hub.Session("n"); ok && s.Parked.IsZero(); s, ok = h.hub.Session("n") {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := h.hub.DialContext(ctx, "tcp", "n:1") // until the loss has been noticed
				cancel()
				if err == nil {
					t.Fatal("dialed over a wire that is cut")
				}
			}
			h.checkDials(t, parked)
			h.checkStatus(t, parked)
		}
		changed := h.hub.Changed()
		_ = h.session.Close()
		if !parks {
			<-changed
			h.checkDials(t, gone)
			h.checkStatus(t, gone)
		}
	})
}
