package etcd

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// TestDialSaysWhy has members that do not let the client in, in each way there is.
func TestDialSaysWhy(t *testing.T) {
	dir := t.TempDir()
	ca, stranger := pkitest.New(t, "store"), pkitest.New(t, "stranger")
	write := func(name string, data []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	pair := func(name string, a *pkitest.Authority) (cert, key string) {
		p := a.Issue(t, pkitest.NodeClient("n"))
		return write(name+".crt", pkitest.PEM("CERTIFICATE", p.Certificate[0])), write(name+".key", pkitest.KeyPEM(t, p.PrivateKey))
	}
	good := External{Wait: 2 * time.Second, CAFile: write("ca.crt", ca.PEM())}
	good.CertFile, good.KeyFile = pair("good", ca)
	refused := good
	refused.CertFile, refused.KeyFile = pair("refused", stranger)
	bare, untrusting := good, good
	bare.CertFile, bare.KeyFile = "", ""
	untrusting.CAFile = write("stranger.crt", stranger.PEM())
	here := mute(t, &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		Certificates: []tls.Certificate{*ca.Issue(t, pkitest.NodeServing("", "127.0.0.1"))},
	})
	elsewhere := mute(t, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*ca.Issue(t, pkitest.NodeServing("", "10.0.0.1"))},
	})
	for name, c := range map[string]struct {
		e       External
		servers []string
		cause   Cause
		says    string
	}{
		"nobody there":              {good, []string{"https://127.0.0.1:1", "https://127.0.0.1:2"}, Unreachable, "connection refused"},
		"an authority of others":    {untrusting, []string{here}, Untrusted, "unknown authority"},
		"a certificate of others":   {good, []string{elsewhere}, Untrusted, "10.0.0.1"},
		"one that is refused":       {refused, []string{"https://127.0.0.1:1", here}, Refused, "remote error: tls"},
		"none":                      {bare, []string{here}, Refused, "certificate required"},
		"no answer":                 {good, []string{here}, NoQuorum, ""},
		"no answer, no member else": {good, []string{here, "https://127.0.0.1:1"}, NoQuorum, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.e.Servers = c.servers
			_, err := Dial(t.Context(), c.e, nil)
			var e *DialError
			if !errors.As(err, &e) || e.Cause != c.cause || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
}

// mute takes connections, shakes hands, and ends them without a word when it is asked
// anything. It is an https URL.
func mute(t *testing.T, conf *tls.Config) string {
	t.Helper()
	conf.NextProtos = []string{"h2"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = tls.Server(c, conf).Read(make([]byte, 1))
			})
		}
	})
	return "https://" + l.Addr().String()
}
