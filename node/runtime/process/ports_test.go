package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

const listenEnv = "HAWSER_TEST_LISTEN"

// listenMain is a container's program: it listens at addr, prints its port, and answers each
// connection with a word until it is killed.
func listenMain(addr string) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Println("cannot listen:", err)
		os.Exit(1)
	}
	fmt.Println("listening", ln.Addr().(*net.TCPAddr).Port, "ready")
	for {
		c, err := ln.Accept()
		if err != nil {
			os.Exit(1)
		}
		_, _ = io.WriteString(c, "pod")
		_ = c.Close()
	}
}

// listen starts a container that listens at addr, by a command line that starts with before,
// and returns its port.
func (g *rig) listen(pod runtime.PodID, name, addr, before string) (port uint16) {
	g.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		g.t.Fatal(err)
	}
	c := g.container(name, "")
	if g.isolation != None {
		c.Mounts = []runtime.Mount{{HostPath: exe, ContainerPath: "/listener", ReadOnly: true}}
		exe = "/listener"
	}
	c.Argv[2] = before + " " + exe
	c.Env = []string{listenEnv + "=" + addr}
	c.Pod = pod
	id := g.start(c)
	g.waitLog(id, "ready")
	n, err := strconv.ParseUint(strings.Fields(g.log(id))[1], 10, 16)
	if err != nil {
		g.t.Fatalf("%q: %v", g.log(id), err)
	}
	return uint16(n)
}

// stranger listens in this process, which is of no pod, and closes accepted connections.
func stranger(t *testing.T, addr string) (port uint16) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "stranger")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return uint16(ln.Addr().(*net.TCPAddr).Port)
}

// reach connects to a port of the pod and returns the answer.
func (g *rig) reach(pod runtime.PodID, port uint16, declared bool, also ...netip.Addr) (string, error) {
	conn, err := g.dialPod(g.ctx, g.clientTurns, pod, port, declared, also...)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	b, err := io.ReadAll(conn)
	return string(b), err
}

// TestDialPod: the ports on which the pod listens are reached, declared or not, and no others.
func TestDialPod(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		for i, tt := range []struct{ addr, before string }{
			{"127.0.0.1:0", "exec"},
			{"0.0.0.0:0", "exec"},
			{"[::]:0", "exec"},
			{"[::1]:0", "exec"},
			{"127.0.0.1:0", "child() { \"$@\" & exec sleep 1000; }; child"},
			// It leaves its session, and its parents end.
			{"127.0.0.1:0", "daemon() { (setsid \"$@\" &); exec sleep 1000; }; daemon"},
		} {
			port := g.listen(testPod, fmt.Sprintf("c%d", i), tt.addr, tt.before)
			for _, declared := range []bool{false, true} {
				if got, err := g.reach(testPod, port, declared); got != "pod" || err != nil {
					t.Errorf("%s by %q, declared %v: %q, %v", tt.addr, tt.before, declared, got, err)
				}
			}
		}
		if _, err := g.reach(testPod, 1, false); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("nobody listens: %v", err)
		}
	})
}

// TestDialPodRefusesOthers: the port is one of another process on the machine.
func TestDialPodRefusesOthers(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		other := runtime.PodID{NamespacedName: types.NamespacedName{Namespace: "default", Name: "other"}, UID: "uid-2"}
		theirs := g.listen(other, "theirs", "127.0.0.1:0", "exec")
		host := stranger(t, "127.0.0.1:0")
		g.idle("idle")
		// The pod has the same port at another address of the machine.
		shadow := g.listen(testPod, "shadow", fmt.Sprintf("127.0.0.2:%d", host), "exec")
		wide := stranger(t, "[::]:0")
		for name, port := range map[string]uint16{"another pod": theirs, "the machine": host, "shadowed": shadow, "all addresses": wide} {
			for _, declared := range []bool{false, true} {
				if got, err := g.reach(testPod, port, declared); !errors.Is(err, errForeign) {
					t.Errorf("%s, declared %v: %q, %v", name, declared, got, err)
				}
			}
		}
		if got, err := g.reach(other, theirs, false); got != "pod" || err != nil {
			t.Errorf("its own: %q, %v", got, err)
		}
	})
}

// machineAddr is an address of the machine that is not a loopback address.
func machineAddr(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, err := netip.ParsePrefix(a.String()); err == nil && n.Addr().Is4() && n.Addr().IsGlobalUnicast() {
			return n.Addr()
		}
	}
	t.Skip("NOT TESTED: the machine has loopback addresses only")
	return netip.Addr{}
}

