// Two servers to test against: one of our own in this process, and OpenSSH's.

package overssh

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh/oversshtest"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A lab is a directory with keys in it, and an sshd.
type lab struct {
	dir    string
	user   string
	addr   string
	host   ssh.PublicKey       // what the sshd shows
	net    *tunneltest.Network // where our own listens; nil means loopback
	cancel func()              // ends the sshd and its connections
	start  func(t testing.TB)
	opened func(ssh.Conn) // called by our own with each connection
}

// newKey writes a key pair as ssh-keygen would.
func newKey(t testing.TB, path string) ssh.PublicKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{path: pem.EncodeToMemory(block), path + ".pub": ssh.MarshalAuthorizedKey(key)} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

func newLab(t testing.TB) *lab {
	l := &lab{dir: t.TempDir(), user: "tester"}
	newKey(t, l.path("id"))
	l.host = newKey(t, l.path("host"))
	return l
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

// A config is that of a session, and where node-1 is.
type config struct {
	Config
	addr string
}

// config is for a node that lets one in.
func (l *lab) config(t testing.TB) config {
	t.Helper()
	cfg := config{Config{User: l.user, KeyFile: l.path("id"), HostKeys: oversshtest.Pinned(l.host)}, l.addr}
	if l.net != nil {
		cfg.Dial = l.net.Dial
	}
	return cfg
}

// own starts a server in this process.
func own(t testing.TB) *lab {
	l := newLab(t)
	l.addr = "127.0.0.1:0"
	l.start = func(t testing.TB) { startOwn(t, l, nil) }
	l.start(t)
	return l
}

// startOwn starts a server which answers channels with serve, or as sshd does if
// that is nil.
func startOwn(t testing.TB, l *lab, serve func(context.Context, ssh.NewChannel)) {
	t.Helper()
	if serve == nil {
		serve = forward
	}
	b, err := os.ReadFile(l.path("host"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := ssh.ParsePrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	id, err := os.ReadFile(l.path("id.pub"))
	if err != nil {
		t.Fatal(err)
	}
	conf := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() != l.user || string(ssh.MarshalAuthorizedKey(key)) != string(id) {
			return nil, errors.New("not you")
		}
		return &ssh.Permissions{}, nil
	}}
	conf.AddHostKey(host)
	listen := new(net.ListenConfig).Listen
	if l.net != nil {
		listen = l.net.Listen
	}
	ln, err := listen(t.Context(), "tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	l.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.serveOwn(ctx, c, conf, serve) })
		}
	})
	l.cancel = func() {
		cancel()
		_ = ln.Close()
		wg.Wait()
	}
	t.Cleanup(func() { l.cancel() })
}

func (l *lab) serveOwn(ctx context.Context, c net.Conn, conf *ssh.ServerConfig, serve func(context.Context, ssh.NewChannel)) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	conn, channels, requests, err := ssh.NewServerConn(c, conf)
	if err != nil {
		_ = c.Close()
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(requests) })
	if l.opened != nil {
		wg.Go(func() { l.opened(conn) })
	}
	for ch := range channels {
		wg.Go(func() { serve(ctx, ch) })
	}
	_ = conn.Close()
}

// forward is direct-tcpip.
func forward(ctx context.Context, nc ssh.NewChannel) {
	var ask struct {
		Host string
		Port uint32
		From string
		P    uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &ask); err != nil || nc.ChannelType() != "direct-tcpip" {
		_ = nc.Reject(ssh.UnknownChannelType, "no")
		return
	}
	if ask.Host == "forbidden" {
		_ = nc.Reject(ssh.Prohibited, "open failed")
		return
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", ask.Host, ask.Port))
	if err != nil {
		text := "Connection refused"
		if errors.Is(err, syscall.ENETUNREACH) {
			text = "Network is unreachable"
		}
		_ = nc.Reject(ssh.ConnectionFailed, text)
		return
	}
	ch, requests, err := nc.Accept()
	if err != nil {
		_ = c.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		ssh.DiscardRequests(requests) // until the channel is closed
		_ = c.(*net.TCPConn).SetReadDeadline(time.Unix(1, 0))
	})
	wg.Go(func() {
		_, _ = io.Copy(c, ch)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(ch, c)
	_ = ch.CloseWrite()
	wg.Wait()
	_ = c.Close()
	_ = ch.Close()
}

// openSSH starts the real one.
func openSSH(t testing.TB) *lab {
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		if sshd = "/usr/sbin/sshd"; !exists(sshd) {
			t.Skip("THERE IS NO sshd HERE: install openssh-server, this transport exists for it")
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Uid == "0" {
		if err = os.MkdirAll("/run/sshd", 0o755); err != nil { // it wants that
			t.Fatal(err)
		}
	}
	l := newLab(t)
	l.user = me.Username
	l.addr = tunneltest.FreeAddr(t).String()
	conf := strings.NewReplacer("DIR", l.dir, "ADDR", l.addr).Replace(`
ListenAddress ADDR
HostKey DIR/host
PidFile none
AuthorizedKeysFile DIR/id.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
AllowTcpForwarding yes
MaxStartups 100
PermitOpen 127.0.0.1:* 224.0.0.1:* nosuchhost.invalid:*
`)
	if err := os.WriteFile(l.path("sshd_config"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	l.start = func(t testing.TB) { startOpenSSH(t, l, sshd) }
	l.start(t)
	return l
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func startOpenSSH(t testing.TB, l *lab, sshd string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	// It has a descriptor for each stream, of as many as there may be.
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -n $(ulimit -H -n); exec "$0" "$@"`, sshd, "-D", "-e", "-f", l.path("sshd_config"))
	var proxies sync.WaitGroup
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan struct{})
	var text []byte
	proxies.Go(func() {
		defer close(listening)
		// It says where it listens, and then one line a connection.
		buf := make([]byte, 4096)
		for !strings.Contains(string(text), "Server listening") {
			n, err := log.Read(buf)
			if text = append(text, buf[:n]...); err != nil {
				return
			}
		}
	})
	select {
	case <-listening:
	case <-time.After(patience):
	}
	if !strings.Contains(string(text), "Server listening") {
		cancel()
		t.Fatalf("sshd does not start: %s", text)
	}
	proxies.Go(func() { _, _ = io.Copy(io.Discard, log) })
	var once sync.Once
	l.cancel = func() {
		once.Do(func() {
			for _, pid := range descendants(cmd.Process.Pid) { // one or two a connection
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			cancel()
			_ = log.Close()
			_ = cmd.Wait()
			proxies.Wait()
		})
	}
	t.Cleanup(func() { l.cancel() })
}

// descendants are the processes that pid has started, and those that they have.
func descendants(pid int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(append(pids, child), descendants(child)...)
		}
	}
	return pids
}

// patience bounds every wait. It is no measure: what takes this long hangs.
const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// run makes a session, until the test ends, or until stop.
func run(t testing.TB, cfg config) (d *Session, stop func()) {
	t.Helper()
	d, err := Dial(within(t), cfg.Config, "node-1", cfg.addr)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() { _ = d.Close() } // never fails
	t.Cleanup(stop)
	return d, stop
}

// listen makes a target.
func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// pair dials ln through d.
func pair(t testing.TB, d *Session, ln net.Listener) (near tunnel.Stream, far *net.TCPConn) {
	t.Helper()
	near, err := d.Dial(within(t), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close(); _ = c.Close() })
	return near, c.(*net.TCPConn)
}

// finishes fails the test if f does not come back.
func finishes(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: still blocked after %v", what, patience)
	}
}
