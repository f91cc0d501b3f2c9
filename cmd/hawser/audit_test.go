package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server/streamlog"
)

// A log of bounded size is rotated, is nobody else's to read, and goes on where it was.
func TestRotatedFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	r := rotatedFile{flag: "audit-log", path: filepath.Join(dir, "audit.log"), maxBackup: 2, maxSize: 1}
	half := bytes.Repeat([]byte("x"), 600<<10)
	for range 2 {
		w, err := r.open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(half); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v: want the file and an old one", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 || info.Size() != int64(len(half)) {
			t.Errorf("%v, %v", info, err)
		}
	}
	r.path = filepath.Join(r.path, "x")
	if _, err := r.open(); err == nil {
		t.Error("a file below a file was opened")
	}
}

// A CONNECT is its certificate's, an API request its user's, a probe nobody's; and
// without a log nobody is asked.
func TestCallers(t *testing.T) {
	if off := new(tunnels); off.callers() != nil || off.ended() != nil {
		t.Error("callers are asked for without a log")
	}
	streams, err := streamlog.New(streamlog.Config{Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	on := &tunnels{streams: streams}
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "connector"}}}}
	if got := on.callers()(state); got != "connector" {
		t.Errorf("over TLS: %q", got)
	}
	if got := on.callers()(nil); got != unixCaller {
		t.Errorf("over a socket: %q", got)
	}
	var got auth.Caller
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		got = auth.CallerOf(ctx)
		return nil, nil
	}
	jane := request.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"})
	for _, c := range []struct {
		dial dialFunc
		want auth.Caller
	}{{on.forUser(dial), auth.Caller{Name: "jane"}}, {on.own(dial), auth.Caller{Own: true}}, {new(tunnels).forUser(dial), auth.Caller{}}} {
		if _, err := c.dial(jane, "tcp", "n:1"); err != nil || got != c.want {
			t.Errorf("%+v, %v, want %+v", got, err, c.want)
		}
	}
}
