// One link: from dialing a server to the end of the session.

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// link connects to server and serves the session until it ends. It returns how
// long the session lived, zero if there never was one, and why it ended. If ctx
// is done it drains.
func (a *Agent) link(ctx context.Context, server string) (time.Duration, error) {
	s, control, welcome, err := a.connect(ctx, server)
	if err != nil {
		a.become(nil, State{Server: server, Err: err})
		return 0, err
	}
	start := time.Now()
	a.log.Info("connected", "server", server, "session", welcome.Session, "version", welcome.Meta["version"])
	a.metrics.connected.Set(1)
	a.become(s, State{Connected: true, Server: server, Session: welcome.Session})
	err = a.serve(ctx, s, control)
	a.metrics.connected.Set(0)
	a.become(nil, State{Server: server, Err: err})
	return time.Since(start), err
}

// connect dials and greets.
func (a *Agent) connect(ctx context.Context, server string) (tunnel.Session, *tunnel.Control, tunnel.Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, a.config.DialTimeout)
	defer cancel()
	fail := func(err error) (tunnel.Session, *tunnel.Control, tunnel.Welcome, error) {
		return nil, nil, tunnel.Welcome{}, err
	}
	conf, err := a.config.TLS(ctx)
	if err != nil {
		return fail(fmt.Errorf("client certificate: %w", err))
	}
	s, err := a.config.Transport.Dial(ctx, server, tunnel.Options{TLS: conf})
	if err != nil {
		return fail(err)
	}
	a.sequence++
	control, welcome, err := tunnel.Greet(ctx, s, tunnel.Hello{
		Node: a.config.Node, Instance: a.instance, Sequence: a.sequence,
		Meta: tunnel.Meta{"version": a.config.Version},
	})
	if err != nil {
		return fail(errors.Join(err, s.Close()))
	}
	return s, control, welcome, nil
}

// A shift is one session's work.
type shift struct {
	agent   *Agent
	session tunnel.Session

	mu       sync.Mutex // guards the following
	draining bool
	busy     int           // requests under way
	idle     chan struct{} // closed once draining and not busy
}

// serve runs the control stream and answers requests until the session is over,
// and says why it is. If ctx is done it drains first and returns nil.
func (a *Agent) serve(ctx context.Context, s tunnel.Session, control *tunnel.Control) error {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	w := &shift{agent: a, session: s, idle: make(chan struct{})}
	var wg sync.WaitGroup
	ended := make(chan error, 1)
	wg.Go(func() {
		ended <- control.Run(run, func(d time.Duration) { a.metrics.rtt.Set(d.Seconds()) })
	})
	wg.Go(func() {
		if err := tunnel.Serve(run, s, w.request); err != nil {
			a.log.Debug("session stopped accepting", "err", err)
		}
	})
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		w.leave(control, ended)
	}
	stop()
	if cerr := s.Close(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	wg.Wait()
	return err
}

// leave announces the end, waits for what is under way, and hangs up.
func (w *shift) leave(control *tunnel.Control, ended <-chan error) {
	w.mu.Lock()
	w.draining = true
	if w.busy == 0 {
		close(w.idle)
	}
	w.mu.Unlock()
	if err := control.Drain(tunnel.Draining, "agent is stopping"); err != nil {
		return // the server is gone
	}
	t := time.NewTimer(w.agent.config.DrainTimeout)
	defer t.Stop()
	select {
	case <-w.idle:
	case <-t.C:
	case <-ended:
		return
	}
	if err := control.HangUp(tunnel.Draining, "agent is stopping"); err != nil {
		w.agent.log.Debug("session did not close cleanly", "err", err)
	}
}

// begin counts a request, unless the session is draining.
func (w *shift) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return false
	}
	w.busy++
	return true
}

func (w *shift) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy--; w.busy == 0 && w.draining {
		close(w.idle)
	}
}

// request answers one stream that the server opened.
func (w *shift) request(ctx context.Context, r *tunnel.Request) {
	a := w.agent
	if !w.begin() {
		a.reject(r, tunnel.Draining, "agent is stopping")
		return
	}
	t, err := a.policy().route(r.Network, r.Addr)
	if err != nil {
		w.end()
		a.metrics.requests.WithLabelValues(tunnel.CodeOf(err).String()).Inc()
		a.log.Debug("target denied", "target", r.Addr, "err", err)
		a.reject(r, tunnel.CodeOf(err), err.Error())
		return
	}
	if t.kubelet && a.config.Kubelet != nil {
		w.handOver(ctx, r)
		return
	}
	defer w.end()
	if t.kubelet && a.config.KubeletAddr == "" {
		a.reject(r, tunnel.Refused, "this node has no kubelet API")
		return
	}
	_, err = tunnel.Answer(ctx, r, func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := a.dial(ctx, t, network)
		a.metrics.dialed(err)
		return c, err
	})
	if err != nil {
		a.log.Debug("stream ended", "target", r.Addr, "err", err)
	}
}

// handOver gives the stream to the kubelet.
func (w *shift) handOver(ctx context.Context, r *tunnel.Request) {
	a := w.agent
	ctx, cancel := r.Context(ctx)
	defer cancel()
	s, err := r.Accept(nil)
	a.metrics.dialed(err)
	if err != nil {
		w.end()
		return // the opener is gone
	}
	c := &lent{Stream: s, returned: w.end}
	if err := a.config.Kubelet(ctx, c); err != nil {
		a.log.Warn("kubelet API did not take a connection", "err", err)
		_ = c.Abort() // it is of no more use to anybody
	}
}

func (a *Agent) reject(r *tunnel.Request, code tunnel.Code, text string) {
	if err := r.Reject(code, text); err != nil {
		a.log.Debug("request could not be answered", "target", r.Addr, "err", err)
	}
}

// A lent stream says when it is no longer used.
type lent struct {
	tunnel.Stream
	once     sync.Once
	returned func()
}

func (c *lent) Close() error {
	defer c.once.Do(c.returned)
	return c.Stream.Close()
}

// Abort gives the stream up.
func (c *lent) Abort() error {
	defer c.once.Do(c.returned)
	return tunnel.Abort(c.Stream)
}
