// Package konnectivity is the hub's front end for clients that speak konnectivity's gRPC
// (sigs.k8s.io/apiserver-network-proxy), as the GRPC mode of kube-apiserver's
// EgressSelectorConfiguration does (KEP-1281).
//
// The mental model: a call is one gRPC stream, ProxyService.Proxy, and carries any number
// of connections, each to one target. konnectivity-client makes a call, and a gRPC
// connection, for each of its own. Other clients may make all their calls on one.
//
// The protocol has no flow control for a connection. While a client does not read, the
// targets of that call are not read. Data for a target is queued here, up to 1 MiB. If
// more arrives, a call with one connection is not read, so that HTTP/2 blocks its client;
// in a call with several, that connection ends with an error and the others go on.
//
// The protocol has no half-close either. When a target ends its direction, the connection
// ends once the data of both directions has been passed on. The same holds for a client
// that sends CLOSE_REQ.
//
// Data of a target that sends first is held back for 100 ms, or until the client has sent
// data: konnectivity-client loses data that arrives right behind the answer to its dial.
//
// The package authenticates and authorizes only by Config.Authorize; package connect has
// the listeners: ListenTLS, whose configuration offers "h2", and ListenUnix.
package konnectivity

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// DefaultDialTimeout is used if Config.DialTimeout is zero. It is less than the 30 s
	// after which konnectivity-client gives up, so that the client gets the error.
	DefaultDialTimeout = 25 * time.Second
	// DefaultMaxCalls bounds the calls of a Server at one time.
	DefaultMaxCalls = 16 << 10
	// DefaultMaxConns bounds the connections of all its calls.
	DefaultMaxConns = 32 << 10
	// maxCallConns bounds the connections of one call.
	maxCallConns = 1024
	// maxTransportCalls bounds the calls of one gRPC connection. A call above it waits and is
	// not told why, while one above MaxCalls is refused; so this is more than that. A client
	// may make all its calls on one gRPC connection.
	maxTransportCalls = 2 * DefaultMaxCalls
	// maxPacket bounds a packet from a client in bytes: gRPC's default, which clients may
	// use. A packet to a client has at most 64 KiB.
	maxPacket = 4 << 20
	// maxHeader bounds the header list of a call in bytes.
	maxHeader = 8 << 10
	// window is the HTTP/2 window of a call in bytes.
	window = 1 << 20
	// handshakeTimeout bounds the TLS handshake.
	handshakeTimeout = 10 * time.Second
	// idleTimeout is how long a gRPC connection may be kept without a call.
	idleTimeout = time.Minute
	// minPing is the least interval between a client's pings; gRPC's clients use 10 s or more.
	minPing = 5 * time.Second
	// drainTimeout is how long Serve waits for calls to end by themselves, and how long the
	// rest of an ending connection may take to be written to its target.
	drainTimeout = 5 * time.Second
	// answerTime is how long data of a target that sends first is held back.
	answerTime = 100 * time.Millisecond
	// maxTarget bounds a target, and maxText an error in answers, in bytes.
	maxTarget, maxText = 300, 1 << 10
)

// Config configures a Server. Dial is required.
type Config struct {
	// Dial reaches targets: the hub's DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Authorize may refuse a client by an error, which is the answer to each of its dials.
	// The state is nil without TLS. A nil Authorize allows every client that could connect,
	// which suits a unix socket.
	Authorize func(*tls.ConnectionState) error
	// Caller names a client, for auth.CallerOf of the dial's context. The state is nil
	// without TLS. A nil Caller means no name.
	Caller func(*tls.ConnectionState) string
	// Trace puts the trace of a call's metadata into the context of its dials. Nil means no
	// traces.
	Trace func(context.Context, http.Header) context.Context
	// DialTimeout bounds a dial; zero means DefaultDialTimeout.
	DialTimeout time.Duration
	// DrainTimeout is how long calls may go on once Serve's context is done; zero means 5 s.
	DrainTimeout time.Duration
	// MaxCalls and MaxConns bound calls and connections; zero means DefaultMaxCalls and
	// DefaultMaxConns.
	MaxCalls, MaxConns int

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Server is a front end. Serve may be called for several listeners.
type Server struct {
	cfg         Config
	metrics     *metrics
	handshaking *strangers.Pending   // connections in their TLS handshake
	pending     *strangers.Pending   // connections of clients that are not authorized
	sparse      strangers.LogLimiter // limits log lines about connections that never had a call
	denied      strangers.LogLimiter // limits log lines about refused clients
	hold        time.Duration        // answerTime
	calls       atomic.Int64
	conns       atomic.Int64
}

// New checks c. It starts nothing.
func New(c Config) (*Server, error) {
	if c.Dial == nil {
		return nil, errors.New("konnectivity: Config.Dial is required")
	}
	c.DialTimeout = cmp.Or(max(c.DialTimeout, 0), DefaultDialTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, drainTimeout)
	c.MaxCalls = cmp.Or(max(c.MaxCalls, 0), DefaultMaxCalls)
	c.MaxConns = cmp.Or(max(c.MaxConns, 0), DefaultMaxConns)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Server{
		cfg: c, metrics: newMetrics(c.Metrics), hold: answerTime,
		handshaking: strangers.NewPending(descriptors.AtMost(maxHandshaking)), pending: strangers.NewPending(maxPending),
	}, nil
}

// Serve serves l, which it owns, until ctx is done. Then it takes no new connections and
// dials, cuts the calls after DrainTimeout, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	f := &front{Server: s}
	srv := grpc.NewServer(
		grpc.Creds(handshake{}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout}),
		grpc.MaxConcurrentStreams(maxTransportCalls),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxRecvMsgSize(maxPacket),
		grpc.ForceServerCodecV2(codec{}),
		experimental.BufferPool(buffers),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
		grpc.WaitForHandlers(true),
	)
	client.RegisterProxyServiceServer(srv, f)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := srv.Serve(&arrivals{Listener: descriptors.Sparing(l, s.cfg.Log), server: s}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve konnectivity: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		f.draining.Store(true)
		cut := make(chan struct{})
		timer := time.AfterFunc(s.cfg.DrainTimeout, func() {
			defer close(cut)
			srv.Stop()
		})
		srv.GracefulStop()
		if !timer.Stop() {
			<-cut
		}
		return nil
	})
	return group.Wait()
}

// A front is a Server on one listener.
type front struct {
	*Server
	draining atomic.Bool
}

// Proxy implements client.ProxyServiceServer: it is one call. An authorized call takes its
// connection off the pending list.
func (f *front) Proxy(stream client.ProxyService_ProxyServer) error {
	a := arrivalOf(stream.Context())
	a.called.Store(true)
	c := newCall(stream.Context(), f, a, stream.SendMsg)
	if c.denied != nil {
		if a.denied.Swap(true) { // one call is answered in konnectivity's words; more would count nowhere
			return status.Error(codes.PermissionDenied, text(c.denied))
		}
		return c.deny(stream.RecvMsg)
	}
	if f.calls.Add(1) > int64(f.cfg.MaxCalls) {
		f.calls.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "the server has %d calls already", f.cfg.MaxCalls)
	}
	defer f.calls.Add(-1)
	a.leave()
	return c.run(stream.RecvMsg)
}
