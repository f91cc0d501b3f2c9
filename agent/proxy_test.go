// Tests with a real HTTP proxy on loopback.

package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A lock is an HTTP proxy with CONNECT.
type lock struct {
	addr string
	auth string // the required USER:PASSWORD; empty means none
	// reply, if not empty, is its answer instead of connecting.
	reply string

	mu    sync.Mutex // guards the following
	asked []string
	conns []net.Conn
}

func newLock(t *testing.T, l *lock) *url.URL {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = ln.Close(); l.cut(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.conns = append(l.conns, c)
			l.mu.Unlock()
			wg.Go(func() { defer c.Close(); l.serve(c) })
		}
	})
	l.addr = ln.Addr().String()
	return &url.URL{Scheme: "http", Host: l.addr}
}

// cut ends every connection at once.
func (l *lock) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func (l *lock) serve(c net.Conn) {
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.asked = append(l.asked, r.Method+" "+r.RequestURI)
	l.mu.Unlock()
	switch want := "Basic " + base64.StdEncoding.EncodeToString([]byte(l.auth)); {
	case l.auth != "" && r.Header.Get("Proxy-Authorization") != want:
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 2\r\n\r\nno")
		return
	case l.reply == "silence":
		_, _ = io.Copy(io.Discard, c)
		return
	case l.reply != "":
		_, _ = io.WriteString(c, l.reply)
		return
	}
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer to.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 Connection established\r\nVia: 1.1 lock\r\n\r\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(c, to)
		_ = c.Close()
	}()
	_, _ = io.Copy(to, in)
	_ = to.Close()
	<-done
}

func (l *lock) requests() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

func TestProxyAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		lock    *lock
		user    *url.Userinfo
		refusal bool
		want    string // in the error
	}{
		"wants credentials":  {lock: &lock{auth: "u:p"}, refusal: true, want: "set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT"},
		"wants others":       {lock: &lock{auth: "u:p"}, user: url.UserPassword("u", "sesame"), refusal: true, want: "does not accept the user name and password"},
		"forbids":            {lock: &lock{reply: "HTTP/1.1 403 Forbidden\r\n\r\n"}, refusal: true, want: "have the proxy allow CONNECT to hub:6443"},
		"cannot reach":       {lock: &lock{reply: "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"}, want: `answers "503 Service Unavailable" to CONNECT hub:6443`},
		"is none":            {lock: &lock{reply: "SSH-2.0-x\r\n\r\n"}, want: "no HTTP proxy"},
		"talks on":           {lock: &lock{reply: "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Y: Z\r\n", maxProxyAnswer)}, want: "longer than"},
		"hesitates, forbids": {lock: &lock{reply: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 Forbidden\r\n\r\n"}, refusal: true, want: "have the proxy allow CONNECT to hub:6443"},
		"hesitates for ever": {lock: &lock{reply: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10)}, want: "more than 5 interim responses"},
		"switches":           {lock: &lock{reply: "HTTP/1.1 101 Switching Protocols\r\n\r\n"}, want: `answers "101 Switching Protocols"`},
		"hangs up":           {lock: &lock{reply: "HTTP/1.1 200 OK\r\n"}, want: "hung up"},
		"says nothing":       {lock: &lock{reply: "silence"}, want: "it takes connections and does not answer CONNECT hub:6443 within "},
		"names schemes":      {lock: &lock{auth: "u:p"}, refusal: true, want: "(it takes Basic; HTTPS_PROXY has no user)"},
		"has a user":         {lock: &lock{auth: "u:p"}, user: url.UserPassword("u", "sesame"), refusal: true, want: "(it takes Basic; HTTPS_PROXY has a user)"},
		"takes no Basic":     {lock: &lock{reply: "HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: NTLM, Digest realm=\"x\", qop=\"auth\"\r\n\r\n"}, refusal: true, want: "(it takes Negotiate, NTLM, Digest; HTTPS_PROXY has no user)): this agent can send Basic credentials alone"},
		"forbids with text":  {lock: &lock{reply: "HTTP/1.1 403 Forbidden\r\n\r\nblocked\x1b by policy 7\nmore"}, refusal: true, want: `and says "blocked\x1b by policy 7"`},
		"forbids with HTML":  {lock: &lock{reply: "HTTP/1.1 403 Forbidden\r\nContent-Length: 99\r\n\r\n<!DOCTYPE html>\n<html><style>\nbody {}</style>\n<title>Policy &amp; rules</title>"}, refusal: true, want: `and says "Policy & rules"`},
	} {
		t.Run(name, func(t *testing.T) {
			via := newLock(t, tt.lock)
			via.User = tt.user
			d := newDialer(&Config{Proxy: func(string) (*url.URL, error) { return via, nil }})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if name == "says nothing" {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
			}
			defer cancel()
			_, err := d.DialContext(ctx, "tcp", "hub:6443")
			err = Diagnose("hub:6443", err)
			var r *Refusal
			switch {
			case err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n"):
				t.Errorf("got %v, want %q", err, tt.want)
			case errors.As(err, &r) != tt.refusal:
				t.Errorf("a refusal: %v", err)
			case name == "says nothing" && !regexp.MustCompile(` within [2-9]s: `).MatchString(err.Error()): // it is told later on a busy machine
				t.Errorf("the time is not told: %v", err)
			case strings.Contains(err.Error(), "sesame"):
				t.Errorf("the password is told: %v", err)
			}
		})
	}
}

