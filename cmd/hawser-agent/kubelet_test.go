package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func TestKubeletOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string // the kubelet's address; empty means none
		err  string // in the error; empty means none
	}{
		"built in":         {nil, "", ""},
		"its own flags":    {[]string{"--max-pods", "5"}, "", ""},
		"none":             {[]string{"--kubelet", "none"}, "", ""},
		"another process":  {[]string{"--kubelet", "https://127.0.0.1:10250"}, "127.0.0.1:10250", ""},
		"by IPv6":          {[]string{"--kubelet", "https://[::1]:10251/"}, "[::1]:10251", ""},
		"the usual port":   {[]string{"--kubelet", "https://localhost"}, "127.0.0.1:10250", ""},
		"another machine":  {[]string{"--kubelet", "https://node-2:10250"}, "", "https://127.0.0.1:10250"},
		"without TLS":      {[]string{"--kubelet", "http://127.0.0.1:10255"}, "", "https://127.0.0.1:10250"},
		"a path":           {[]string{"--kubelet", "https://127.0.0.1:10250/pods"}, "", "want builtin"},
		"nonsense":         {[]string{"--kubelet", "nonsense"}, "", `--kubelet "nonsense"`},
		"no tunnel":        {[]string{"--kubelet", "none", "--transport", "ssh"}, "", "--transport ssh"},
		"nothing to label": {[]string{"--kubelet", "https://127.0.0.1:10250", "--node-labels", "a=b"}, "", "--node-labels has no effect with --kubelet https://127.0.0.1:10250"},
		"no runtime":       {[]string{"--kubelet", "none", "--runtime", "process"}, "", "--runtime has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(t, tt.args...)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			got := ""
			if o.kubeletAddr.IsValid() {
				got = o.kubeletAddr.String()
			}
			if err == nil && got != tt.want {
				t.Errorf("kubelet at %q, want %q", got, tt.want)
			}
		})
	}
}

// A kubelet that is down, one with a certificate of somebody else's, one that waits for its
// certificate, and one that is well are told apart.
func TestKubeletIsLookedAt(t *testing.T) {
	ca := pkitest.New(t, "cluster")
	listen := func(by *pkitest.Authority) (net.Listener, func()) {
		certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return nil, errors.New("no serving certificate available for the kubelet")
		}
		if by != nil {
			cert := by.Issue(t, pkitest.NodeServing("node-1", "node-1"))
			certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: certificate, ClientAuth: tls.RequireAnyClientCert})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.(*tls.Conn).Handshake() // it wants a certificate that is not shown
				_ = c.Close()
			}
		}()
		return l, func() { _ = l.Close(); <-done }
	}
	own, stop := listen(ca)
	other, stopOther := listen(pkitest.New(t, "cluster"))
	defer stopOther()
	w := &kubeletWatch{addr: own.Addr().String(), dial: new(net.Dialer).DialContext, authorities: func() []*x509.Certificate { return []*x509.Certificate{ca.Cert} }}
	if err := w.look(t.Context()); err != nil {
		t.Errorf("a kubelet of the cluster: %v", err)
	}
	stop()
	if err := w.look(t.Context()); !errors.Is(err, errKubeletDown) {
		t.Errorf("a kubelet that is down: %v", err)
	}
	waiting, stopWaiting := listen(nil)
	defer stopWaiting()
	w.addr = waiting.Addr().String()
	if err := w.look(t.Context()); !errors.Is(err, errKubeletWaits) {
		t.Errorf("a kubelet without a certificate: %v", err)
	}
	w.addr = other.Addr().String()
	if err := w.look(t.Context()); !errors.Is(err, errKubeletForeign) {
		t.Errorf("a kubelet of another authority: %v", err)
	}
	w.authorities = func() []*x509.Certificate { return nil }
	if err := w.look(t.Context()); err != nil {
		t.Errorf("while the cluster's authority is not known: %v", err)
	}
}

// What is wrong is said once a minute at most, and that it is not any more once.
func TestKubeletIsToldOf(t *testing.T) {
	var out bytes.Buffer
	w := &kubeletWatch{addr: "127.0.0.1:10250", log: slog.New(slog.NewTextHandler(&out, nil))}
	waits := error(&kubeletError{errKubeletWaits, errors.New("internal error")})
	down, foreign := error(&kubeletError{errKubeletDown, errors.New("refused")}), error(&kubeletError{errKubeletForeign, errors.New("of another")})
	start := time.Now()
	for _, step := range []struct {
		second int
		err    error
		want   string // in the line; empty means no line
	}{
		{0, nil, ""},
		{10, down, "cannot reach the kubelet"},
		{20, down, ""},
		{30, foreign, "serverTLSBootstrap"},
		{40, down, ""},
		{50, nil, "is well"},
		{60, nil, ""},
		{65, down, ""},
		{68, nil, ""},
		{70, down, "refused"},
		{129, down, ""},
		{130, down, "refused"},
		{140, nil, "is well"},
		{150, waits, "kubectl certificate approve NAME"},
	} {
		out.Reset()
		w.tell(step.err, start.Add(time.Duration(step.second)*time.Second))
		if got := out.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("after %d s, %v: %q, want %q", step.second, fmt.Sprint(step.err), got, step.want)
		}
	}
}
