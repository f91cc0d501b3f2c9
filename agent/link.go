// Link: one session with one server, from greeting to goodbye.

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// linger is how long after the end of its last stream a session that is being
// drained lives on: what the stream carried last may still be on its way to, or
// wait for, whoever reads it at the server, and dies with the session.
const linger = 500 * time.Millisecond

// A link is a session that the server has welcomed.
type link struct {
	agent   *Agent
	server  string
	session tunnel.Session
	control *tunnel.Control
	welcome tunnel.Welcome
	since   time.Time
	log     *slog.Logger
	streams occupancy

	done chan struct{} // closed when run returns
	err  error         // why the session ended; set before done is closed
}

// connect makes one attempt. Its error is a *Refusal if another will not help.
func (a *Agent) connect(ctx context.Context, server string, sequence uint64) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	o := tunnel.Options{Dial: a.cfg.Dial, MaxStreams: a.cfg.MaxStreams, Log: a.log}
	if a.cfg.TLS != nil {
		var err error
		if o.TLS, err = a.cfg.TLS(ctx); err != nil {
			return nil, fmt.Errorf("prepare TLS: %w", err)
		}
	}
	s, err := a.cfg.Transport.Dial(ctx, server, o)
	if err != nil {
		return nil, diagnose(server, err)
	}
	hello := tunnel.Hello{Node: a.cfg.NodeName, Instance: a.instance, Sequence: sequence}
	if a.cfg.Version != "" {
		hello.Meta = tunnel.Meta{"version": a.cfg.Version}
	}
	control, welcome, err := tunnel.Greet(ctx, s, hello)
	if err != nil {
		err = diagnose(server, deeper(ctx, s, err))
		_ = s.Close() // the greeting's failure is the news
		return nil, err
	}
	return &link{
		agent: a, server: server, session: s, control: control, welcome: welcome,
		since:   time.Now(),
		log:     a.log.With("server", server, "session", welcome.Session),
		streams: occupancy{limit: o.Streams(), idle: make(chan struct{})},
		done:    make(chan struct{}),
	}, nil
}

// deeper is why greeting s failed. With TLS 1.3 a client learns only after its
// own handshake that the server rejects its certificate, so that the alert may
// end the session and only the session can say so.
func deeper(ctx context.Context, s tunnel.Session, err error) error {
	if reasonOf(err) != nil {
		return err
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-s.Context().Done():
	case <-t.C:
	case <-ctx.Done():
	}
	if cause := context.Cause(s.Context()); cause != nil && reasonOf(cause) != nil {
		return cause
	}
	return err
}

// over says whether nothing new should be opened on the session.
func (l *link) over() bool {
	select {
	case <-l.control.Draining():
		return true
	default:
		return l.session.Context().Err() != nil
	}
}

// run serves the session until it ends or, once ctx is done, until it has been
// drained.
func (l *link) run(ctx context.Context) {
	defer close(l.done)
	var (
		group      sync.WaitGroup
		life, stop = context.WithCancel(context.WithoutCancel(ctx)) // drain needs the session to live on
		ended      = make(chan error, 1)
	)
	group.Go(func() {
		err := l.control.Run(life, nil)
		_ = l.session.Close() // what Run returned is the news
		ended <- err
	})
	group.Go(func() {
		if err := tunnel.Serve(life, l.session, l.answer); err != nil {
			l.log.Warn("session is broken", "err", err)
			_ = l.control.HangUp(tunnel.Internal, err.Error()) // run reports why the session ended
		}
	})
	select {
	case l.err = <-ended:
	case <-ctx.Done():
		l.drain(ended)
	}
	stop()
	group.Wait()
	if l.err == nil {
		l.err = context.Cause(l.session.Context())
	}
	l.err = diagnose(l.server, l.err)
	l.agent.metrics.ends.WithLabelValues(reasonLabel(l.err)).Inc()
	l.log.Debug("session is over", "err", l.err)
}

