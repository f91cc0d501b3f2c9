package shutdown

// Tests against a logind of the test's own, on a bus of its own.

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/node/shutdown/logindtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// A world has a bus, and a Watcher once it is started.
type world struct {
	t    *testing.T
	bus  *logindtest.Bus // nil if it is the machine's
	cfg  Config
	log  chan string
	did  chan string   // what the Watcher has called
	done chan struct{} // closed to have Begin return
}

func newWorld(t *testing.T) *world {
	w := onBusOfMachine(t)
	w.bus = logindtest.StartBus(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", w.bus.Address)
	return w
}

func onBusOfMachine(t *testing.T) *world {
	w := &world{t: t, log: make(chan string, 100), did: make(chan string, 10), done: make(chan struct{})}
	w.cfg = Config{
		Delay: 30 * time.Second, DropIn: filepath.Join(t.TempDir(), "logind.conf.d", "99-kubelet.conf"), Retry: 10 * time.Millisecond,
		Begin: func(ctx context.Context) {
			w.did <- "begin"
			select {
			case <-w.done:
				w.did <- "end"
			case <-ctx.Done():
				w.did <- "broken off"
			}
		},
		Cancel: func() { w.did <- "cancel" },
		Log:    slog.New(slog.NewTextHandler(writer(w.log), nil)),
	}
	return w
}

type writer chan string

func (w writer) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

// start runs a Watcher until stop or the end of the test.
func (w *world) start() (stop func()) {
	s, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	stop = func() { cancel(); <-ended }
	w.t.Cleanup(stop)
	return stop
}

// logged waits for a line, and fails at one with one of never before.
func (w *world) logged(text string, never ...string) {
	w.t.Helper()
	late := time.After(patience)
	for {
		select {
		case line := <-w.log:
			for _, n := range never {
				if strings.Contains(line, n) {
					w.t.Fatalf("logged %s", line)
				}
			}
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			w.t.Fatalf("%q is not logged", text)
		}
	}
}

func (w *world) wantCall(want string) {
	w.t.Helper()
	select {
	case got := <-w.did:
		if got != want {
			w.t.Fatalf("called %s, want %s", got, want)
		}
	case <-time.After(patience):
		w.t.Fatalf("%s is not called", want)
	}
}

// held waits for a lock to be taken and delivered.
func (w *world) held(l *logindtest.Logind) *logindtest.Lock {
	w.t.Helper()
	k := l.Locked()
	w.logged("a shutdown of the machine waits for pods")
	k.Delivered()
	return k
}

func (w *world) wantHeld(k *logindtest.Lock) {
	w.t.Helper()
	select {
	case <-k.Released():
		w.t.Fatal("the lock was let go of")
	default:
	}
}

func (w *world) wantReleased(k *logindtest.Lock) {
	w.t.Helper()
	select {
	case <-k.Released():
	case <-time.After(patience):
		w.t.Fatal("the lock is still held")
	}
}

func unmoved() time.Duration { return 5 * time.Second }

// TestLock: it is held until what is done about a shutdown is done.
func TestLock(t *testing.T) {
	w := newWorld(t)
	l := logindtest.Start(w.bus, time.Minute, unmoved)
	w.start()
	k := w.held(l)
	if k.What != "shutdown" || k.Who != "hawser-agent" || k.Mode != "delay" || k.Why == "" {
		t.Errorf("lock %q by %q, %q, because %q", k.What, k.Who, k.Mode, k.Why)
	}
	l.Announce(true)
	w.wantCall("begin")
	w.wantHeld(k)
	close(w.done)
	w.wantCall("end")
	w.wantReleased(k)
	if _, err := os.Stat(w.cfg.DropIn); err == nil || len(l.Kills()) != 0 {
		t.Errorf("logind allows enough, and was told otherwise: %v", l.Kills())
	}
}

// TestCancelledShutdown: the lock is taken again, in the middle of what is done and after.
func TestCancelledShutdown(t *testing.T) {
	w := newWorld(t)
	l := logindtest.Start(w.bus, time.Minute, unmoved)
	w.start()
	k := w.held(l)
	l.Announce(true)
	w.wantCall("begin")
	l.Announce(false)
	w.wantCall("broken off")
	w.wantCall("cancel")
	w.wantReleased(k)
	k = w.held(l)
	close(w.done)
	l.Announce(true)
	w.wantCall("begin")
	w.wantCall("end")
	w.wantReleased(k)
	l.Announce(false)
	w.wantCall("cancel")
	w.wantHeld(w.held(l))
}

// TestDropIn: a delay that is too short is raised.
func TestDropIn(t *testing.T) {
	w := newWorld(t)
	w.cfg.Delay = 29500 * time.Millisecond
	l := logindtest.Start(w.bus, 5*time.Second, func() time.Duration {
		text, err := os.ReadFile(w.cfg.DropIn)
		if err != nil || !strings.HasSuffix(string(text), "\n[Login]\nInhibitDelayMaxSec=30\n") {
			t.Errorf("drop-in %q, %v", text, err)
		}
		return 30 * time.Second
	})
	w.start()
	w.wantHeld(w.held(l))
	if got := strings.Join(l.Kills(), ","); got != "systemd-logind.service all 1" {
		t.Errorf("reloaded by %s", got)
	}
}

// TestRefusedRaise: the lock is good for what logind allows, and one line says so.
func TestRefusedRaise(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"logind does not": func(*world) {},
		"no file": func(w *world) {
			if err := os.WriteFile(filepath.Dir(w.cfg.DropIn), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			l := logindtest.Start(w.bus, 5*time.Second, unmoved)
			w.start()
			k := l.Locked()
			w.logged("InhibitDelayMaxSec is 5s, less than the 30s of the shutdown grace periods", "waits for pods")
			k.Delivered()
			w.wantHeld(k)
			l.Announce(true)
			w.wantCall("begin")
			close(w.done)
			w.wantCall("end")
			w.wantReleased(k)
		})
	}
}

