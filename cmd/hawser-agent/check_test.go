// hawser-agent check, against servers that are well and servers that are not.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

const checkedToken = "abcdef.0123456789abcdef"

// noName has a label of 64 bytes: no name server is asked for it (RFC 1035, 2.3.4).
var noName = strings.Repeat("x", 64) + ".example"

// A hub is an API server as far as a machine sees that has not joined.
type hub struct {
	ahead time.Duration // of its clock
	ca    *pkitest.Authority
	*httptest.Server
}

func newHub(t *testing.T, ahead time.Duration) *hub {
	t.Helper()
	return newAPI(t, ahead, "http/1.1", qmux.ALPN)
}

// newAPI is an API server that speaks protocols (ALPN).
func newAPI(t *testing.T, ahead time.Duration, protocols ...string) *hub {
	t.Helper()
	h := &hub{ahead: ahead, ca: pkitest.New(t, "ca")}
	cert := h.ca.Issue(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	cert.Certificate = append(cert.Certificate, h.ca.Cert.Raw)
	h.Server = httptest.NewUnstartedServer(h)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: protocols}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.Now().Add(h.ahead).UTC().Format(http.TimeFormat))
	if r.URL.Path != "/version" && r.Header.Get("Authorization") != "Bearer "+checkedToken { // which everybody may read
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// accepting is the address of a server that hands each connection to f.
func accepting(t *testing.T, f func(near net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			go f(near)
		}
	}()
	return ln.Addr().String()
}

// narrow is a way to the hub that drops large packets: a connection that uses them gets no
// certificate.
func (h *hub) narrow(t *testing.T) string {
	t.Helper()
	return accepting(t, func(near net.Conn) {
		far, err := net.Dial("tcp", h.Listener.Addr().String())
		if err != nil {
			_ = near.Close()
			return
		}
		go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
		if segment(t, near) > 1300 {
			_, _ = io.CopyN(near, far, 500)
			_ = far.Close()
		}
		_, _ = io.Copy(near, far)
		_ = near.Close()
	})
}

// segment is the size of the segments that are sent on c.
func segment(t *testing.T, c net.Conn) (size int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { size, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) })
	}
	if err != nil {
		t.Error(err)
	}
	return size
}

// mute is the address of a server that takes connections, and ends them after something was said.
func mute(t *testing.T) string {
	t.Helper()
	return accepting(t, func(c net.Conn) {
		_, _ = io.CopyN(io.Discard, c, 1<<10)
		_ = c.(*net.TCPConn).CloseWrite() // no reset, though more has come
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	})
}