// drain has the server open nothing new, lets open streams finish, and leaves.
func (l *link) drain(ended <-chan error) {
	const text = "agent is stopping"
	idle := l.streams.close()
	t := time.NewTimer(l.agent.cfg.DrainTimeout)
	defer t.Stop()
	if err := l.control.Drain(tunnel.Draining, text); err == nil {
		select {
		case <-idle:
			t.Reset(time.Until(l.streams.lastEnd().Add(linger)))
			select {
			case <-t.C:
			case l.err = <-ended:
				return
			}
		case <-t.C:
			l.log.Info("cutting streams that have not finished", "streams", l.streams.count(), "after", l.agent.cfg.DrainTimeout)
		case l.err = <-ended:
			return
		}
	}
	if err := l.control.HangUp(tunnel.Draining, text); err != nil {
		l.log.Debug("hang up", "err", err)
	}
}

// answer does what the server asks for with one stream.
func (l *link) answer(ctx context.Context, r *tunnel.Request) {
	start := time.Now()
	err := l.admit(ctx, r)
	if err != nil {
		l.log.Debug("stream ended", "target", r.Addr, "after", time.Since(start), "err", err)
	}
}

func (l *link) admit(ctx context.Context, r *tunnel.Request) error {
	where, err := l.agent.policy.decide(r.Network, r.Addr)
	if err == nil {
		err = l.streams.enter(r.Addr)
	}
	if err != nil {
		l.agent.metrics.dial(inbound, tunnel.CodeOf(err))
		var de *tunnel.DialError
		text := err.Error()
		if errors.As(err, &de) {
			text = de.Text // the opener knows the address
		}
		return errors.Join(err, r.Reject(tunnel.CodeOf(err), text))
	}
	if where.kubelet {
		return l.toKubelet(ctx, r)
	}
	_, err = tunnel.Answer(ctx, r, func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, dialErr := l.dialFirst(ctx, network, where.addrs)
		l.agent.metrics.dial(inbound, tunnel.CodeOf(dialErr))
		if dialErr != nil {
			l.streams.leave()
			return nil, dialErr
		}
		return l.agent.metrics.trackTarget(c, l.streams.leave), nil
	})
	return err
}

// toKubelet hands a stream over.
func (l *link) toKubelet(ctx context.Context, r *tunnel.Request) error {
	c := l.agent.metrics.track(inbound, &lent{request: r, addr: tunnel.Addr(r.Addr)}, l.streams.leave)
	ctx, cancel := r.Context(ctx)
	defer cancel()
	err := l.agent.cfg.Kubelet.Inject(ctx, c)
	l.agent.metrics.dial(inbound, tunnel.CodeOf(err))
	if err != nil {
		return errors.Join(fmt.Errorf("hand stream to kubelet: %w", err), c.Close())
	}
	return nil
}

// dialFirst dials addrs in order until one answers. The error is the last one's.
func (l *link) dialFirst(ctx context.Context, network string, addrs []string) (c net.Conn, err error) {
	for _, addr := range addrs {
		if c, err = l.agent.target(ctx, network, addr); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// An occupancy counts the streams that a server has open, and says when there
// are none left.
type occupancy struct {
	limit int
	idle  chan struct{} // closed once closing and empty

	mu      sync.Mutex // guards the following
	n       int
	closing bool
	last    time.Time // when a stream left
}

// enter counts a stream in, or says why not: Draining or Busy.
func (o *occupancy) enter(addr string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closing:
		return refuse(addr, tunnel.Draining, "the node's agent is stopping")
	case o.n >= o.limit:
		return refuse(addr, tunnel.Busy, "%d streams are open already", o.n)
	}
	o.n++
	return nil
}

func (o *occupancy) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n--
	o.last = time.Now()
	if o.closing && o.n == 0 {
		close(o.idle)
	}
}

// close lets nothing more in. The channel is closed once everything has left.
func (o *occupancy) close() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.closing = true
		if o.n == 0 {
			close(o.idle)
		}
	}
	return o.idle
}

// lastEnd is when a stream last left; zero if none has.
func (o *occupancy) lastEnd() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

func (o *occupancy) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}
