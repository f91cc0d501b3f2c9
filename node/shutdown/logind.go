// This file speaks to systemd-logind on the system's D-Bus.

package shutdown

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names on the bus. See org.freedesktop.login1(5) and org.freedesktop.systemd1(5).
const (
	busName        = "org.freedesktop.DBus"
	loginName      = "org.freedesktop.login1"
	loginPath      = dbus.ObjectPath("/org/freedesktop/login1")
	loginInterface = "org.freedesktop.login1.Manager"
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	killUnit       = "org.freedesktop.systemd1.Manager.KillUnit"
	logindUnit     = "systemd-logind.service"
	prepareSignal  = loginInterface + ".PrepareForShutdown"
	ownerSignal    = busName + ".NameOwnerChanged"
)

const (
	// callTime bounds one call, and connecting.
	callTime = 10 * time.Second
	// signalBacklog is how many signals may wait. logind sends two a shutdown.
	signalBacklog = 16
)

// A logind is a connection to the bus on which logind is.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
	owner   string // logind's own name on the bus: whoever else sends its signals is not it
}

// connect connects to the bus and follows logind's signals. The connection ends with ctx.
func connect(ctx context.Context) (*logind, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(callTime, cancel)
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		cancel()
		return nil, &noBusError{err}
	}
	if !late.Stop() {
		cancel()
		return nil, &noBusError{context.DeadlineExceeded}
	}
	context.AfterFunc(conn.Context(), cancel)
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, signalBacklog)}
	if err = l.follow(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// follow subscribes to what logind says, which has the bus start it if need be.
func (l *logind) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	l.conn.Signal(l.signals)
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(loginName), dbus.WithMatchObjectPath(loginPath), dbus.WithMatchInterface(loginInterface), dbus.WithMatchMember("PrepareForShutdown")},
		{dbus.WithMatchSender(busName), dbus.WithMatchInterface(busName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, loginName)},
	} {
		if err := l.conn.AddMatchSignalContext(ctx, match...); err != nil {
			return fmt.Errorf("follow logind: %w", err)
		}
	}
	if _, err := l.delay(ctx); err != nil {
		return err
	}
	if err := l.conn.BusObject().CallWithContext(ctx, busName+".GetNameOwner", 0, loginName).Store(&l.owner); err != nil {
		return fmt.Errorf("find logind: %w", err)
	}
	return nil
}

func (l *logind) close() { _ = l.conn.Close() }

func (l *logind) call(ctx context.Context, name string, path dbus.ObjectPath, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return l.conn.Object(name, path).CallWithContext(ctx, method, 0, args...)
}

func (l *logind) property(ctx context.Context, name string, to any) error {
	if err := l.call(ctx, loginName, loginPath, "org.freedesktop.DBus.Properties.Get", loginInterface, name).Store(to); err != nil {
		return fmt.Errorf("read logind's %s: %w", name, err)
	}
	return nil
}

// delay is how long logind lets a shutdown be delayed at most.
func (l *logind) delay(ctx context.Context) (time.Duration, error) {
	var us uint64
	if err := l.property(ctx, "InhibitDelayMaxUSec", &us); err != nil {
		return 0, err
	}
	if us > math.MaxInt64/uint64(time.Microsecond) {
		return math.MaxInt64, nil // infinity
	}
	return time.Duration(us) * time.Microsecond, nil //nolint:gosec // checked above
}

// preparing tells whether the machine is about to shut down.
func (l *logind) preparing(ctx context.Context) (bool, error) {
	var is bool
	err := l.property(ctx, "PreparingForShutdown", &is)
	return is, err
}

// inhibit delays any shutdown until the file is closed.
func (l *logind) inhibit(ctx context.Context) (*os.File, error) {
	var fd dbus.UnixFD
	err := l.call(ctx, loginName, loginPath, loginInterface+".Inhibit",
		"shutdown", "hawser-agent", "the node's pods need time to end", "delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("take logind's inhibitor lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

// reload has logind read its configuration again.
func (l *logind) reload(ctx context.Context) error {
	const hangup = int32(1) // SIGHUP
	if err := l.call(ctx, systemdName, systemdPath, killUnit, logindUnit, "all", hangup).Store(); err != nil {
		return fmt.Errorf("reload logind: %w", err)
	}
	return nil
}

// A noBusError is why there is no connection to the bus.
type noBusError struct{ err error }

func (e *noBusError) Error() string { return "no system D-Bus: " + e.err.Error() }
func (e *noBusError) Unwrap() error { return e.err }

// What ends a session with logind that had begun well.
var (
	errBusLost    = errors.New("the connection to the system D-Bus was lost")
	errLogindLeft = errors.New("systemd-logind has ended or was restarted")
)

// next waits for logind's next word on a shutdown.
func (l *logind) next(ctx context.Context) (shuttingDown bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case s, ok := <-l.signals:
			switch {
			case !ok:
				return false, errBusLost
			case s.Name == ownerSignal && s.Sender == busName:
				if len(s.Body) == 3 && s.Body[0] == loginName && s.Body[2] != l.owner {
					return false, errLogindLeft
				}
			case s.Name == prepareSignal && s.Sender == l.owner && s.Path == loginPath && len(s.Body) == 1:
				if is, fine := s.Body[0].(bool); fine {
					return is, nil
				}
			}
		}
	}
}