// answersUDP has the hub answer by UDP as one does that has the transport quic.
func (h *hub) answersUDP(t *testing.T) {
	t.Helper()
	pc, err := net.ListenPacket("udp", h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: h.TLS.Certificates, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: h.ca.Pool(), MinVersion: tls.VersionTLS13}
	l, err := overquic.ListenPacket(pc, tunnel.Options{TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(ctx, func(context.Context, tunnel.Session) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, pc.Close()); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A checked machine has flags, and what comes of its checks.
type checked struct {
	addr, token, pin string
	more             []string
	failed           string   // the beginning of the line that has failed; empty if none has
	absent           []string // checks that stand on it
	printed          []string
}

func (tc *checked) run(t *testing.T) {
	t.Helper()
	var out strings.Builder
	cmd := newRoot()
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{
		"check", "--server", "https://" + tc.addr, "--token", tc.token, "--discovery-token-ca-cert-hash", tc.pin,
		"--data-dir", filepath.Join(t.TempDir(), "data"),
	}, tc.more...))
	err := cmd.ExecuteContext(context.WithoutCancel(t.Context()))
	for _, line := range tc.printed {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not printed:\n%s", line, out.String())
		}
	}
	failed := 0
	for line := range strings.Lines(out.String()) {
		what, bad := strings.CutPrefix(line, "FAILED  ")
		if bad {
			failed++
		}
		if bad && (tc.failed == "" || !strings.HasPrefix(what, tc.failed)) {
			t.Errorf("failed: %s", what)
		}
		for _, absent := range tc.absent {
			if strings.Contains(line, absent) {
				t.Errorf("checked all the same: %s", line)
			}
		}
	}
	if (tc.failed != "") != (failed == 1) || (tc.failed != "") != (err != nil) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestCheck(t *testing.T) {
	well, late, slow, quick := newHub(t, 0), newHub(t, time.Hour), newHub(t, -time.Hour), newHub(t, 0)
	alone := newAPI(t, 0, "h2", "http/1.1")
	portal := httptest.NewServer(http.RedirectHandler("http://portal.example/login", http.StatusFound))
	t.Cleanup(portal.Close)
	quick.answersUDP(t)
	pin := func(h *hub) string { return bootstrap.PinOf(h.ca.Cert).String() }
	addr := func(h *hub) string { return h.Listener.Addr().String() }
	closed := net.JoinHostPort("127.0.0.1", strconv.Itoa(await.FreePort(t)))
	for name, tc := range map[string]checked{
		"well": {
			addr: addr(well), token: checkedToken, pin: pin(well),
			printed: []string{
				"unused  UDP to " + addr(well) + ": --transport qmux uses TCP alone\n",
				"unused  containerd: --kubelet builtin runs containers as processes of this machine\n",
			},
		},
		"UDP": {
			addr: addr(quick), token: checkedToken, pin: pin(quick), more: []string{"--transport", "quic"},
			printed: []string{"ok      UDP to " + addr(quick) + ": it is answered ("},
		},
		"nobody":  {addr: closed, token: checkedToken, pin: pin(well), failed: "way to ", absent: []string{"server ", "clocks"}},
		"no name": {addr: noName + ":6443", token: checkedToken, pin: pin(well), failed: "name " + noName + ": ", absent: []string{"way to "}},
		"no hub": {
			addr: addr(alone), token: checkedToken, pin: pin(alone), failed: "tunnel ",
			printed: []string{"an API server, but no hawser server, answers there; a hub beside a cluster is on 8132 by default"},
		},
		"another CA":    {addr: addr(well), token: checkedToken, pin: pin(late), failed: "server ", absent: []string{"clocks"}},
		"unknown token": {addr: addr(well), token: "fedcba.0123456789abcdef", pin: pin(well), failed: "server ", absent: []string{"clocks"}},
		"clock":         {addr: addr(late), token: checkedToken, pin: pin(late), failed: "clocks: that of the server is ", printed: []string{" ahead of this machine's: set the wrong one"}},
		"clock behind": {
			addr: addr(slow), token: checkedToken, pin: pin(slow), failed: "clocks: that of the server is ", printed: []string{" behind this machine's: set the wrong one"},
		},
		"captive portal": {
			addr: portal.Listener.Addr().String(), token: checkedToken, pin: pin(well), failed: "server ", absent: []string{"clocks"},
			printed: []string{`speaks HTTP without TLS ("302 Found", to "http://portal.example/login")`},
		},
		"large packets": {
			addr: well.narrow(t), token: checkedToken, pin: pin(well),
			printed: []string{"warn    large packets: small ones pass and large ones do not: the tunnel uses small ones"},
		},
		"large packets over ssh": {
			addr: well.narrow(t), token: checkedToken, pin: pin(well), more: []string{"--transport", "ssh"}, failed: "large packets: ",
		},
		"a hole": {
			addr: mute(t), token: checkedToken, pin: pin(well), absent: []string{"clocks"},
			failed: "server ", printed: []string{"packets above 1200 bytes may not pass, or something on the way accepts and does not answer"},
		},
		"no UDP": {
			addr: addr(well), token: checkedToken, pin: pin(well), more: []string{"--transport", "quic"}, failed: "UDP to ",
		},
		"no kubelet": {
			addr: addr(well), token: checkedToken, pin: pin(well), more: []string{"--kubelet", "https://" + closed}, failed: "kubelet ",
			printed: []string{"unused  containerd: containers are those of the kubelet at " + closed + "\n"},
		},
		"kubelet none": {addr: addr(well), token: checkedToken, pin: pin(well), more: []string{"--kubelet", "none"}, printed: []string{"unused  containerd: --kubelet none runs no containers\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}

// TestOneAddressAnswersUDP: an agent tries all addresses of a name, so one that answers will do.
func TestOneAddressAnswersUDP(t *testing.T) {
	h := newHub(t, 0)
	h.answersUDP(t)
	_, port, err := net.SplitHostPort(h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := udpIsAnswered(t.Context(), net.JoinHostPort("hub.example", port), []string{"127.0.0.2", "127.0.0.1"})
	if want := "127.0.0.1 answers, and 127.0.0.2 does not"; err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestCheckOfANodeThatHasJoined: a token that the server no longer knows matters once the
// node's certificate has expired.
func TestCheckOfANodeThatHasJoined(t *testing.T) {
	h := newHub(t, 0)
	for until, bad := range map[time.Duration]bool{time.Hour / 2: false, -time.Minute / 2: true} {
		dir := filepath.Join(t.TempDir(), "data")
		tmpl := pkitest.NodeClient("edge-1")
		tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour/2), time.Now().Add(until)
		cert := h.ca.Issue(t, tmpl)
		pair := append(pkitest.PEM("CERTIFICATE", cert.Certificate[0]), pkitest.KeyPEM(t, cert.PrivateKey)...)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "pki"), 0o700), os.WriteFile(filepath.Join(dir, "pki", "kubelet-client-current.pem"), pair, 0o600),
			os.WriteFile(filepath.Join(dir, "pki", "ca.crt"), h.ca.PEM(), 0o600)); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		cmd := newRoot()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{
			"check", "--server", h.URL, "--token", "fedcba.0123456789abcdef", "--discovery-token-ca-cert-hash", bootstrap.PinOf(h.ca.Cert).String(),
			"--data-dir", dir, "--node-name", "edge-1",
		})
		err := cmd.ExecuteContext(t.Context())
		if got := strings.Contains(out.String(), "FAILED  server "); got != bad {
			t.Errorf("with a certificate until %v from now: %v\n%s", until, err, out.String())
		}
	}
}

// TestSilenceIsExplained: nothing comes over a connection that was made.
func TestSilenceIsExplained(t *testing.T) {
	for err, want := range map[error]bool{
		os.ErrDeadlineExceeded: true, context.DeadlineExceeded: true, io.ErrUnexpectedEOF: true, errors.New("tls: handshake failure"): false,
	} {
		got := explained(t.Context(), nil, "", fmt.Errorf("ask: %w", err))
		if !errors.Is(got, err) || strings.Contains(got.Error(), "does not answer") != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// TestSlowCheckIsNamed: what a check that takes long is about shows before it ends.
func TestSlowCheckIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := &checklist{out: &out}
		took := slowCheck / 2
		check := func(context.Context) (string, error) { time.Sleep(took); return "well", nil }
		l.check(t.Context(), "quick", check)
		took = 3 * slowCheck
		l.check(t.Context(), "slow", func(ctx context.Context) (string, error) {
			time.Sleep(slowCheck)
			synctest.Wait()
			if got := out.String(); !strings.HasSuffix(got, "\nwait    slow\n") {
				t.Errorf("while it runs: %q", got)
			}
			return check(ctx)
		})
		if got, want := out.String(), "ok      quick: well (1s)\nwait    slow\nok      slow: well (8s)\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestDirIsOurs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: "it can be written to", filepath.Join(dir, "a", "b"): "it can be made", file: "", filepath.Join(file, "below"): "",
	} {
		if got, err := dirIsOurs(path); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}
