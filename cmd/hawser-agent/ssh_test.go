package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/e2e/await"
)

func TestSSHOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"ssh":               {[]string{"--transport", "ssh"}, ""},
		"another port":      {[]string{"--transport", "ssh", "--kubelet-port", "10251"}, ""},
		"no such port":      {[]string{"--transport", "ssh", "--kubelet-port", "70000"}, "--kubelet-port 70000"},
		"port of a tunnel":  {[]string{"--kubelet-port", "10251"}, "--transport ssh"},
		"targets elsewhere": {[]string{"--transport", "ssh", "--allow-target", "10.0.0.0/8"}, "PermitOpen"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(t, tt.args...)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if got := o.annotations()[setup.TransportAnnotation]; err == nil && got != setup.SSH {
				t.Errorf("annotated as %q", got)
			}
		})
	}
	o, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if got, has := o.annotations()[setup.TransportAnnotation]; !has || got != "" {
		t.Errorf("a node with a tunnel leaves the annotation %q", got)
	}
}

// The kubelet API is there for this machine only, and says so where it cannot be.
func TestListenKubelet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	addr := hostPort("127.0.0.1", n)
	if _, err := listenAt(t.Context(), "--kubelet-port", addr); err == nil || !strings.Contains(err.Error(), "--kubelet-port: 127.0.0.1:"+port+" is in use") {
		t.Errorf("port in use: %v", err)
	}
	_ = l.Close()
	if l, err = listenAt(t.Context(), "--kubelet-port", addr); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		t.Errorf("listens on %v", ip)
	}
}

// Of several servers the one that answered last is tried first.
func TestDirectDialer(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	down := net.JoinHostPort("127.0.0.1", strconv.Itoa(await.FreePort(t)))
	s := &directDialer{servers: []string{down, up.Addr().String()}, dial: agent.NewDial(nil, false)}
	for range 2 {
		c, err := s.DialContext(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != up.Addr().String() {
			t.Errorf("reached %s", got)
		}
		_ = c.Close()
		if s.last.Load() != 1 {
			t.Error("which server answered is not remembered")
		}
	}
	_ = up.Close()
	if _, err := s.DialContext(t.Context(), "", ""); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), down) {
		t.Errorf("no server: %v", err)
	}
}

// After requests through a server have failed, connections are to the next one.
func TestDirectDialerSuspects(t *testing.T) {
	var dialed []string
	s := &directDialer{servers: []string{"a:1", "b:1"}, dial: func(_ context.Context, _, addr string) (net.Conn, error) {
		dialed = append(dialed, addr)
		near, far := net.Pipe()
		_ = far.Close()
		return near, nil
	}}
	for range 3 {
		c, err := s.DialContext(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		s.Suspect()
	}
	if want := []string{"a:1", "b:1", "a:1"}; !slices.Equal(dialed, want) {
		t.Errorf("dialed %v, want %v", dialed, want)
	}
}