// TestProxyTLS: a failed TLS handshake with the proxy is reported as the proxy's failure, and its
// remedy concerns the proxy.
func TestProxyTLS(t *testing.T) {
	ca := newAuthority(t)
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	certified := func(until time.Time, ip string) func(net.Conn) {
		cert := ca.Issue(t, &x509.Certificate{
			IPAddresses: []net.IP{net.ParseIP(ip)}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		conf := &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
		return func(c net.Conn) { _ = tls.Server(c, conf).HandshakeContext(t.Context()) }
	}
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"unknown authority": {certified(later, "127.0.0.1"), "add the authority of the proxy's certificate to this machine's trust store, or have SSL_CERT_FILE name it"},
		"another name":      {certified(later, "192.0.2.1"), "set HTTPS_PROXY to a name that the proxy's certificate has"},
		"expired":           {certified(past, "127.0.0.1"), "check this machine's clock and whether the proxy's certificate has expired"},
		"refuses us": {func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 116}) // a fatal alert, certificate_required
			_, _ = io.Copy(io.Discard, c)
		}, "if it wants a client certificate, have it let this machine through without one"},
		"no TLS": {func(c net.Conn) {
			_, _ = bufio.NewReader(c).ReadByte()
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, "the proxy does not speak TLS: set HTTPS_PROXY to http://"},
		"hangs up": {func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) }, "if the proxy does not speak TLS, set HTTPS_PROXY to http://"},
	} {
		t.Run(name, func(t *testing.T) {
			via := &url.URL{Scheme: "https", Host: listen(t, tt.serve)}
			d := newDialer(&Config{Proxy: func(string) (*url.URL, error) { return via, nil }})
			_, err := d.DialContext(t.Context(), "tcp", "hub:6443")
			err = Diagnose("hub:6443", err)
			if !errors.Is(err, ErrProxyRefused) || errors.Is(err, ErrServerUntrusted) {
				t.Fatalf("got %v, want a refusal of the proxy's", err)
			}
			if s := err.Error(); !strings.Contains(s, tt.want) || !strings.Contains(s, "connect through proxy "+via.Host) {
				t.Errorf("got %q, want %q", s, tt.want)
			}
			for _, never := range []string{"data directory", "--tls-san", "\n", "hawser-agent check"} {
				if strings.Contains(err.Error(), never) {
					t.Errorf("%q has %q", err, never)
				}
			}
		})
	}
}

