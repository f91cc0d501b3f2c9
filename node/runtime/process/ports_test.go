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
	o := &portOwner{declared: true, known: new(places)}
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
	var sockets places
	left, err := sockets.search(&countdown{t.Context(), 2}, make(turns, 1), proc, 7, slices.Clone(want))
	if !errors.Is(err, context.DeadlineExceeded) || len(left) < 100 {
		t.Errorf("%d of %d sockets are found, then %v", len(want)-len(left), len(want), err)
	}
	left, err = sockets.search(t.Context(), make(turns, 1), proc, 7, append(slices.Clone(want), "other"))
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

// TestPlaces: where a socket was found is a guess. It holds as long as the socket is open there,
// in a process below a shim of the pod.
func TestPlaces(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	port := g.listen(testPod, "c", "127.0.0.1:0", "exec")
	other := runtime.PodID{NamespacedName: types.NamespacedName{Namespace: "default", Name: "other"}, UID: "uid-2"}
	g.listen(other, "theirs", "127.0.0.1:0", "exec")
	inodes, err := listening(machineListeners, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
	if err != nil || len(inodes) != 1 {
		t.Fatalf("%v, %v", inodes, err)
	}
	lead := func(pod runtime.PodID) bool {
		shims, err := g.shimsOf(g.ctx, pod)
		if err != nil {
			t.Fatal(err)
		}
		return g.sockets.lead(inodes, shims)
	}
	if lead(testPod) {
		t.Error("it is known before anybody looked")
	}
	if got, err := g.reach(testPod, port, false); got != "pod" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if !lead(testPod) || lead(other) {
		t.Errorf("the pod's: %v, another's: %v", lead(testPod), lead(other))
	}
	at := g.sockets.of[inodes[0]]
	g.sockets.set(inodes[0], place{at.pid, filepath.Join(filepath.Dir(at.link), "0")})
	if lead(testPod) {
		t.Error("another descriptor is taken for it")
	}
	if got, err := g.reach(testPod, port, false); got != "pod" || err != nil || !lead(testPod) {
		t.Errorf("looked for again: %q, %v", got, err)
	}
	for i := range 2 * maxPlaces {
		g.sockets.set(strconv.Itoa(-i), at)
	}
	if n := len(g.sockets.of); n > maxPlaces {
		t.Errorf("%d are remembered", n)
	}
}
