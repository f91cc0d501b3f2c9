// Session: one connection to a node's sshd.

package overssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// openGrace is how long the end of a session waits for channels that were being
// opened when it came. The library tells each of them, except one that enters its
// list in the instant after it was told to forget the list; that one it leaves
// waiting for ever.
const openGrace = time.Second

const (
	// keepAlive is the silence after which a sign of life is asked for, and
	// keepAliveTimeout how long that may stay unanswered while nothing else arrives
	// either. Their sum is how soon a dead connection is given up. An idle connection
	// costs one exchange every keepAlive, 244 bytes with the headers of TCP and IP: 57
	// KiB an hour.
	keepAlive        = 15 * time.Second
	keepAliveTimeout = 5 * time.Second
)

type session struct {
	node   *node
	wire   *wire
	conn   ssh.Conn
	tokens chan struct{}           // one for each stream
	ctx    context.Context         // done when the session is at its end; its cause says why
	end    context.CancelCauseFunc // ends the session for a reason, unless there was one, and does not wait

	mu      sync.Mutex // guards the following
	over    bool       // nothing may be added to the rest
	streams map[*stream]struct{}
	opens   sync.WaitGroup // channels being opened
	tasks   sync.WaitGroup // everything else
}

// connect makes a connection and logs in. The caller must call hold.
func (n *node) connect(ctx context.Context) (s *session, err error) {
	defer func() { n.fleet.metrics.opened(err) }()
	cctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	algorithms, err := n.algorithms()
	if err != nil {
		return nil, err
	}
	key, err := readKey(n.fleet.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	raw, err := n.fleet.cfg.Dial(cctx, "tcp", n.addr)
	if err != nil {
		return nil, fmt.Errorf("connect to sshd of %s: %w", n.name, err)
	}
	w := newWire(raw)
	stop := context.AfterFunc(cctx, func() { _ = w.Close() }) // the handshake fails then
	unverified := errors.New("no host key was shown")
	conn, channels, requests, err := ssh.NewClientConn(w, n.addr, &ssh.ClientConfig{
		User:              n.fleet.cfg.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, shown ssh.PublicKey) error {
			if unverified = n.fleet.cfg.HostKeys.Check(n.name, n.addr, shown); unverified != nil {
				unverified = fmt.Errorf("%w: %w", tunnel.Denied, unverified)
			}
			return unverified
		},
		ClientVersion: "SSH-2.0-hawser",
	})
	if !stop() && err == nil {
		_ = conn.Close() // ctx came last, and counts
		err = context.Cause(cctx)
	}
	if err != nil {
		_ = w.Close() // the other error is the news
		return nil, n.loginFailed(cctx, w, unverified, err)
	}
	s = &session{
		node: n, wire: w, conn: conn,
		tokens:  make(chan struct{}, tunnel.Options{MaxStreams: n.fleet.cfg.MaxStreams}.Streams()),
		streams: make(map[*stream]struct{}),
	}
	s.ctx, s.end = context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(s.ctx, func() { _ = w.Close() }) // nothing could be done about it
	s.tasks.Go(func() { ssh.DiscardRequests(requests) })
	s.tasks.Go(func() {
		for c := range channels {
			// Nothing on the node may open a channel here; that it failed to
			// hear so is seen below.
			_ = c.Reject(ssh.Prohibited, "this end opens all channels")
		}
	})
	s.tasks.Go(func() { s.end(s.lost(conn.Wait())) })
	return s, nil
}

// loginFailed says why there is no session. The host key was not verified for a reason, or
// it was.
func (n *node) loginFailed(ctx context.Context, w *wire, unverified, err error) error {
	switch {
	case errors.Is(unverified, tunnel.Denied):
		return unverified // names everything
	case ctx.Err() != nil:
		return fmt.Errorf("log in to sshd of %s: %w", n.name, context.Cause(ctx))
	case unverified == nil && w.broken() == nil:
		// The connection is well and the host is the right one: it is the login.
		return fmt.Errorf("%w: sshd of %s refuses user %s with key %s; put its public half into that user's authorized_keys: %w",
			tunnel.Denied, n.name, n.fleet.cfg.User, n.fleet.cfg.KeyFile, err)
	default:
		return fmt.Errorf("log in to sshd of %s: %w", n.name, err)
	}
}

