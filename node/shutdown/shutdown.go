// Package shutdown delays the shutdown of a machine until something is done.
//
// It follows systemd-logind on the system's D-Bus, as the kubelet does. While the machine
// runs it holds an inhibitor lock of what "shutdown" and mode "delay". When logind says
// that the machine is about to shut down, it calls Config.Begin, and lets go of the lock
// once that has returned. When the shutdown is cancelled it calls Config.Cancel and takes
// the lock again.
//
// A bus or a logind that goes away is waited for, and the lock is taken anew: a shutdown
// that logind has announced meanwhile is not missed. Words in logind's name that are not
// logind's are not listened to.
//
// It knows no pods: what is done about a shutdown is up to Begin.
package shutdown

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Config of a Watcher.
type Config struct {
	// Delay is how long Begin may take: logind is asked to allow as much. Required.
	Delay time.Duration
	// Begin is called when the machine is about to shut down, at most once at a time. Its
	// ctx ends when the shutdown is cancelled, or Run is to end: it then returns soon.
	// Required.
	Begin func(ctx context.Context)
	// Cancel is called when a shutdown is cancelled, after Begin has returned. Required.
	Cancel func()

	// DropIn is the file that raises logind's InhibitDelayMaxSec; empty means
	// DefaultDropIn.
	DropIn string
	// Retry is the wait before the second try to reach logind, doubled each time up to
	// thirty times as much, until the lock has once been held. Zero means one second.
	Retry time.Duration

	Log *slog.Logger // nil discards
}

// A Watcher is made by New.
type Watcher struct {
	cfg Config
	log *slog.Logger

	mu   sync.Mutex
	lock *os.File // nil while it is not held

	// Owned by Run.
	down   bool               // a shutdown is under way
	stop   context.CancelFunc // of the Begin of it
	ended  chan struct{}      // closed once that has returned
	failed string             // the failure last told of
	held   bool               // the lock has been held
}

// New checks cfg and makes a Watcher. It starts nothing.
func New(cfg Config) (*Watcher, error) {
	if cfg.Delay <= 0 || cfg.Begin == nil || cfg.Cancel == nil {
		return nil, errors.New("shutdown: Config.Delay, Begin and Cancel are required")
	}
	cfg.DropIn = cmp.Or(cfg.DropIn, DefaultDropIn)
	cfg.Retry = cmp.Or(cfg.Retry, time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{cfg: cfg, log: cfg.Log}, nil
}

// retryFactor bounds Config.Retry's doubling.
const retryFactor = 30

// Run follows logind until ctx is done. It lets go of the lock then, after Begin has
// returned.
func (w *Watcher) Run(ctx context.Context) {
	defer w.release()
	defer w.end()
	for wait := w.cfg.Retry; ; {
		err := w.session(ctx)
		if ctx.Err() != nil {
			return
		}
		w.tell(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = w.next(wait)
	}
}

// next is the wait for the next try. A bus that has been there is gone for a moment, as for an
// upgrade that may end in a reboot: it is tried again at a steady pace, as kubelets do.
func (w *Watcher) next(wait time.Duration) time.Duration {
	if w.held {
		return w.cfg.Retry
	}
	return min(2*wait, retryFactor*w.cfg.Retry)
}

// tell says what is wrong, each thing once until it is well again.
func (w *Watcher) tell(err error) {
	if err.Error() == w.failed {
		return
	}
	w.failed = err.Error()
	var none *noBusError
	switch {
	case errors.Is(err, errBusLost), errors.Is(err, errLogindLeft):
		w.log.Warn("a shutdown of the machine is not noticed for now, will take the inhibitor lock again", "err", err)
	case errors.As(err, &none):
		w.log.Warn("the machine has no system D-Bus: its shutdown does not wait for pods; install and start dbus and systemd-logind, or leave out the shutdown grace periods", "err", none.err)
	default:
		w.log.Warn("cannot follow systemd-logind, will keep trying: a shutdown of the machine does not wait for pods", "err", err)
	}
}

// session follows one logind until it or the bus goes away.
func (w *Watcher) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := connect(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	is, err := l.preparing(ctx)
	if err != nil {
		return err
	}
	for {
		if err = w.turn(ctx, l, is); err != nil {
			return err
		}
		if is, err = l.next(ctx); err != nil {
			return err
		}
	}
}

// turn takes note of what logind says.
func (w *Watcher) turn(ctx context.Context, l *logind, shuttingDown bool) error {
	if shuttingDown {
		w.begin(context.WithoutCancel(ctx))
		return nil
	}
	if w.down {
		w.log.Info("the machine's shutdown was cancelled")
		w.end()
		w.down = false
		w.cfg.Cancel()
	}
	return w.hold(ctx, l)
}

// begin has Begin run, unless it has been for this shutdown. A lost bus does not end it.
func (w *Watcher) begin(ctx context.Context) {
	if w.down {
		return
	}
	w.log.Info("the machine shuts down")
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	w.down, w.stop, w.ended = true, cancel, ended
	go func() {
		defer close(ended)
		w.cfg.Begin(ctx)
		w.release()
	}()
}

// end ends Begin, if it runs.
func (w *Watcher) end() {
	if w.stop != nil {
		w.stop()
		<-w.ended
		w.stop = nil
	}
}

// hold takes the lock. The one before, if any, may be that of a logind that knows of it no
// more: it goes once the new one is held.
func (w *Watcher) hold(ctx context.Context, l *logind) error {
	var short *tooShortError
	err := l.raise(ctx, w.cfg.Delay, w.cfg.DropIn)
	if err != nil && !errors.As(err, &short) {
		return err
	}
	lock, err := l.inhibit(ctx)
	if err != nil {
		return err
	}
	w.held = true
	w.mu.Lock()
	before := w.lock
	w.lock = lock
	w.mu.Unlock()
	if before != nil {
		_ = before.Close()
	}
	switch {
	case short != nil && w.failed != short.Error():
		w.log.Error(short.Error())
		w.failed = short.Error()
	case short == nil:
		w.failed = ""
		w.log.Info("a shutdown of the machine waits for pods", "within", w.cfg.Delay)
	}
	return nil
}

// release lets go of the lock.
func (w *Watcher) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lock != nil {
		_ = w.lock.Close()
		w.lock = nil
	}
}
