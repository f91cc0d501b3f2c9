// Tests of nodes that the server dials, and whose names are revoked.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/cmd/internal/bench/sshd"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/server/sshnodes"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// overSSH runs an sshd and has s reach node n through it, until the test is over.
func overSSH(t *testing.T, s *tunnels) {
	t.Helper()
	dir := t.TempDir()
	if err := sshd.MakeKeys(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	started := make(chan *sshd.Server, 1)
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		runtime.LockOSThread() // see sshd.Start
		srv, err := sshd.Start(ctx, dir)
		started <- srv
		if err == nil {
			err = srv.Run(ctx)
		}
		if err != nil {
			t.Errorf("sshd: %v", err)
		}
	})
	srv := <-started
	if srv == nil {
		t.FailNow()
	}
	shown, err := hostkeys.Scan(t.Context(), srv.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := hostkeys.Open(filepath.Join(dir, sshKnownHosts), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Pin("n", shown[0]); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(srv.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s.ssh.known = make(map[string]sshNode)
	if s.ssh.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	s.ssh.fleet, err = sshnodes.New(sshnodes.Config{
		SSH:   overssh.Config{User: srv.User, KeyFile: filepath.Join(dir, sshd.UserKey), HostKeys: keys},
		Admit: s.names.admitName,
	})
	if err != nil {
		t.Fatal(err)
	}
	n := sshNodeObject(setup.SSH, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.1"})
	n.Name = "n"
	s.ssh.set(n)
}

// A node that the server dials, and that shows it no certificate, is not reached once its
// name is revoked, nor before it is known whether it is: its sshd is left alone, and what
// was open through it ends.
func TestRevokedInSSHMode(t *testing.T) {
	c := newRealm(t)
	c.node("n")
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the kubelet
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	target := fmt.Sprintf("n:%d", ln.Addr().(*net.TCPAddr).Port)
	follow := make(chan struct{})
	s := c.server("127.0.0.1:0")
	overSSH(t, s)
	defer c.start(s, follow)()
	if _, err := s.hub.DialContext(t.Context(), "tcp", target); tunnel.CodeOf(err) != tunnel.Busy {
		t.Errorf("dial before it is known who holds the name: %v", err)
	}
	close(follow)
	<-s.names.keeper.Ready()
	if err := s.names.admitName("never joined"); err != nil {
		t.Errorf("a name that nobody took: %v", err)
	}
	st, err := s.hub.DialContext(t.Context(), "tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := nodekeys.NewBook(c.api).Revoke(t.Context(), "n", "admin", "it was stolen"); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("read of a revoked node: %v", err)
	}
	if _, err := s.hub.DialContext(t.Context(), "tcp", target); tunnel.CodeOf(err) != tunnel.Revoked || !strings.Contains(err.Error(), "it was stolen") {
		t.Errorf("dial of a revoked node: %v", err)
	}
}