// TestDialPodAlso: a port at another address of the machine is reached if the caller names that
// address, unless it is another process's.
func TestDialPodAlso(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		at := machineAddr(t)
		g := newRig(t, Config{Isolation: iso})
		own := g.listen(testPod, "own", netip.AddrPortFrom(at, 0).String(), "exec")
		theirs := stranger(t, netip.AddrPortFrom(at, 0).String())
		host := stranger(t, "127.0.0.1:0")
		shadow := g.listen(testPod, "shadow", netip.AddrPortFrom(at, host).String(), "exec")
		for name, port := range map[string]uint16{"own": own, "not that on loopback": shadow} {
			if got, err := g.reach(testPod, port, true, at); got != "pod" || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if got, err := g.reach(testPod, own, true); err == nil {
			t.Errorf("an address that is not named: %q", got)
		}
		if got, err := g.reach(testPod, theirs, true, at); !errors.Is(err, errForeign) {
			t.Errorf("another process's: %q, %v", got, err)
		}
	})
}

// TestDialPodAt: exactly that address is reached, and only if the pod listens there.
func TestDialPodAt(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		at := machineAddr(t)
		g := newRig(t, Config{Isolation: iso})
		own := g.listen(testPod, "own", netip.AddrPortFrom(at, 0).String(), "exec")
		wide := g.listen(testPod, "wide", "[::]:0", "exec")
		theirs := stranger(t, netip.AddrPortFrom(at, 0).String())
		_ = g.listen(testPod, "shadow", fmt.Sprintf("127.0.0.1:%d", theirs), "exec")
		reach := func(to netip.AddrPort) (string, error) {
			conn, err := g.DialPodAt(g.ctx, testPod, to)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			b, err := io.ReadAll(conn)
			return string(b), err
		}
		for name, port := range map[string]uint16{"own": own, "all addresses": wide} {
			if got, err := reach(netip.AddrPortFrom(at, port)); got != "pod" || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if got, err := reach(netip.AddrPortFrom(at, theirs)); !errors.Is(err, runtime.ErrForeignPort) {
			t.Errorf("another process's: %q, %v", got, err)
		}
		if got, err := reach(netip.AddrPortFrom(at, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("nobody's: %q, %v", got, err)
		}
		// A translator may lead an address that this machine does not have back to any other.
		if got, err := reach(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), theirs)); !errors.Is(err, runtime.ErrForeignPort) {
			t.Errorf("another process's, by a translator: %q, %v", got, err)
		}
	})
}

// TestDialPodStays: no connection is made to an address that is not the machine's.
func TestDialPodStays(t *testing.T) {
	o := &portOwner{declared: true}
	if _, err := o.dial(t.Context(), netip.MustParseAddrPort("203.0.113.1:9")); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("got %v", err)
	}
}

// TestDialPodOfEnded: an ended container has no ports.
func TestDialPodOfEnded(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	host := stranger(t, "127.0.0.1:0")
	g.wait(g.start(g.container("c", "exit 0")))
	if _, err := g.reach(testPod, host, true); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}

