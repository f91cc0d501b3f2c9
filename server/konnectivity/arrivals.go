// Arrivals: gRPC connections before their first authorized call.

package konnectivity

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/server/internal/fronts"
)

const (
	// maxHandshaking bounds the connections of a Server that are in their TLS handshake.
	// kube-apiserver, which is one source, may connect to thousands of nodes at once.
	maxHandshaking = 4096
	// maxPending bounds the connections of a Server whose clients are not authorized.
	maxPending = 512
)

// arrivals are the connections that a listener accepts.
type arrivals struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l *arrivals) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	a := &arrival{Conn: c, server: l.server, leave: func() {}}
	a.scarce.Store(descriptors.Scarce(c))
	if _, ok := c.(*tls.Conn); ok {
		a.leave = sync.OnceFunc(l.server.handshaking.Enter(c))
	}
	return a, nil
}

// An arrival is a gRPC connection.
type arrival struct {
	net.Conn
	server *Server
	leave  func()      // takes it off the list of connections in their handshake, or without an authorized call
	scarce atomic.Bool // it has one of the last file descriptors, and they were scarce since
	called atomic.Bool
	denied atomic.Bool // it has had a call that its client may not make
	closed atomic.Bool
}

// Close counts and logs a connection that never had a call.
func (a *arrival) Close() error {
	a.leave()
	if !a.closed.Swap(true) && !a.called.Load() {
		a.server.metrics.Closed.WithLabelValues(fronts.NoRequest).Inc()
		if more, ok := a.server.sparse.Allow(a.RemoteAddr()); ok {
			a.server.cfg.Log.Info("connection closed without a usable request", "client", a.RemoteAddr().String(), "others", more)
		}
	}
	return a.Conn.Close()
}

// handshakeDone is called once after the handshake. A connection whose client is authorized may stay
// without a call: for idleTimeout. Any other counts as pending.
func (a *arrival) handshakeDone() {
	a.leave()
	if f := a.server.cfg.Authorize; f != nil && f(a.state()) != nil {
		a.leave = sync.OnceFunc(a.server.pending.Enter(a.Conn))
	}
}

// isScarce reports whether the connection came with one of the last file descriptors, and
// they are scarce still: it may be kept for long after.
func (a *arrival) isScarce() bool {
	if a.scarce.Load() && !descriptors.StillScarce() {
		a.scarce.Store(false)
	}
	return a.scarce.Load()
}

// state is the TLS state; nil without TLS.
func (a *arrival) state() *tls.ConnectionState {
	c, ok := a.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	s := c.ConnectionState()
	return &s
}

// arrivalOf is the connection of a call.
func arrivalOf(ctx context.Context) *arrival {
	p, _ := peer.FromContext(ctx) // the handshake has set it
	return p.AuthInfo.(authInfo).arrival
}

// An authInfo carries the connection to its calls.
type authInfo struct {
	credentials.CommonAuthInfo
	arrival *arrival
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "arrival" }

// handshake is the server's side of TLS on connections that have it.
type handshake struct{}

// ServerHandshake implements credentials.TransportCredentials. The caller has set a
// deadline.
func (handshake) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a, ok := c.(*arrival)
	if !ok {
		return nil, nil, errors.New("konnectivity: connection of another listener")
	}
	level := credentials.NoSecurity
	if t, ok := a.Conn.(*tls.Conn); ok {
		if err := t.HandshakeContext(context.Background()); err != nil { // bounded by the deadline
			return nil, nil, errors.Join(err, a.Close())
		}
		level = credentials.PrivacyAndIntegrity
	}
	a.handshakeDone()
	return a, authInfo{credentials.CommonAuthInfo{SecurityLevel: level}, a}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (handshake) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("konnectivity: this is a server")
}

// Info implements credentials.TransportCredentials.
func (handshake) Info() credentials.ProtocolInfo { return credentials.ProtocolInfo{} }

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements credentials.TransportCredentials.
func (handshake) OverrideServerName(string) error { return nil }
