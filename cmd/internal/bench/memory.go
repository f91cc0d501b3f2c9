// Memory: what is resident for each idle session and each idle stream.

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// memory measures s, which has not been used yet.
func (r *run) memory(ctx context.Context, s *system) error {
	if s.control == nil {
		return nil
	}
	streams, err := r.streamMemory(ctx, s)
	if err != nil {
		return err
	}
	r.report.add(s.name, streams)
	if s.name == Relay {
		return nil // it has no sessions
	}
	perSession, err := r.sessionMemory(ctx, s.name)
	if err != nil {
		return err
	}
	r.report.add(s.name, figures{"session_control_KiB": perSession})
	return nil
}

// growth is by how much the resident memory of processes grows, in KiB, each time
// that f happens n times.
func growth(f func() error, n int, processes ...*process) ([]float64, error) {
	settle := func() ([]float64, error) {
		var kib []float64
		for _, p := range processes {
			a, err := p.ask(doSettle, 0)
			if err != nil {
				return nil, err
			}
			kib = append(kib, float64(a.Usage.Resident)/1024)
		}
		return kib, nil
	}
	before, err := settle()
	if err != nil {
		return nil, err
	}
	if err = f(); err != nil {
		return nil, err
	}
	after, err := settle()
	if err != nil {
		return nil, err
	}
	for i := range after {
		after[i] = (after[i] - before[i]) / float64(n)
	}
	return after, nil
}

// streamMemory opens idle streams at s.
func (r *run) streamMemory(ctx context.Context, s *system) (_ figures, err error) {
	if _, err = dialEcho(ctx, s, nil); err != nil { // what only the first one needs
		return nil, err
	}
	n := r.cfg.Streams
	idle := make([]net.Conn, 0, n)
	each, err := growth(func() error {
		for range n {
			c, oerr := open(ctx, s, modeEcho, 'x')
			if oerr != nil {
				return oerr
			}
			idle = append(idle, c)
			if oerr = readEcho(c); oerr != nil {
				return oerr
			}
		}
		return nil
	}, n, s.control, s.node)
	for _, c := range idle {
		_ = c.Close() // the target sees to it that they have ended
	}
	if err = errors.Join(err, s.target.settle(ctx)); err != nil {
		return nil, fmt.Errorf("%d idle streams: %w", n, err)
	}
	return figures{"stream_control_KiB": each[0], "stream_node_KiB": each[1]}, nil
}

// sessionMemory makes idle sessions with a control process of their own.
func (r *run) sessionMemory(ctx context.Context, name string) (_ float64, err error) {
	s := &system{name: name}
	if s.target, err = startTarget(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	n := r.cfg.Sessions
	var more func() error
	if name == SSH {
		n = min(n, maxSSHSessions)
		err = r.startSSH(ctx, s, "-idle", n+1)
		more = func() error {
			_, aerr := s.control.ask(doWait, n+1)
			return aerr
		}
	} else {
		err = r.startTunnel(ctx, s, "-idle")
		more = func() error {
			p, lerr := r.launchAgents(ctx, s, 2, n)
			if lerr != nil {
				return lerr
			}
			s.more = p
			_, lerr = s.control.ask(doWait, n+1)
			return lerr
		}
	}
	if err != nil {
		return 0, err
	}
	each, err := growth(more, n, s.control)
	if err != nil {
		return 0, fmt.Errorf("%d idle sessions: %w", n, err)
	}
	return each[0], nil
}
