package kubeletapi

// The server: connections, who may ask, and which function answers.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/component-base/configz"

	"github.com/hawser-project/hawser/node/runtime"
)

// A Server is the kubelet API of one node.
type Server struct {
	cfg     Config
	log     *slog.Logger
	handler http.Handler
	started time.Time
	// forwarded has a place for each connection that is forwarded to a pod.
	forwarded chan struct{}
	sparse    rate.Sometimes // of the lines about connections for which there is none

	mu      sync.Mutex // guards the following
	changed chan struct{}
	conns   map[*trackedConn]struct{}
	active  sync.WaitGroup // requests being answered
}

func newServer(c Config) *Server {
	s := &Server{
		cfg:     c,
		log:     c.Log,
		started: time.Now(),
		changed: make(chan struct{}),
		conns:   make(map[*trackedConn]struct{}),

		forwarded: make(chan struct{}, maxForwardedByAll),
		sparse:    rate.Sometimes{Interval: time.Minute},
	}
	s.handler = s.guard(s.routes())
	if c.Wrap != nil {
		s.handler = c.Wrap(s.handler)
	}
	return s
}

// routes lists every path there is.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /healthz/{check...}", s.healthz)
	mux.HandleFunc("GET /pods", s.listPods)
	mux.HandleFunc("GET /runningpods/", s.listRunningPods)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.HandleFunc("GET /stats/summary/", s.summary)
	mux.Handle("GET /metrics", s.metrics())
	mux.HandleFunc("GET /metrics/resource", s.resourceMetrics)
	mux.HandleFunc("GET /debug/pprof/{profile}", s.profile)
	configz.InstallHandler(mux) // what the program has registered
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for path, f := range map[string]http.HandlerFunc{
			"/exec/{namespace}/{pod}/{container}":         s.exec,
			"/exec/{namespace}/{pod}/{uid}/{container}":   s.exec,
			"/attach/{namespace}/{pod}/{container}":       s.attach,
			"/attach/{namespace}/{pod}/{uid}/{container}": s.attach,
			"/portForward/{namespace}/{pod}":              s.portForward,
			"/portForward/{namespace}/{pod}/{uid}":        s.portForward,
		} {
			mux.HandleFunc(method+" "+path, f)
		}
	}
	mux.HandleFunc("POST /run/{namespace}/{pod}/{container}", s.run)
	mux.HandleFunc("POST /run/{namespace}/{pod}/{uid}/{container}", s.run)
	return mux
}

// ServeHTTP answers one request. A client certificate in its TLS state must have been
// verified if there are chains for it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// guard lets only those in who may be.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := s.cfg.Authorize(r)
		status := http.StatusForbidden
		var refused *RefusedError
		if errors.As(err, &refused) {
			status = refused.Status
		}
		s.cfg.Seen(r.Context(), err == nil || status == http.StatusForbidden)
		if err != nil {
			http.Error(w, refusal(status, err), status)
			return
		}
		s.active.Add(1)
		defer s.active.Done()
		next.ServeHTTP(w, r)
	})
}

// refusal is what a client reads.
func refusal(status int, err error) string {
	text := http.StatusText(status)
	if said := err.Error(); !strings.HasPrefix(said, text) {
		return text + ": " + said
	}
	return err.Error()
}

// Serve answers requests that come over ln until ctx is done, and closes ln. It
// returns when every request has been answered or cut off; nil means that ctx
// asked for it.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg := s.cfg.TLS.Clone()
	// Who shows no certificate is told so in HTTP.
	cfg.ClientAuth = tls.VerifyClientCertIfGiven
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	cfg.NextProtos = []string{"h2", "http/1.1"}
	if s.cfg.ClientCAs != nil {
		base := cfg.Clone()
		cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := base.Clone()
			now.ClientCAs = s.cfg.ClientCAs()
			return now, nil
		}
	}
	srv := &http.Server{
		Handler:           s,
		TLSConfig:         cfg,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       connContext,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.watch(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		_ = srv.Close()
		s.closeConns()
	})
	err := srv.ServeTLS(&trackedListener{ln, s}, "", "")
	asked := ctx.Err() != nil
	cancel()
	wg.Wait()
	s.active.Wait()
	if asked || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("kubelet api: %w", err)
}

// watch wakes whoever waits for containers to change.
func (s *Server) watch(ctx context.Context) {
	ch := make(chan runtime.PodID)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		// Without it the waiters look by themselves now and then.
		if err := s.cfg.Runtime.Watch(ctx, ch); err != nil && ctx.Err() == nil {
			s.log.Warn("cannot watch containers", "err", err)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-ch:
			s.mu.Lock()
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
		}
	}
}

// change returns a channel that is closed when a container changes.
func (s *Server) change() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Server) closeConns() {
	s.mu.Lock()
	conns := make([]*trackedConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok")
}

// A trackedListener's connections can be closed after they have been taken away
// from the HTTP server, and tell when the client is gone.
type trackedListener struct {
	net.Listener
	s *Server
}

func (l *trackedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &trackedConn{Conn: nc, s: l.s}
	l.s.mu.Lock()
	l.s.conns[c] = struct{}{}
	l.s.mu.Unlock()
	return c, nil
}

type trackedConn struct {
	net.Conn
	s *Server

	mu     sync.Mutex // guards the following
	over   bool
	cancel context.CancelCauseFunc // nil before there is a context
}

var errClientGone = errors.New("the client is gone")

// connContext ends the context of what comes over a connection when the connection
// does. The HTTP server does so by itself, but not for upgraded connections.
func connContext(ctx context.Context, c net.Conn) context.Context {
	tc, ok := c.(*tls.Conn)
	if !ok {
		return ctx
	}
	t, ok := tc.NetConn().(*trackedConn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancel = cancel
	if t.over {
		cancel(errClientGone)
	}
	return ctx
}

func (c *trackedConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel(errClientGone)
	}
}

func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	var ne net.Error
	if err != nil && (!errors.As(err, &ne) || !ne.Timeout()) {
		c.end()
	}
	return n, err
}

func (c *trackedConn) Close() error {
	c.end()
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}
