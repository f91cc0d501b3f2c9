// Package logindtest is a systemd-logind for tests, on a D-Bus of the test's own. It takes
// Debian's package dbus-daemon.
package logindtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	name    = "org.freedesktop.login1"
	path    = "/org/freedesktop/login1"
	manager = "org.freedesktop.login1.Manager"
)

// patience bounds every wait; only a fault lets it pass.
const patience = time.Minute

// config lets everybody of the test do everything.
const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
<type>system</type>
<listen>unix:path=%s</listen>
<policy context="default">
<allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/>
</policy>
</busconfig>
`

// A Bus is a dbus-daemon.
type Bus struct {
	// Address is for DBUS_SYSTEM_BUS_ADDRESS.
	Address string

	t    testing.TB
	file string
	cmd  *exec.Cmd
}

// StartBus starts a bus that ends with the test, and skips the test where there is no
// dbus-daemon.
func StartBus(t testing.TB) *Bus {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("dbus-daemon is missing: apt-get install dbus-daemon")
	}
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // the path of a socket has 107 bytes at most, and that of a test may have more
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "bus")
	b := &Bus{t: t, Address: "unix:path=" + socket, file: filepath.Join(dir, "bus.conf")}
	if err = os.WriteFile(b.file, fmt.Appendf(nil, config, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Stop()
		_ = os.RemoveAll(dir)
	})
	b.Start()
	return b
}

// Start starts the daemon again, after Stop.
func (b *Bus) Start() {
	b.t.Helper()
	b.cmd = exec.CommandContext(context.WithoutCancel(b.t.Context()), "dbus-daemon", "--nofork", "--nopidfile", "--config-file="+b.file, "--print-address")
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := b.cmd.StdoutPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		b.t.Fatalf("dbus-daemon has said no address: %v", err)
	}
}

// Stop ends the daemon: all connections to it are lost.
func (b *Bus) Stop() {
	if b.cmd != nil {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
		b.cmd = nil
	}
}

// A Lock is an inhibitor lock that logind has given away.
type Lock struct {
	What, Who, Why, Mode string

	released chan struct{} // closed once nobody holds it
	mu       sync.Mutex    // guards the following
	ours     *os.File
}

// A Logind answers as systemd-logind does, and as systemd about its unit.
type Logind struct {
	t    testing.TB
	conn *dbus.Conn

	mu        sync.Mutex
	delay     uint64 // microseconds
	reload    func() uint64
	preparing bool
	kills     []string
	locks     chan *Lock
}

// Start has a logind with that InhibitDelayMaxSec on the bus until the test or Stop ends
// it. Each reload sets the delay that reload returns.
func Start(b *Bus, delay time.Duration, reload func() time.Duration) *Logind {
	b.t.Helper()
	l := &Logind{t: b.t, delay: micro(delay), locks: make(chan *Lock, 16)}
	l.reload = func() uint64 { return micro(reload()) }
	conn, err := dbus.Connect(b.Address)
	if err != nil {
		b.t.Fatal(err)
	}
	l.conn = conn
	b.t.Cleanup(l.Stop)
	for _, e := range []struct {
		path  dbus.ObjectPath
		iface string
		calls map[string]any
	}{
		{path, manager, map[string]any{"Inhibit": l.inhibit}},
		{path, "org.freedesktop.DBus.Properties", map[string]any{"Get": l.get}},
		{"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", map[string]any{"KillUnit": l.killUnit}},
	} {
		if err = conn.ExportMethodTable(e.calls, e.path, e.iface); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, n := range []string{"org.freedesktop.systemd1", name} {
		if r, err := conn.RequestName(n, dbus.NameFlagDoNotQueue); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
			b.t.Fatalf("name %s: %v, %v", n, r, err)
		}
	}
	return l
}

func micro(d time.Duration) uint64 { return uint64(d / time.Microsecond) } //nolint:gosec // not negative

// Stop takes it off the bus.
func (l *Logind) Stop() { _ = l.conn.Close() }

// Announce says that the machine is about to shut down, or not any more.
func (l *Logind) Announce(shutdown bool) {
	l.t.Helper()
	l.mu.Lock()
	l.preparing = shutdown
	l.mu.Unlock()
	if err := l.conn.Emit(path, manager+".PrepareForShutdown", shutdown); err != nil {
		l.t.Fatal(err)
	}
}

// Kills lists the calls of KillUnit.
func (l *Logind) Kills() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.kills...)
}

// Locked waits until somebody takes a lock.
func (l *Logind) Locked() *Lock {
	l.t.Helper()
	select {
	case lock := <-l.locks:
		return lock
	case <-time.After(patience):
		l.t.Fatal("nobody takes a lock")
		return nil
	}
}

// Delivered says that who has asked for the lock has it: from then on only that one does.
func (k *Lock) Delivered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.ours.Close()
}

// Released is closed once the lock, which was delivered, is held no longer.
func (k *Lock) Released() <-chan struct{} { return k.released }

func (l *Logind) inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	preparing := l.preparing
	l.mu.Unlock()
	if preparing {
		return 0, dbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"The operation inhibition has been requested for is already running"})
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	k := &Lock{What: what, Who: who, Why: why, Mode: mode, released: make(chan struct{}), ours: w}
	k.mu.Lock()
	fd := dbus.UnixFD(w.Fd()) //nolint:gosec // a small number
	k.mu.Unlock()
	go func() {
		_, _ = r.Read(make([]byte, 1)) // until nobody can write
		_ = r.Close()
		close(k.released)
	}()
	l.t.Cleanup(k.Delivered)
	l.locks <- k
	return fd, nil
}

func (l *Logind) get(iface, property string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch iface + "." + property {
	case manager + ".InhibitDelayMaxUSec":
		return dbus.MakeVariant(l.delay), nil
	case manager + ".PreparingForShutdown":
		return dbus.MakeVariant(l.preparing), nil
	}
	return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{property})
}

func (l *Logind) killUnit(unit, who string, signal int32) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills = append(l.kills, fmt.Sprint(unit, " ", who, " ", signal))
	l.delay = l.reload()
	return nil
}
