package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

func FuzzFrame(f *testing.F) {
	for _, v := range []any{
		request{Op: opExec, Argv: []string{"sh", "-c", "true"}, TTY: true},
		request{Op: opRun, Spec: &spec{ID: "x", Container: runtime.Container{Argv: []string{"a"}}}},
		request{Op: opResize, Size: &runtime.Size{Width: 1, Height: 2}},
	} {
		b, err := frame(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{', '}'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var req request
		r := bytes.NewReader(b)
		if err := readFrame(r, &req); err != nil {
			return
		}
		// A decoded request can be encoded again, and has the same meaning.
		again, err := frame(req)
		if err != nil {
			t.Fatal(err)
		}
		var req2 request
		if err = readFrame(bytes.NewReader(again), &req2); err != nil {
			t.Fatal(err)
		}
		third, err := frame(req2)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%s\n%s\n%v", again, third, err)
		}
	})
}

func TestFrameLimits(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, maxFrame+1)
	var req request
	if err := readFrame(bytes.NewReader(huge), &req); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("too long: %v", err)
	}
	short := append(binary.BigEndian.AppendUint32(nil, 100), "{}"...)
	if err := readFrame(bytes.NewReader(short), &req); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
	if _, err := frame(request{Argv: []string{strings.Repeat("x", maxFrame)}}); err == nil {
		t.Error("a message beyond the limit was encoded")
	}
}

// Descriptors arrive with the message they belong to, and too many are closed.
func TestConnDescriptors(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*conn
	for i, fd := range pair {
		if ends[i], err = connFromFD(fd); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	big := strings.Repeat("x", 1<<20) // more than a socket takes at once
	sent := make(chan error, 1)
	go func() { sent <- ends[0].send(request{Op: opExec, Argv: []string{big}}, int(w.Fd())) }()
	var req request
	if err = ends[1].recv(&req); err != nil || req.Argv[0] != big {
		t.Fatalf("%v, %d bytes", err, len(req.Argv[0]))
	}
	if err = <-sent; err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	fd, err := ends[1].take()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ends[1].take(); err == nil {
		t.Error("a second descriptor")
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if b, err := io.ReadAll(r); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

// The path of the socket may be longer than an address can be.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := listenShim(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	info, err := os.Stat(filepath.Join(dir, sockName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	c, err := dialShim(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestFailures(t *testing.T) {
	se := &runtime.StartError{ExitCode: 127, Reason: "StartError", Message: "m"}
	if got := failureOf(se).err(); !reflect.DeepEqual(got, se) {
		t.Errorf("got %#v", got)
	}
	if got := failureOf(runtime.ErrNotRunning).err(); !errors.Is(got, runtime.ErrNotRunning) {
		t.Errorf("got %v", got)
	}
	if got := failureOf(io.EOF).err(); got.Error() != "EOF" {
		t.Errorf("got %v", got)
	}
}

// A directory is hidden under every name that mounts give it, and so is each mount
// of a part of it.
func TestAliases(t *testing.T) {
	ms := []*mountinfo.Info{
		{Major: 8, Minor: 1, Root: "/", Mountpoint: "/"},
		{Major: 8, Minor: 2, Root: "/", Mountpoint: "/var"},
		{Major: 8, Minor: 2, Root: "/lib", Mountpoint: "/srv/lib"},
		{Major: 8, Minor: 2, Root: "/lib/hawser/pki", Mountpoint: "/keys"},
		{Major: 8, Minor: 2, Root: "/lib/hawser/pki", Mountpoint: "/var/lib/hawser/again"},
		{Major: 8, Minor: 2, Root: "/", Mountpoint: "/other"},
		{Major: 8, Minor: 2, Root: "/library", Mountpoint: "/library"},
		{Major: 8, Minor: 3, Root: "/", Mountpoint: "/data"},
	}
	got := runtime.Aliases("/var/lib/hawser", ms)
	if want := []string{"/var/lib/hawser", "/srv/lib/hawser", "/keys", "/other/lib/hawser"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := runtime.Aliases("/data", ms); !reflect.DeepEqual(got, []string{"/data"}) {
		t.Errorf("a mount of its own: %q", got)
	}
}

func TestDescendants(t *testing.T) {
	all := []procfs.ProcStat{{PID: 5, PPID: 3}, {PID: 2, PPID: 1}, {PID: 3, PPID: 2}, {PID: 4, PPID: 1}, {PID: 6, PPID: 3, State: zombie}}
	var got []int
	for _, p := range descendants(2, all) {
		got = append(got, p.PID)
	}
	if !reflect.DeepEqual(got, []int{3, 5}) {
		t.Errorf("got %v", got)
	}
}

// A command runs with the group and the home directory that /etc/passwd has for its
// user. A malformed line does not matter.
func TestPasswd(t *testing.T) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 { // others cannot choose
		uid, gid = 1000, 1001
	}
	root := t.TempDir()
	passwd := fmt.Sprintf("broken\nroot:x:0:0:root:/root:/bin/sh\nu:x:%d:%d::/home/u:/bin/sh", uid, gid)
	if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte(passwd), 0o644)); err != nil {
		t.Fatal(err)
	}
	l, id := &launch{root: root}, int64(uid)
	got, home, err := l.user(&spec{Container: runtime.Container{UID: &id}})
	if err != nil || got != uid || home != "/home/u" || int(l.cred.Uid) != uid || int(l.cred.Gid) != gid {
		t.Errorf("user %d, home %q, %+v, %v", got, home, l.cred, err)
	}
}
