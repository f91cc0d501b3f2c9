// Session: one connection to a node's sshd.

package overssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

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
	*carrier.Session
	node   *node
	wire   *wire
	conn   ssh.Conn
	tokens chan struct{} // one for each stream
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
		Session: carrier.NewSession(tunnel.Peer{Addr: w.RemoteAddr(), Transport: "ssh"}), node: n, wire: w, conn: conn,
		tokens: make(chan struct{}, tunnel.Options{MaxStreams: n.fleet.cfg.MaxStreams}.Streams()),
	}
	context.AfterFunc(s.Alive(), func() { _ = w.Close() }) // nothing could be done about it
	s.Go(func() { ssh.DiscardRequests(requests) })
	s.Go(func() {
		for c := range channels {
			// Nothing on the node may open a channel here; that it failed to
			// hear so is seen below.
			_ = c.Reject(ssh.Prohibited, "this end opens all channels")
		}
	})
	s.Go(func() { s.End(s.lost(conn.Wait())) })
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
	s.End(s.watch(ctx))
	<-s.Context().Done()
	return context.Cause(s.Context())
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
		case <-s.Alive().Done():
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
	s.Go(func() {
		began := time.Now()
		if _, _, err := s.conn.SendRequest("keepalive@openssh.com", true, nil); err == nil {
			s.node.fleet.metrics.rtt.Observe(time.Since(began).Seconds())
		}
		<-asked // if it failed then so will what follows
	})
}

// lost makes an error of what the library says of a connection, unless it is known why
// that has ended.
func (s *session) lost(err error) error {
	if why := context.Cause(s.Alive()); why != nil {
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

// open opens a channel to t.
func (s *session) open(ctx context.Context, t target) (*stream, error) {
	return carrier.Open(ctx, s.Session, s.tokens,
		func() (*stream, error) { return s.channel(t) },
		func(st *stream) { _ = st.Abort() }) // never fails
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
	st := newStream(s, ch, t)
	if !s.Go(func() { st.run(requests) }) {
		return nil, context.Cause(s.Alive())
	}
	s.node.fleet.metrics.streams.Inc()
	return st, nil
}