// TestBusLost: the lock is taken anew once there is a bus again, and a shutdown that was
// announced meanwhile is not missed.
func TestBusLost(t *testing.T) {
	w := newWorld(t)
	l := logindtest.Start(w.bus, time.Minute, unmoved)
	w.start()
	first := w.held(l)
	w.bus.Stop()
	w.logged("the connection to the system D-Bus was lost")
	w.bus.Start()
	l = logindtest.Start(w.bus, time.Minute, unmoved)
	k := w.held(l)
	w.wantReleased(first)
	// logind alone is restarted.
	l.Stop()
	w.logged("systemd-logind has ended or was restarted")
	l = logindtest.Start(w.bus, time.Minute, unmoved)
	second := w.held(l)
	w.wantReleased(k)
	// And the bus, while the machine begins to shut down.
	w.bus.Stop()
	w.logged("the connection to the system D-Bus was lost")
	w.wantHeld(second)
	w.bus.Start()
	l = logindtest.Start(w.bus, time.Minute, unmoved)
	l.Announce(true)
	w.wantCall("begin")
	close(w.done)
	w.wantCall("end")
	w.wantReleased(second)
}

// TestStartedDuringShutdown: an agent that is started after the announcement goes by it,
// without a lock, which logind gives to nobody by then.
func TestStartedDuringShutdown(t *testing.T) {
	w := newWorld(t)
	l := logindtest.Start(w.bus, time.Minute, unmoved)
	l.Announce(true)
	w.start()
	w.wantCall("begin")
	close(w.done)
	w.wantCall("end")
	l.Announce(false)
	w.wantCall("cancel")
	w.wantHeld(w.held(l))
}

// TestRetries: who never had a bus is asked more and more seldom, who had one each second.
func TestRetries(t *testing.T) {
	w, err := New(Config{Delay: time.Minute, Begin: func(context.Context) {}, Cancel: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	for wait, want := range map[time.Duration]time.Duration{1: 2, 4: 8, 16: 30, 30: 30} {
		if got := w.next(wait * time.Second); got != want*time.Second {
			t.Errorf("without a bus, after %d s: %v, want %d s", wait, got, want)
		}
	}
	w.held = true
	if got := w.next(30 * time.Second); got != time.Second {
		t.Errorf("after the bus was lost: %v", got)
	}
}

// TestNoBus: one line says so, and a bus that comes later is used.
func TestNoBus(t *testing.T) {
	w := newWorld(t)
	w.bus.Stop()
	w.start()
	w.logged("the machine has no system D-Bus")
	w.bus.Start()
	l := logindtest.Start(w.bus, time.Minute, unmoved)
	k := l.Locked()
	w.logged("waits for pods", "has no system D-Bus")
	k.Delivered()
	w.wantHeld(k)
}

// TestStrangersAnnounceNothing: whoever may send a signal on the bus, a pod's process for
// one, is not logind.
func TestStrangersAnnounceNothing(t *testing.T) {
	w := newWorld(t)
	l := logindtest.Start(w.bus, time.Minute, unmoved)
	w.start()
	w.held(l)
	stranger, err := dbus.Connect(w.bus.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	var names []string
	if err = stranger.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if !strings.HasPrefix(n, ":") {
			continue
		}
		msg := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath: dbus.MakeVariant(loginPath), dbus.FieldInterface: dbus.MakeVariant(loginInterface),
			dbus.FieldMember: dbus.MakeVariant("PrepareForShutdown"), dbus.FieldDestination: dbus.MakeVariant(n),
			dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(true)),
		}, Body: []any{true}}
		if call := stranger.Send(msg, nil); call != nil && call.Err != nil {
			t.Fatal(call.Err)
		}
	}
	// Signals keep their order through the bus: the stranger's are there before these.
	if err = stranger.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err; err != nil {
		t.Fatal(err)
	}
	l.Announce(false)
	w.logged("waits for pods") // the lock is taken again
	select {
	case what := <-w.did:
		t.Errorf("a stranger has had it called %s", what)
	default:
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty configuration is good")
	}
}
