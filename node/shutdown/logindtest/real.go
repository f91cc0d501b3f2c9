package logindtest

// The real systemd-logind, with a systemd of the test's own that starts no unit.

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
)

// program is where Debian's package systemd has it.
const program = "/lib/systemd/systemd-logind"

const (
	systemd     = "org.freedesktop.systemd1"
	systemdPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	job         = systemdPath + "/job/1"
)

// A Real is systemd-logind.
type Real struct {
	// Started has each unit that it asks systemd to start.
	Started chan string

	t       testing.TB
	cmd     *exec.Cmd
	running chan struct{} // closed once cmd runs
	conn    *dbus.Conn
}

// StartReal has systemd-logind on the bus until the test ends. It reads the drop-in files in
// dir. It sees a /run and a /var/log of its own, so that nothing of it stays. The test is
// skipped where it cannot be so.
func StartReal(b *Bus, dir string) *Real {
	b.t.Helper()
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		b.t.Skipf("SKIPPED: it needs root and %s, of Debian's package systemd (%v)", program, err)
	}
	inside := func(then string) *exec.Cmd {
		cmd := exec.CommandContext(context.WithoutCancel(b.t.Context()), "unshare", "--mount", "--propagation", "private", "sh", "-ec",
			"mount -t tmpfs none /run; mount -t tmpfs none /var/log; mkdir -p /run/systemd/logind.conf.d; mount --bind \"$1\" /run/systemd/logind.conf.d; exec "+then, "sh", dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	if out, err := inside("true").CombinedOutput(); err != nil {
		b.t.Skipf("SKIPPED: it needs a mount namespace: %v: %s", err, out)
	}
	conn, err := dbus.Connect(b.Address)
	if err != nil {
		b.t.Fatal(err)
	}
	r := &Real{Started: make(chan string, 8), t: b.t, conn: conn, cmd: inside(program), running: make(chan struct{})}
	b.t.Cleanup(func() { _ = conn.Close() })
	r.systemd()
	var said bytes.Buffer
	r.cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+b.Address, "SYSTEMD_LOG_TARGET=console")
	r.cmd.Stdout, r.cmd.Stderr = &said, &said
	if err := r.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	close(r.running)
	b.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		if b.t.Failed() {
			b.t.Logf("systemd-logind: %s", &said)
		}
	})
	return r
}

// systemd answers what logind asks systemd, and what is asked about logind's unit.
func (r *Real) systemd() {
	r.t.Helper()
	for _, e := range []struct {
		path  dbus.ObjectPath
		iface string
		calls map[string]any
	}{
		{systemdPath, systemd + ".Manager", map[string]any{"KillUnit": r.kill, "StartUnit": r.startUnit, "Subscribe": func() *dbus.Error { return nil }}},
		{systemdPath + "/unit/poweroff_2etarget", "org.freedesktop.DBus.Properties", map[string]any{"Get": func(_, property string) (dbus.Variant, *dbus.Error) {
			if property != "LoadState" {
				return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{property})
			}
			return dbus.MakeVariant("loaded"), nil
		}}},
	} {
		if err := r.conn.ExportMethodTable(e.calls, e.path, e.iface); err != nil {
			r.t.Fatal(err)
		}
	}
	if reply, err := r.conn.RequestName(systemd, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		r.t.Fatalf("name %s: %v, %v", systemd, reply, err)
	}
}

func (r *Real) kill(unit, _ string, signal int32) *dbus.Error {
	if unit != "systemd-logind.service" {
		return dbus.NewError(systemd+".NoSuchUnit", []any{unit})
	}
	<-r.running
	if err := r.cmd.Process.Signal(syscall.Signal(signal)); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

func (r *Real) startUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	r.Started <- unit
	return job, nil
}

// PowerOff asks for a shutdown of the machine.
func (r *Real) PowerOff() {
	r.t.Helper()
	if err := r.conn.Object(name, path).Call(manager+".PowerOff", 0, false).Err; err != nil {
		r.t.Fatal(err)
	}
}

// Cancel ends the job of the unit that it has had started, as systemctl cancel does.
func (r *Real) Cancel(unit string) {
	r.t.Helper()
	if err := r.conn.Emit(systemdPath, systemd+".Manager.JobRemoved", uint32(1), job, unit, "canceled"); err != nil {
		r.t.Fatal(err)
	}
}

// Locks lists the inhibitor locks.
func (r *Real) Locks() []string {
	r.t.Helper()
	return Locks(r.t, r.conn)
}

// Locks lists the inhibitor locks of the logind on a bus: who holds each, of what, and in
// which mode.
func Locks(t testing.TB, bus *dbus.Conn) []string {
	t.Helper()
	var all []struct {
		What, Who, Why, Mode string
		User, Process        uint32
	}
	if err := bus.Object(name, path).Call(manager+".ListInhibitors", 0).Store(&all); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range all {
		out = append(out, strings.Join([]string{l.Who, l.What, l.Mode}, " "))
	}
	return out
}