// A countdown is a context that is done once it has been looked at as often as left says.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestNotOpenStops: looking through the descriptors of a process ends with the caller's patience,
// however many there are.
func TestNotOpenStops(t *testing.T) {
	proc := t.TempDir()
	fds := filepath.Join(proc, "7", "fd")
	if err := os.MkdirAll(fds, 0o755); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 3000 {
		if i%10 == 0 {
			want = append(want, strconv.Itoa(i))
		}
		if err := os.Symlink(fmt.Sprintf("socket:[%d]", i), filepath.Join(fds, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	left, err := notOpen(&countdown{t.Context(), 2}, make(turns, 1), proc, 7, slices.Clone(want))
	if !errors.Is(err, context.DeadlineExceeded) || len(left) < 100 {
		t.Errorf("%d of %d sockets are found, then %v", len(want)-len(left), len(want), err)
	}
	left, err = notOpen(t.Context(), make(turns, 1), proc, 7, append(slices.Clone(want), "other"))
	if err != nil || !slices.Equal(left, []string{"other"}) {
		t.Errorf("not open: %v, %v", left, err)
	}
}

// TestDialPodTurns: no more than a few look through processes at a time. The others wait for as
// long as their callers do.
func TestDialPodTurns(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	port := g.listen(testPod, "c", "127.0.0.1:0", "exec")
	for range maxTurns {
		g.clientTurns <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(g.ctx, time.Second)
	defer cancel()
	if conn, err := g.DialPod(ctx, testPod, port, true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connected %v, %v", conn != nil, err)
	}
	// Probes do not wait for clients.
	conn, err := g.DialProbe(g.ctx, testPod, port)
	if err != nil {
		t.Errorf("a probe: %v", err)
	} else {
		_ = conn.Close()
	}
	for range maxTurns {
		<-g.clientTurns
	}
	if got, err := g.reach(testPod, port, true); got != "pod" || err != nil {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// TestPortsUntold: if the owner of a port cannot be found, a declared port counts as the
// pod's.
func TestPortsUntold(t *testing.T) {
	if err := (&portOwner{declared: true}).ownerUnknown(fs.ErrPermission); err != nil {
		t.Errorf("declared: %v", err)
	}
	if err := (&portOwner{}).ownerUnknown(fs.ErrPermission); !errors.Is(err, errOwnerUnknown) || !strings.Contains(err.Error(), "containerPorts") {
		t.Errorf("not declared: %v", err)
	}
}

const procHeading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// TestListening chooses among listening sockets as the kernel does.
func TestListening(t *testing.T) {
	line := func(local, state string, inode int) string {
		return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %d 1 0 100 0 0 10 0\n", local, state, inode)
	}
	const (
		any4, lo4, eth4 = "00000000:0050", "0100007F:0050", "0101010A:0050"
		any6            = "00000000000000000000000000000000:0050"
		lo6             = "00000000000000000000000001000000:0050"
		mapped          = "0000000000000000FFFF00000100007F:0050"
	)
	four, six := netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("[::1]:80")
	for name, tt := range map[string]struct {
		tcp, tcp6 string
		at        netip.AddrPort
		want      []string
	}{
		"none":                     {"", "", four, nil},
		"other port":               {line("0100007F:0051", "0A", 1), "", four, nil},
		"exact before all":         {line(any4, "0A", 1) + line(lo4, "0A", 2), line(any6, "0A", 3), four, []string{"2"}},
		"exact by mapped address":  {line(any4, "0A", 1), line(mapped, "0A", 3), four, []string{"3"}},
		"IPv4 before IPv6":         {line(any4, "0A", 1), line(any6, "0A", 3), four, []string{"1"}},
		"both families":            {"", line(any6, "0A", 3), four, []string{"3"}},
		"shared":                   {line(lo4, "0A", 1) + line(lo4, "0A", 2), "", four, []string{"1", "2"}},
		"another address":          {line(eth4, "0A", 1), "", four, nil},
		"not listening":            {line(lo4, "01", 1) + line(lo4, "0A", 2), "", four, nil}, // listening sockets come first
		"IPv6":                     {line(lo4, "0A", 1), line(lo6, "0A", 2) + line(any6, "0A", 3), six, []string{"2"}},
		"IPv6 does not reach IPv4": {line(any4, "0A", 1), "", six, nil},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "net"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(proc, "net/tcp"), procHeading+tt.tcp, 0o644)
			write(t, filepath.Join(proc, "net/tcp6"), procHeading+tt.tcp6, 0o644)
			got, err := listening(proc, tt.at)
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

func FuzzListeners(f *testing.F) {
	for _, name := range []string{"tcp", "tcp6"} {
		if b, err := os.ReadFile("/proc/net/" + name); err == nil {
			f.Add(string(b))
		}
	}
	f.Add(procHeading + "0: 0100007F:0050 0 0A 0 0 0 0 0 7\n")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseListeners(strings.NewReader(s), 80)
		for _, l := range list {
			if err == nil && (!l.addr.IsValid() || l.inode == "") {
				t.Errorf("%+v", l)
			}
		}
	})
}

// A container whose shim is not known, as of a later version, has no processes that are known: not
// all of the machine's.
func TestUnknownShim(t *testing.T) {
	r := &Runtime{ready: make(chan struct{}), done: make(chan struct{}), containers: map[string]*container{}}
	close(r.ready)
	for id, pid := range map[string]int{"held": 0, "c": 4711} {
		r.containers[id] = newContainer(&spec{ID: id, Container: runtime.Container{Pod: testPod}}, record{State: runtime.Running, ShimPID: pid})
	}
	if shims, err := r.shimsOf(t.Context(), testPod); err != nil || !slices.Equal(shims, []int{4711}) {
		t.Errorf("%v, %v", shims, err)
	}
}
