package sshd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestServers reaches a target through either server, and finds nothing of it
// afterwards.
func TestServers(t *testing.T) {
	for name, start := range map[string]func(context.Context, string) (*Server, error){
		"own": func(ctx context.Context, dir string) (*Server, error) {
			return newOwn(ctx, dir, errors.New("not wanted"))
		},
		"whatever is installed": Start,
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			dir := t.TempDir()
			if err := MakeKeys(dir); err != nil {
				t.Fatal(err)
			}
			s, err := start(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			dialsThrough(t, dir, s)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			for _, pid := range s.Processes() {
				if pid != os.Getpid() && exists(pid) {
					t.Errorf("process %d is left", pid)
				}
			}
			// The port may be somebody else's by now.
			if c, err := net.Dial("tcp", s.Addr); err == nil {
				_ = c.SetReadDeadline(time.Now().Add(time.Second)) // a server of SSH speaks first
				if b, _ := bufio.NewReader(c).Peek(4); string(b) == "SSH-" {
					t.Errorf("%s still listens", s.Addr)
				}
				_ = c.Close()
			}
		})
	}
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// dialsThrough sends something to a target through s, and asks for one that s does not
// serve.
func dialsThrough(t *testing.T, dir string, s *Server) {
	t.Helper()
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session, err := overssh.Dial(ctx, overssh.Config{User: s.User, KeyFile: filepath.Join(dir, UserKey), HostKeys: known(t, dir)}, "node-1", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	near, err := session.Dial(ctx, "tcp", target.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := target.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range [][2]tunnel.Stream{{near, far.(*net.TCPConn)}, {far.(*net.TCPConn), near}} {
		if _, err := io.WriteString(way[0], "hello"); err != nil {
			t.Error(err)
		}
		if err := way[0].CloseWrite(); err != nil {
			t.Error(err)
		}
		if b, err := io.ReadAll(way[1]); string(b) != "hello" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
	}
	_, _ = near.Close(), far.Close()
	if st, err := session.Dial(ctx, "tcp", "192.0.2.1:80"); err == nil {
		_ = st.Close()
		t.Error("reached an address that is not on loopback")
	}
}

// known has node-1 show the key in dir.
func known(t *testing.T, dir string) *hostkeys.File {
	t.Helper()
	line, err := os.ReadFile(filepath.Join(dir, HostKey+".pub"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "known_hosts")
	if err := os.WriteFile(file, append([]byte("node-1 "), line...), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := hostkeys.Open(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestNoKeys says what is missing.
func TestNoKeys(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := Start(t.Context(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), HostKey) {
		t.Errorf("%v", err)
	}
}
