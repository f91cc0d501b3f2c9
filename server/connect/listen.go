// Listening: TLS that reports a cut, and unix sockets that are private from their
// creation.

package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
)

// socketMode lets only the owner connect.
const socketMode = 0o600

// errCut is a TLS connection that ended without close_notify.
var errCut = errors.New("connection was cut off: no close_notify")

// ListenTLS makes TLS connections by conf of the connections that l accepts. It owns l.
// If a client closes the connection without close_notify, as when it is killed, reading
// fails with an error that is not io.EOF (RFC 8446, 6.1). Package tls alone would return
// io.EOF.
func ListenTLS(l net.Listener, conf *tls.Config) net.Listener {
	return tls.NewListener(strictListener{l}, conf)
}

type strictListener struct{ net.Listener }

func (l strictListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return strict{c}, nil
}

// strict is a connection below TLS. An end before the end of TLS is an error.
type strict struct{ net.Conn }

func (c strict) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = errCut
	}
	return n, err
}

// Abort resets the connection.
func (c strict) Abort() error { return tunnel.Abort(c.Conn) }

// NetConn is the connection itself.
func (c strict) NetConn() net.Conn { return c.Conn }

// ListenUnix listens on a socket that only its owner may connect to. It replaces a socket
// that no process listens on; any other file at path is an error.
func ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := CheckUnix(path); err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return nil, fmt.Errorf("%s is in use by another process: stop that one first or choose another path", path)
	case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist): // a process that is busy, or of another user
		return nil, fmt.Errorf("%s may be in use by another process: stop that one first or choose another path: %w", path, err)
	}
	if err = os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := (&net.ListenConfig{Control: private}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	// The umask may have taken away more than private has.
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// private sets the mode of a socket before it is bound. The file gets that mode when it is
// made, so that no other user can connect in between.
func private(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), socketMode) })
}

// CheckUnix returns why no socket can be made at path, judged by the directory and the
// file there.
func CheckUnix(path string) error {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return err
	}
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is no socket: choose another path", path)
	}
	return nil
}
