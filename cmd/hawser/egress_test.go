package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/server/konnectivity"
)

const egressText = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: GRPC, transport: {uds: {udsName: DIR/grpc}}}
- name: etcd
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: DIR/connect}}}
- name: controlplane
  connection: {proxyProtocol: Direct}
`

// Each selection dials as the file says, and the cluster without Hawser's own notation.
func TestEgressSelections(t *testing.T) {
	dir := t.TempDir()
	dialed := make(chan string, 1)
	dial := func(_ context.Context, _, addr string) (net.Conn, error) {
		dialed <- addr
		near, far := net.Pipe()
		go func() {
			_, _ = io.Copy(far, far)
			_ = far.Close()
		}()
		return near, nil
	}
	grpc, err := konnectivity.New(konnectivity.Config{Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	http, err := connect.New(connect.Config{Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]interface {
		Serve(ctx context.Context, l net.Listener) error
	}{"grpc": grpc, "connect": http} {
		l, err := connect.ListenUnix(t.Context(), filepath.Join(dir, name))
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
	}
	file := filepath.Join(dir, "egress.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(egressText, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parse(t, "--egress-selector-config-file", file, "--etcd-servers", "http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for want, via := range map[string]dialFunc{
		"10.0.0.1:8443": o.egress.cluster(nil), "node-1:10250": o.egress.cluster(nil), "[fd00::1]:1": o.egress.cluster(nil), "etcd:2379": o.store.external(&o.egress).Dial,
	} {
		addr := strings.Replace(strings.Replace(want, ".1:", ".1%node-1:", 1), "]", "%node-1]", 1)
		conn, err := via(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if got := <-dialed; got != want {
			t.Errorf("%s came as %s", addr, got)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := o.egress.dial(egressselector.ControlPlane)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if o.access.webhookDial == nil {
		t.Error("the authorization webhook is dialed otherwise")
	}
}

// Without the file, and for what a file does not name, nothing is selected.
func TestEgressNotSelected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "egress.yaml")
	text := egressText[:strings.Index(egressText, "- name: cluster")] + "- name: etcd\n  connection: {proxyProtocol: Direct}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--egress-selector-config-file", file}} {
		o, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		hub := false
		_, _ = o.egress.cluster(func(context.Context, string, string) (net.Conn, error) {
			hub = true
			return nil, io.EOF
		})(t.Context(), "tcp", "node-1:10250")
		if !hub || o.egress.dial(egressselector.ControlPlane) != nil {
			t.Errorf("%v: something is selected", args)
		}
	}
}
