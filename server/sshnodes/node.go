// Node: the connection to one node's sshd, and its retries.

package sshnodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

const (
	// minBackoff and maxBackoff bound the random waits between attempts to connect: the
	// n-th is up to minBackoff·2ⁿ, at most maxBackoff; see goodAfter.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// lookInterval is how often run checks whether the node may be dialed.
	lookInterval = 5 * time.Second
	// checkInterval is the mean time between two checks of a target, and checkTimeout
	// bounds each.
	checkInterval = time.Minute
	checkTimeout  = 15 * time.Second
	// goodAfter is how long a session must last for the back-off to start again. It bounds the wait
	// after a shorter one: an sshd may end idle connections early (UnusedConnectionTimeout).
	goodAfter = 5 * time.Second
)

// A node is one of a Fleet.
type node struct {
	fleet              *Fleet
	name, addr, target string
	log                *slog.Logger
	stop               func()        // ends run; the Fleet's
	look               chan struct{} // holds one if run is to check at once; see wake

	mu      sync.Mutex       // guards the following
	session *overssh.Session // nil while there is none
	failed  error            // why there is no session; nil while run connects, is not allowed to, or has not started
	changed chan struct{}    // closed and replaced when these change
	told    string           // the error that was logged last
}

func newNode(f *Fleet, name, addr, target string) *node {
	n := &node{
		fleet: f, name: name, addr: addr, target: target, log: f.cfg.Log.With("node", name, "addr", addr),
		look: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	n.stop = func() { n.settle(nil, tunnel.ErrSessionClosed) } // before run starts
	return n
}

// run keeps a connection to the node until ctx is done, and returns once every
// goroutine and every stream of the node's has ended. It is called once.
func (n *node) run(ctx context.Context) {
	defer n.settle(nil, tunnel.ErrSessionClosed)
	for failures := 0; ctx.Err() == nil; {
		n.settle(nil, nil)
		if err := n.refused(nil); err != nil {
			n.tell(err)
			select {
			case <-ctx.Done():
			case <-n.look:
			case <-time.After(lookInterval):
			}
			continue
		}
		s, err := overssh.Dial(ctx, n.fleet.cfg.SSH, n.name, n.addr)
		n.fleet.metrics.opened(err)
		longest := maxBackoff
		if err == nil {
			began := time.Now()
			err = n.hold(ctx, s)
			longest = goodAfter
			if time.Since(began) >= goodAfter {
				failures = 0 // the session lasted
			}
		}
		n.settle(nil, err)
		if ctx.Err() == nil {
			n.tell(err)
		}
		n.backOff(ctx, rand.N(min(minBackoff<<min(failures, 10), longest)), err)
		failures++
	}
}

// hold publishes the session until it is lost, ctx is done or the node is not admitted any
// more. It waits until all streams of the session have ended, and returns why it ended.
func (n *node) hold(ctx context.Context, s *overssh.Session) error {
	n.log.Info("ssh connection made", "user", n.fleet.cfg.SSH.User)
	n.settle(s, nil)
	n.fleet.metrics.sessions.Inc()
	for s.Alive().Err() == nil {
		select {
		case <-ctx.Done():
			s.End(tunnel.ErrSessionClosed)
		case <-s.Alive().Done():
		case <-n.look:
		case <-time.After(lookInterval):
		}
		if err := n.refused(s); err != nil {
			s.End(err)
		}
	}
	<-s.Context().Done()
	err := context.Cause(s.Context())
	n.fleet.metrics.lost(err)
	return err
}

// refused returns why the node may not be dialed; nil if it may. An existing session has
// a checked host key, so that only Admit can refuse it.
func (n *node) refused(s *overssh.Session) error {
	if err := n.fleet.cfg.Admit(n.name); err != nil {
		return err
	}
	if s != nil {
		return nil
	}
	if _, err := n.fleet.cfg.SSH.HostKeys.Algorithms(n.name, n.addr); err != nil {
		return fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	return nil
}

// wake has run check at once whether the node may be dialed.
func (n *node) wake() {
	select {
	case n.look <- struct{}{}:
	default:
	}
}

// backOff waits for d after err. The wait ends early once the host key that err refuses may be
// shown, which it checks when current wakes it.
func (n *node) backOff(ctx context.Context, d time.Duration, err error) {
	over := time.After(d)
	for {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-n.look:
			if refused := new(overssh.HostKeyError); errors.As(err, &refused) && n.stillRefused(refused) == nil {
				return
			}
		}
	}
}

// stillRefused checks the host key of an earlier refusal again. It returns nil if the node may show
// that key now.
func (n *node) stillRefused(e *overssh.HostKeyError) error {
	if err := n.fleet.cfg.SSH.HostKeys.Check(n.name, n.addr, e.Key); err != nil {
		return fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	return nil
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// tell logs why there is no connection, unless the last log line said the same.
func (n *node) tell(err error) {
	n.mu.Lock()
	again := n.told == err.Error()
	n.told = err.Error()
	n.mu.Unlock()
	if !again {
		n.log.Warn("no ssh connection", "err", err)
	}
}

func (n *node) lastTold() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told
}

// settle stores the session, or the error of the attempt; with neither an attempt is
// under way. It wakes the callers of current.
func (n *node) settle(s *overssh.Session, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s != nil {
		n.told = ""
	}
	n.session, n.failed = s, err
	close(n.changed)
	n.changed = make(chan struct{})
}

// current returns the session. While an attempt is under way it waits for its
// outcome; between two attempts it returns the last error at once, unless the host key that this
// refuses was pinned since: then it starts an attempt.
func (n *node) current(ctx context.Context) (*overssh.Session, error) {
	for {
		n.mu.Lock()
		s, err, changed := n.session, n.failed, n.changed
		n.mu.Unlock()
		if no := n.refused(s); no != nil {
			n.wake()
			return nil, no
		}
		if refused := new(overssh.HostKeyError); errors.As(err, &refused) {
			err = n.stillRefused(refused)
		}
		switch {
		case s != nil:
			return s, nil
		case errors.Is(err, tunnel.Denied):
			return nil, err // waiting does not help
		case err != nil:
			return nil, fmt.Errorf("%w: %w", tunnel.NoNode, err)
		}
		n.wake() // it may be dialed now
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// check dials the target about once a checkInterval until ctx is done, and logs when
// that begins to fail and when it works again. A missing connection is logged by run.
func (n *node) check(ctx context.Context) {
	failing := ""
	for ctx.Err() == nil {
		cctx, cancel := context.WithTimeout(ctx, checkTimeout)
		s, err := n.current(cctx)
		connected := err == nil
		if connected {
			var st tunnel.Stream
			if st, err = s.Dial(cctx, "tcp", n.target); err == nil {
				_ = st.Close() // never fails
			}
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		code := tunnel.CodeOf(err).Name()
		n.fleet.metrics.checks.WithLabelValues(code).Inc()
		switch {
		case err == nil && failing != "":
			failing = ""
			n.log.Info("node can be dialed through ssh again", "target", n.target)
		case err != nil && connected && failing != code:
			failing = code
			n.log.Warn("node cannot be dialed through ssh", "target", n.target, "err", err)
		}
		pause(ctx, checkInterval/2+rand.N(checkInterval)) // not all nodes at once
	}
}
