package shutdown

// Tests against the real systemd-logind, and against that of this machine where there is one.

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/hawser-project/hawser/node/shutdown/logindtest"
)

// ours is the lock, as systemd-logind lists it.
const ours = "hawser-agent shutdown delay"

// TestRealLogind: systemd-logind reads the drop-in, lists the lock, and has the machine go on
// only once the lock is released. After a shutdown that is cancelled the lock is there again.
func TestRealLogind(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.cfg.DropIn = filepath.Join(dir, "99-kubelet.conf")
	w.start() // which waits for it
	l := logindtest.StartReal(w.bus, dir)
	w.logged("a shutdown of the machine waits for pods", "InhibitDelayMaxSec")
	if got := l.Locks(); !slices.Equal(got, []string{ours}) {
		t.Errorf("locks %q", got)
	}
	for range 2 {
		l.PowerOff()
		w.wantCall("begin")
		select {
		case unit := <-l.Started:
			t.Fatalf("the pods have not ended, and %s is started", unit)
		default:
		}
		w.done <- struct{}{}
		w.wantCall("end")
		select {
		case unit := <-l.Started:
			if unit != "poweroff.target" {
				t.Errorf("%s is started", unit)
			}
			l.Cancel(unit)
		case <-time.After(patience):
			t.Fatal("the machine is kept from shutting down")
		}
		w.wantCall("cancel")
		w.logged("a shutdown of the machine waits for pods")
	}
}

// TestLogindOfThisMachine: where the machine runs systemd, its logind gives the lock, and has
// it no more once nobody wants it. A delay that it allows changes none of its files.
func TestLogindOfThisMachine(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "systemctl", "is-active", "systemd-logind").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: systemd-logind does not run on this machine: %v: %s", err, out)
	}
	bus, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	w := onBusOfMachine(t)
	w.cfg.Delay = time.Second // which the default of InhibitDelayMaxSec allows
	stop := w.start()
	w.logged("a shutdown of the machine waits for pods", "InhibitDelayMaxSec")
	has := func() bool { return slices.Contains(logindtest.Locks(t, bus), ours) }
	if !has() {
		t.Error("it does not have the lock")
	}
	if _, err := os.Stat(w.cfg.DropIn); err == nil {
		t.Errorf("%s is written", w.cfg.DropIn)
	}
	stop()
	for late := time.After(patience); has(); {
		select {
		case <-late:
			t.Fatal("it has the lock for ever")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
