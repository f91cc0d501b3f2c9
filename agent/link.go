// Link: one session with one server, from welcome to goodbye.

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// finishTimeout is how long a session that both ends have finished may take to deliver
// data in flight.
const finishTimeout = 30 * time.Second

// linger is how long an ending session waits for the node's own streams. Some may be idle
// keep-alive streams, which do not end.
const linger = 500 * time.Millisecond

// A link is an established session.
type link struct {
	agent    *Agent
	server   string
	session  tunnel.Session
	control  *tunnel.Control
	welcome  tunnel.Welcome
	sequence uint64 // of its hello
	since    time.Time
	log      *slog.Logger
	streams  occupancy // that a server has open
	opened   occupancy // that the node has open

	// abandoned is done once another link has replaced this one because it did not answer.
	// Waiters should use that one.
	abandoned context.Context
	abandon   context.CancelFunc

	left    atomic.Bool // its agent uses another one
	refuses atomic.Bool // its server is about to leave and has not taken a stream

	// seen is the state of the connection at the last check, and path its route; they are
	// owned by the keeper.
	seen tunnel.LinkState
	path string

	done chan struct{} // closed when run returns
	err  error         // why the session ended; set before done is closed
}

// transport is the name of the session's transport.
func (l *link) transport() string { return l.agent.cfg.Transport.Name }

// over reports whether no new stream should be opened on the session. If its server is about to
// leave and is the only one, streams are opened until the server refuses one.
func (l *link) over() bool {
	if l.drains() && (!l.alone() || l.refuses.Load()) {
		return true
	}
	return l.opened.closed() || l.session.Context().Err() != nil
}

// drains reports whether the server is about to leave.
func (l *link) drains() bool {
	select {
	case <-l.control.Draining():
		return true
	default:
		return false
	}
}

// alone reports whether the agent has no other server.
func (l *link) alone() bool { return len(l.agent.cfg.Servers) == 1 }

// parked is since when the session has had no connection; zero if it has one.
func (l *link) parked() time.Time { return l.session.Link().Parked }

// endIdleElsewhere ends a session that has no streams if attempts to resume it reach other servers:
// each of them costs one a handshake.
func (l *link) endIdleElsewhere() {
	if l.session.Link().Elsewhere && l.streams.count()+l.opened.count() == 0 {
		_ = l.session.Close() // nothing is lost
	}
}

// dial requests a new stream from the server. It fails when the link is abandoned.
func (l *link) dial(ctx context.Context, d tunnel.Dial) (net.Conn, error) {
	if err := l.opened.enter(d.Addr); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.abandoned, func() { cancel(tunnel.Lost) })()
	st, err := d.Connect(ctx, l.session)
	if err != nil {
		l.opened.leave()
		if tunnel.CodeOf(err) == tunnel.Draining { // the announcement is in another stream, and may be read later
			select {
			case <-l.control.Draining():
			case <-l.session.Context().Done():
			case <-ctx.Done():
			}
		}
		if ctx.Err() == nil && l.drains() {
			l.refuses.Store(true)
		}
		return nil, err
	}
	return l.agent.metrics.track(outbound, st, l.opened.leave), nil
}

// run serves the session until it ends or, once ctx is done, until it has been
// drained.
func (l *link) run(ctx context.Context) {
	defer close(l.done)
	defer l.agent.shared.exit(l)
	var (
		group      sync.WaitGroup
		life, stop = context.WithCancel(context.WithoutCancel(ctx)) // drain needs the session
		ended      = make(chan error, 1)
	)
	group.Go(func() { ended <- l.runControl(life) })
	wait := tunnel.StartServing(life, l.session, l.answer)
	select {
	case l.err = <-ended:
	case <-ctx.Done():
		l.drain(ended)
	}
	stop()
	group.Wait()
	if err := wait(); err != nil {
		l.log.Warn("session failed", "err", err) // it is closed
	}
	l.abandon()
	if l.err == nil {
		l.err = context.Cause(l.session.Context())
	}
	l.err = l.agent.diagnose(l.server, l.err)
	l.agent.metrics.ended(l, reasonLabel(l.err))
	l.log.Debug("session ended", "err", l.err)
}