// TestProxyWantsCertificate: with TLS 1.3 a proxy refuses a client without a certificate after the
// client's handshake. It runs in a process of its own, which trusts the proxy: a process reads
// SSL_CERT_FILE once.
func TestProxyWantsCertificate(t *testing.T) {
	if os.Getenv("HAWSER_TEST_ALONE") == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), "HAWSER_TEST_ALONE=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	ca := newAuthority(t)
	roots := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(roots, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots)
	cert := ca.Issue(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	conf := &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	via := &url.URL{Scheme: "https", Host: listen(t, func(c net.Conn) {
		_ = tls.Server(c, conf).HandshakeContext(t.Context())
		_, _ = io.Copy(io.Discard, c) // a close with unread data would reset the connection before the alert is read
	})}
	d := newDialer(&Config{Proxy: func(string) (*url.URL, error) { return via, nil }})
	_, err := d.DialContext(t.Context(), "tcp", "hub:6443")
	if err = Diagnose("hub:6443", err); !errors.Is(err, ErrProxyRefused) || !strings.Contains(err.Error(), "if it wants a client certificate") {
		t.Errorf("got %v, want a refusal of the proxy's", err)
	}
}

func TestCheckProxy(t *testing.T) {
	for s, want := range map[string]string{
		"http://proxy:3128":       "",
		"https://proxy":           "",
		"socks5://u:s3same@p:1":   `scheme "socks5"`,
		"http://:3128":            "no host",
		"ftp://u:s3same@proxy:21": `scheme "ftp"`,
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		err = CheckProxy(u)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3same")) {
			t.Errorf("%s: %v, want %q", s, err, want)
		}
	}
	for s, want := range map[string]string{
		"http://proxy": "proxy:80", "https://proxy": "proxy:443", "http://proxy:3128": "proxy:3128", "http://[::1]": "[::1]:80",
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := proxyAddr(u); got != want {
			t.Errorf("%s listens on %s, want %s", s, got, want)
		}
	}
}

// TestProxy: an agent's session goes through a proxy that requires a password, and another
// one follows when the proxy was cut.
func TestProxy(t *testing.T) {
	ca := newAuthority(t)
	addr, sessions := dock(t, ca, echo)
	l := &lock{auth: "node:p@ss/word"}
	via := newLock(t, l)
	via.User = url.UserPassword("node", "p@ss/word")
	conf := wireConfig(addr, ca, ca.leaf(t, time.Now().Add(time.Hour)))
	conf.Proxy = func(string) (*url.URL, error) { return via, nil }
	conf.Link.DetachWindow = -1
	a := running(t, conf)
	for range 2 {
		<-sessions
		c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		exchangeText(t, c)
		l.cut()
	}
	<-sessions
	if got := l.requests(); got[0] != "CONNECT "+addr {
		t.Errorf("the proxy was asked for %v", got)
	}
}

// TestProxyIsReached: the waiting dialer is notified that the proxy has accepted a
// connection, regardless of its answer.
func TestProxyIsReached(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial := NewDial(func(string) (*url.URL, error) { return &url.URL{Scheme: "http", Host: ln.Addr().String()}, nil }, false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var reached atomic.Bool
	c, err := dial(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) { reached.Store(err == nil); cancel() }}), "tcp", "server:443")
	if c != nil || !errors.Is(err, context.Canceled) || !reached.Load() {
		t.Errorf("connection %v, error %v, reached %t", c, err, reached.Load())
	}
}

// TestProxyDiesMidStream: the proxy drops every connection, and a stream continues through
// it without loss.
func TestProxyDiesMidStream(t *testing.T) {
	ca := newAuthority(t)
	addr, sessions := dock(t, ca, echo)
	l := new(lock)
	via := newLock(t, l)
	conf := wireConfig(addr, ca, ca.leaf(t, time.Now().Add(time.Hour)))
	conf.Proxy = func(string) (*url.URL, error) { return via, nil }
	a := running(t, conf)
	<-sessions
	c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two", "three"} {
		say(t, c, text)
		l.cut()
	}
	exchangeText(t, c)
	if n := len(l.requests()); n < 4 {
		t.Errorf("the proxy was asked %d times, want 4", n)
	}
	if s := a.State(); s.Session != 1 {
		t.Errorf("state: %+v", s)
	}
}