// hold keeps the session until it is lost, ctx is done or the node is not admitted any
// more, waits for all that belongs to it, and says why it is over.
func (s *session) hold(ctx context.Context) error {
	s.end(s.watch(ctx))
	why := context.Cause(s.ctx)
	s.mu.Lock()
	s.over = true
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, st := range streams {
		st.far.CloseWriteWithError(why)
		st.far.CloseReadWithError(why)
	}
	opened := make(chan struct{})
	go func() { // joined but for the library's fault; see openGrace
		defer close(opened)
		s.opens.Wait()
	}()
	select {
	case <-opened:
	case <-time.After(openGrace):
	}
	s.tasks.Wait()
	return why
}

// watch asks for a sign of life whenever nothing has come for keepAlive. It returns
// when nothing has come for keepAliveTimeout after that either (behind bulk, an answer
// may take its time), when the node is not admitted any more, when the connection is
// gone, or when ctx is done.
func (s *session) watch(ctx context.Context) error {
	asked := make(chan struct{}, 1) // holds one until the answer has come
	for {
		silent := s.wire.silent()
		wait := keepAlive - silent
		if wait <= 0 {
			wait += keepAliveTimeout
			s.ask(asked)
		}
		if wait <= 0 {
			return fmt.Errorf("%w: sshd of %s sent nothing for %v", tunnel.Dead, s.node.name, silent.Round(time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return tunnel.ErrSessionClosed
		case <-s.ctx.Done():
			return nil // there was a reason
		case <-s.node.look:
		case <-time.After(min(wait, lookInterval)):
		}
		if err := s.node.refused(s); err != nil {
			return err
		}
	}
}

// ask makes a request that no sshd knows, unless one is under way: that it says so is
// enough.
func (s *session) ask(asked chan struct{}) {
	select {
	case asked <- struct{}{}:
	default:
		return
	}
	s.tasks.Go(func() {
		began := time.Now()
		if _, _, err := s.conn.SendRequest("keepalive@openssh.com", true, nil); err == nil {
			s.node.fleet.metrics.rtt.Observe(time.Since(began).Seconds())
		}
		<-asked // if it failed then so will what follows
	})
}

// spawn runs f beside the caller, as one of wg. It does not if the session is over.
func (s *session) spawn(wg *sync.WaitGroup, f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	wg.Go(f)
	return true
}

// lost makes an error of what the library says of a connection, unless it is known why
// that has ended.
func (s *session) lost(err error) error {
	if why := context.Cause(s.ctx); why != nil {
		return why
	}
	if werr := s.wire.broken(); werr != nil {
		err = werr
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: sshd of %s closed the connection", tunnel.Lost, s.node.name)
	}
	return fmt.Errorf("%w: connection to sshd of %s: %w", tunnel.Lost, s.node.name, err)
}

// open opens a channel to t. The library's way knows no context, so it is waited
// for beside it, and a channel that nobody wants any more is closed as soon as it
// is open; until then it keeps its token.
func (s *session) open(ctx context.Context, t target) (*stream, error) {
	select {
	case s.tokens <- struct{}{}:
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type result struct {
		stream *stream
		err    error
	}
	opened, unwanted := make(chan result), make(chan struct{})
	defer close(unwanted)
	if !s.spawn(&s.opens, func() {
		st, err := s.channel(t)
		if err != nil {
			<-s.tokens
		}
		select {
		case opened <- result{st, err}:
		case <-unwanted:
			if err == nil {
				_ = st.Abort() // never fails
			}
		}
	}) {
		<-s.tokens
		return nil, context.Cause(s.ctx)
	}
	select {
	case r := <-opened:
		return r.stream, r.err
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// channel opens a channel to t, for a stream that gives back the token.
func (s *session) channel(t target) (*stream, error) {
	// RFC 4254, 7.2. Who asked is nobody's business on the node.
	ask := ssh.Marshal(&struct {
		Host       string
		Port       uint32
		Originator string
		From       uint32
	}{t.host, uint32(t.port), "127.0.0.1", 0})
	ch, requests, err := s.conn.OpenChannel("direct-tcpip", ask)
	if err != nil {
		var refusal *ssh.OpenChannelError
		if errors.As(err, &refusal) {
			return nil, rejected(refusal)
		}
		return nil, s.lost(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, context.Cause(s.ctx)
	}
	st := newStream(s, ch, t)
	s.streams[st] = struct{}{}
	s.tasks.Go(func() { ssh.DiscardRequests(requests) })
	s.tasks.Go(st.up)
	s.tasks.Go(st.down)
	s.node.fleet.metrics.streams.Inc()
	return st, nil
}

// forget takes a stream off the books.
func (s *session) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
	s.node.fleet.metrics.streams.Dec()
	<-s.tokens
}