// runControl runs the control stream. After a goodbye of a server that has no open streams it
// waits until the data in flight to this end has been read.
func (l *link) runControl(ctx context.Context) error {
	err := l.control.Run(ctx, nil)
	if bye, ok := errors.AsType[*tunnel.Goodbye](err); ok && bye.Code == tunnel.Draining {
		opened := l.opened.close()
		l.finish(l.streams.close(), finishTimeout)
		l.finish(opened, linger)
	}
	_ = l.session.Close() // the error of Run matters, not this one
	return err
}

// finish waits for idle, for the end of the session, or for the timeout.
func (l *link) finish(idle <-chan struct{}, timeout time.Duration) {
	select {
	case <-idle:
	case <-l.session.Context().Done():
	case <-time.After(timeout):
	}
}

// drain requests that the server opens no new streams, waits for the open ones, and leaves.
// Streams that the server opened before it read the request are accepted. If nothing is
// open at the server either, the server sends a goodbye.
func (l *link) drain(ended <-chan error) {
	const text = "agent is stopping"
	l.log.Info("leaving", "streams", l.streams.count())
	late := time.After(l.agent.cfg.DrainTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), max(l.agent.cfg.DrainTimeout, time.Second))
	err := l.control.Drain(ctx, tunnel.Draining, text)
	cancel()
	if err == nil {
		select {
		case <-late:
			l.log.Info("cutting streams that have not finished", "streams", l.streams.count(), "after", l.agent.cfg.DrainTimeout)
		case l.err = <-ended:
			return
		}
	}
	if err := l.control.HangUp(&tunnel.Goodbye{Code: tunnel.Draining, Text: text}); err != nil {
		l.log.Debug("hang up", "err", err)
	}
}

// answer serves one stream that the server opened.
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
		return errors.Join(err, r.Reject(tunnel.CodeOf(err), tunnel.Reason(r.Addr, err))) // the opener knows the address
	}
	if where.kubelet {
		return l.toKubelet(ctx, r)
	}
	_, err = tunnel.Answer(ctx, r, func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, dialErr := l.dialFirst(ctx, network, where)
		l.agent.metrics.dial(inbound, tunnel.CodeOf(dialErr))
		if dialErr != nil {
			l.streams.leave()
			return nil, dialErr
		}
		return l.agent.metrics.trackTarget(c, l.streams.leave), nil
	})
	return err
}

// toKubelet hands a stream to the kubelet.
func (l *link) toKubelet(ctx context.Context, r *tunnel.Request) error {
	c := l.agent.metrics.track(inbound, &unanswered{request: r, addr: tunnel.Addr(r.Addr)}, l.streams.leave)
	ctx, cancel := r.Context(ctx)
	defer cancel()
	err := l.agent.cfg.Kubelet.Inject(ctx, c)
	l.agent.metrics.dial(inbound, tunnel.CodeOf(err))
	if err != nil {
		return errors.Join(fmt.Errorf("hand stream to kubelet: %w", err), c.Close())
	}
	return nil
}

// dialFirst dials the addresses of where in order until one answers. The error is the
// last one's.
func (l *link) dialFirst(ctx context.Context, network string, where decision) (c net.Conn, err error) {
	if where.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, where.within)
		defer cancel()
	}
	dial := l.agent.target
	if declared := l.agent.cfg.DialDeclared; where.pods && declared != nil {
		dial = func(ctx context.Context, _, addr string) (net.Conn, error) {
			to, bad := netip.ParseAddrPort(addr)
			if bad != nil {
				return nil, bad
			}
			return declared(ctx, to)
		}
	}
	for _, addr := range where.addrs {
		if c, err = dial(ctx, network, addr); err == nil {
			return c, nil
		}
	}
	return nil, err
}
