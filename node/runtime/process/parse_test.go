package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

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
		// What has been understood can be said again, and means the same.
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

func TestParseMounts(t *testing.T) {
	in := `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /with\040space rw,nosuid shared:2 master:1 - cgroup cgroup rw,cpu,cpuacct
31 22 0:27 /sub\134dir /x rw - tmpfs none rw,size=4k
`
	got, err := parseMounts(strings.NewReader(in))
	want := []mountEntry{
		{"8:1", "/", "/", "ext4", []string{"rw"}},
		{"0:26", "/", "/with space", "cgroup", []string{"rw", "cpu", "cpuacct"}},
		{"0:27", `/sub\dir`, "/x", "tmpfs", []string{"rw", "size=4k"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseMounts(strings.NewReader("1 2 3\n")); err == nil {
		t.Error("malformed line accepted")
	}
}

// A directory is hidden under every name that mounts give it, and so is each mount
// of a part of it.
func TestAliases(t *testing.T) {
	ms := []mountEntry{
		{dev: "8:1", root: "/", point: "/"},
		{dev: "8:2", root: "/", point: "/var"},
		{dev: "8:2", root: "/lib", point: "/srv/lib"},
		{dev: "8:2", root: "/lib/hawser/pki", point: "/keys"},
		{dev: "8:2", root: "/lib/hawser/pki", point: "/var/lib/hawser/again"},
		{dev: "8:2", root: "/", point: "/other"},
		{dev: "8:2", root: "/library", point: "/library"},
		{dev: "8:3", root: "/", point: "/data"},
	}
	got := aliases("/var/lib/hawser", ms)
	if want := []string{"/var/lib/hawser", "/srv/lib/hawser", "/keys", "/other/lib/hawser"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := aliases("/data", ms); !reflect.DeepEqual(got, []string{"/data"}) {
		t.Errorf("a mount of its own: %q", got)
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
	f.Add(`1 2 3 \040 \999\ x - a b c`)
	f.Fuzz(func(_ *testing.T, s string) { _, _ = parseMounts(strings.NewReader(s)) })
}

func FuzzParseProcStat(f *testing.F) {
	f.Add("42 (a) b) (c) S 1 42 41 34816 42 4194304 1 2 3 4 5 6 7 8 20 0 1 0 1000 4096 12 184467")
	f.Add("x ) ( y")
	f.Fuzz(func(_ *testing.T, s string) { _, _ = parseProcStat(s) })
}

func TestParseProcStat(t *testing.T) {
	got, err := parseProcStat("42 (a) b) (c) S 1 42 41 34816 42 4194304 1 2 3 4 5 6 7 8 20 0 1 0 1000 4096 12 184467")
	want := procStat{pid: 42, ppid: 1, session: 41, state: 'S', cpuTicks: 26, start: 1000, rssPages: 12}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err = parseProcStat("42 (a) S 1"); err == nil {
		t.Error("short line accepted")
	}
	self, err := selfInProc()
	if err != nil || self.pid != os.Getpid() || self.ppid != os.Getppid() {
		t.Errorf("self %+v, %v", self, err)
	}
}

func TestDescendants(t *testing.T) {
	all := []procStat{{pid: 5, ppid: 3}, {pid: 2, ppid: 1}, {pid: 3, ppid: 2}, {pid: 4, ppid: 1}, {pid: 6, ppid: 3, state: 'Z'}}
	var got []int
	for _, p := range descendants(2, all) {
		got = append(got, p.pid)
	}
	if !reflect.DeepEqual(got, []int{3, 5}) {
		t.Errorf("got %v", got)
	}
}

func TestParsePasswd(t *testing.T) {
	b := []byte("root:x:0:0:root:/root:/bin/sh\nbroken\nu:x:1000:1001::/home/u:/bin/sh")
	if u, ok := parsePasswd(b, 1000); !ok || u != (passwdEntry{1000, 1001, "/home/u"}) {
		t.Errorf("got %+v, %v", u, ok)
	}
	if _, ok := parsePasswd(b, 7); ok {
		t.Error("found nobody")
	}
}

func FuzzParsePasswd(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\n"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parsePasswd(b, 0) })
}
