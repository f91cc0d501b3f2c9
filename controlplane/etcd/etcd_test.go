// The member on disk, its errors, and clients.

package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run starts a member on dir and returns its client and what stops it. stop may be
// called again.
func run(t *testing.T, dir string) (c *clientv3.Client, stop func()) {
	t.Helper()
	s, err := New(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return start(t, s)
}

func start(t *testing.T, s *Server) (c *clientv3.Client, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-s.Ready():
	case err := <-done:
		stopped = true
		t.Fatalf("ended before it was ready: %v", err)
	}
	return s.Client(), stop
}

func TestDataSurvivesRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	c, stop := run(t, dir)
	if _, err := c.Put(t.Context(), "/k", "v"); err != nil {
		t.Fatal(err)
	}
	stop()
	c, _ = run(t, dir)
	got, err := c.Get(t.Context(), "/k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}

func TestWatchThroughInProcessClient(t *testing.T) {
	c, _ := run(t, filepath.Join(t.TempDir(), "store"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := c.Watch(ctx, "/w", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if r := <-w; !r.Created {
		t.Fatalf("first response: %+v", r)
	}
	for i := range 3 {
		if _, err := c.Put(ctx, fmt.Sprint("/w", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for len(keys) < 3 {
		for _, e := range (<-w).Events {
			keys = append(keys, string(e.Kv.Key))
		}
	}
	if got := strings.Join(keys, " "); got != "/w0 /w1 /w2" {
		t.Errorf("watched %s", got)
	}
}

// TestNobodyElseMayEnter: the directory is closed to others, one that is open is
// refused, and the only way in is the socket inside it.
func TestNobodyElseMayEnter(t *testing.T) {
	open, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := open.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "is open to other users") {
		t.Errorf("a directory that others may enter: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "store")
	run(t, dir)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	conn, err := net.Dial("unix", filepath.Join(dir, SocketName))
	if err != nil {
		t.Errorf("operator's socket: %v", err)
	} else {
		conn.Close()
	}
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		if n := listeners(t, file); n != 0 {
			t.Errorf("%d TCP listeners in %s", n, file)
		}
	}
}

// listeners counts the listening sockets in file that are this process's own.
func listeners(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			own[to] = true
		}
	}
	n := 0
	for _, line := range strings.Split(string(data), "\n") {
		// sl local remote state … inode; 0A is LISTEN.
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own["socket:["+f[9]+"]"] {
			n++
		}
	}
	return n
}

// TestLongPath: a directory whose name does not fit into a socket address works,
// without a socket.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	c, _ := run(t, dir)
	if _, err := c.Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, SocketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket: %v", err)
	}
}

func TestErrors(t *testing.T) {
	busy := filepath.Join(t.TempDir(), "store")
	run(t, busy)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cfg  Config
		is   error
		says string
	}{
		{"no directory", Config{}, nil, "data directory not set"},
		{"negative quota", Config{Dir: "x", Quota: -1}, nil, "quota of -1 bytes is negative"},
		{"in use", Config{Dir: busy}, ErrLocked, busy},
		{"below a file", Config{Dir: filepath.Join(file, "x")}, nil, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := New(c.cfg)
			if err == nil {
				err = s.Run(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestStopBeforeReady(t *testing.T) {
	s, err := New(Config{Dir: filepath.Join(t.TempDir(), "store")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("%v", err)
	}
}

func TestDial(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	run(t, dir)
	c, err := Dial(t.Context(), External{Servers: []string{"unix://" + filepath.Join(dir, SocketName)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}

	var dialed string
	through, err := Dial(t.Context(), External{Servers: []string{"http://etcd.example:2379"}, Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
		dialed = addr
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, SocketName))
	}}, nil)
	if err != nil || dialed != "etcd.example:2379" {
		t.Errorf("dialed %q, %v", dialed, err)
	} else if err := through.Close(); err != nil {
		t.Error(err)
	}

	if _, err := Dial(t.Context(), External{}, nil); err == nil {
		t.Error("dialed nobody")
	}
	if _, err := Dial(t.Context(), External{Servers: []string{"https://127.0.0.1:1"}, CAFile: filepath.Join(dir, "none")}, nil); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a CA that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, External{Servers: []string{"http://127.0.0.1:1"}}, nil); err == nil || !strings.Contains(err.Error(), "http://127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
}

// Who waits for etcd is told so.
func TestDialTellsThatItWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("does not answer yet")) { // else it is the client's
			out.Write(p)
			cancel()
		}
		return len(p), nil
	}), nil))
	if _, err := Dial(ctx, External{Servers: []string{"http://127.0.0.1:1"}}, log); err == nil {
		t.Error("dialed nobody")
	}
	if want := `msg="etcd does not answer yet" servers=[http://127.0.0.1:1] wait=20s`; !strings.Contains(out.String(), want) {
		t.Errorf("the log says %q, want %s", out.String(), want)
	}
}

// writerFunc is a Writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestLog(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	text := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	room := errors.New("0 MiB are free")
	l := zapLogger(ctx, slog.New(text), func() error { return room }).With(zap.String("member", "m"))
	l.Info("about itself")
	l.Warn("slow disk", zap.Int("z", 1), zap.Duration("took", time.Second))
	l.Error("broken", zap.Error(errors.New("why")))
	l.Warn("serving client traffic insecurely; this is strongly discouraged!")
	l.Warn("Failed to detect schema version", zap.Error(errors.New("missing term information")))
	l.Error("failed to update storage version", zap.Error(errors.New("cannot detect storage schema version: missing term information")))
	l.Error("failed to update storage version", zap.Error(errors.New("read only")))
	_ = l.Core().Write(zapcore.Entry{Level: zapcore.FatalLevel, Message: "failed to commit tx"}, nil) // l would end the process
	room = nil
	_ = l.Core().Write(zapcore.Entry{Level: zapcore.FatalLevel, Message: "failed to save"}, []zapcore.Field{zap.Error(fmt.Errorf("allocate: %w", unix.ENOSPC))})
	_ = l.Core().Write(zapcore.Entry{Level: zapcore.FatalLevel, Message: "another reason"}, nil)
	cancel()
	l.Error("a listener was closed")
	want := `level=WARN msg="slow disk" component=etcd member=m z=1 took=1s
level=ERROR msg=broken component=etcd member=m error=why
level=ERROR msg="failed to update storage version" component=etcd member=m error="read only"
level=ERROR msg="failed to commit tx" component=etcd member=m
level=ERROR msg="the server ends, because its store cannot be written: start it again when there is room" component=etcd member=m err="0 MiB are free"
level=ERROR msg="failed to save" component=etcd member=m error="allocate: no space left on device"
level=ERROR msg="the server ends, because its store cannot be written: start it again when there is room" component=etcd member=m err="no space left on device"
level=ERROR msg="another reason" component=etcd member=m
`
	if out.String() != want {
		t.Errorf("logged\n%swant\n%s", out.String(), want)
	}
}
