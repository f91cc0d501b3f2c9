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
	"github.com/hawser-project/hawser/tunnel/memnet"
)

const (
	// connectTimeout bounds TCP connect, handshake and login together.
	connectTimeout = 15 * time.Second
	// After keepAlive of silence a request is sent, and after keepAliveTimeout more the
	// connection is given up. An idle connection costs 244 bytes every keepAlive, with the
	// headers of TCP and IP: 57 KiB an hour.
	keepAlive        = 15 * time.Second
	keepAliveTimeout = 5 * time.Second
)

// A Session is one connection to a node's sshd, and ends with it. All methods may be called
// concurrently.
type Session struct {
	*carrier.Session
	config Config
	node   string
	wire   *wire
	conn   ssh.Conn
}

// Dial connects to the sshd of a node at addr, HOST:PORT, and logs in, within 15 s. ctx
// bounds the dialing only. The error wraps tunnel.Denied if the host key or the login is
// refused, and is a *HostKeyError if a key was shown that HostKeys refuse. The caller closes
// the session.
func Dial(ctx context.Context, c Config, node, addr string) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	algorithms, err := c.HostKeys.Algorithms(node, addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	key, err := readKey(c.KeyFile)
	if err != nil {
		return nil, err
	}
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to sshd of %s: %w", node, err)
	}
	w := newWire(raw)
	stop := context.AfterFunc(ctx, func() { _ = w.Close() }) // the handshake fails then
	l := &login{config: c, node: node, addr: addr, unverified: errors.New("no host key was shown")}
	conn, channels, requests, err := ssh.NewClientConn(w, addr, l.clientConfig(key, algorithms))
	if !stop() && err == nil {
		_ = conn.Close() // ctx was done before the login was used
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = w.Close() // err is what is reported
		return nil, l.failed(ctx, w, err)
	}
	peer := tunnel.Peer{Addr: w.RemoteAddr(), Transport: "ssh"}
	s := &Session{
		Session: carrier.NewSession(peer, tunnel.Options{MaxStreams: c.MaxStreams}.Streams()),
		config:  c, node: node, wire: w, conn: conn,
	}
	context.AfterFunc(s.Alive(), func() { _ = w.Close() }) // it is closed either way
	s.Go(func() { ssh.DiscardRequests(requests) })
	s.Go(func() { rejectAll(channels) })
	s.Go(func() { s.End(s.lost(conn.Wait())) })
	s.Go(s.keepalive)
	return s, nil
}

// rejectAll rejects the channels that the node opens. If that fails, so does the connection's Wait.
func rejectAll(channels <-chan ssh.NewChannel) {
	for c := range channels {
		_ = c.Reject(ssh.Prohibited, "this end opens all channels")
	}
}

// keepalive sends a request after keepAlive of silence, and ends the session after
// keepAliveTimeout more. Any data counts, since an answer may be queued behind bulk.
func (s *Session) keepalive() {
	asked := make(chan struct{}, 1) // holds one while a request is unanswered
	var v vigil
	for {
		now, lastRead := s.wire.times()
		wait, ask := v.next(now, lastRead)
		if ask {
			s.sendKeepalive(asked)
		}
		if wait <= 0 {
			s.End(fmt.Errorf("%w: sshd of %s sent nothing for %v", tunnel.Dead, s.node, (now - lastRead).Round(time.Millisecond)))
			return
		}
		select {
		case <-s.Alive().Done():
			return
		case <-time.After(wait):
		}
	}
}

// A vigil says when to ask a silent peer, and how long to wait for it. Times are since some time by
// the monotonic clock: the other one may be set.
type vigil struct {
	asking     bool
	asked, due time.Duration // due is when the next look was to be
}

// next says whether to ask, and how long to wait until the next call; not above zero is that the
// peer is silent. A silence in which nobody has asked tells nothing, nor does one in which this
// process was stopped.
func (v *vigil) next(now, lastRead time.Duration) (wait time.Duration, ask bool) {
	stopped := now-v.due >= keepAliveTimeout
	v.asking = v.asking && lastRead < v.asked && !stopped
	defer func() { v.due = now + wait }()
	switch silent := now - lastRead; {
	case silent < keepAlive:
		return keepAlive - silent, false
	case !v.asking:
		v.asking, v.asked = true, now
		return keepAliveTimeout, true
	default:
		return keepAliveTimeout - (now - v.asked), false
	}
}

// sendKeepalive sends a request that sshd does not know, unless one is unanswered: its
// refusal is the answer.
func (s *Session) sendKeepalive(asked chan struct{}) {
	select {
	case asked <- struct{}{}:
	default:
		return
	}
	s.Go(func() {
		began := time.Now()
		_, _, err := s.conn.SendRequest("keepalive@openssh.com", true, nil)
		if err == nil && s.config.RTT != nil {
			s.config.RTT(time.Since(began))
		}
		<-asked // if the request failed the session is about to end
	})
}

// lost translates the library's error, unless the session's end has another cause.
func (s *Session) lost(err error) error {
	if why := context.Cause(s.Alive()); why != nil {
		return why
	}
	if werr := s.wire.failure(); werr != nil {
		err = werr
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: sshd of %s closed the connection", tunnel.Lost, s.node)
	}
	return fmt.Errorf("%w: connection to sshd of %s: %w", tunnel.Lost, s.node, err)
}

// Dial makes the node's sshd connect to addr. The node's name as host means its loopback. ctx
// bounds the dial, not the stream's life; without a deadline it takes at most
// tunnel.DefaultDialTimeout. It waits while MaxStreams are open. Errors unwrap to
// *tunnel.DialError. The caller owns the stream.
func (s *Session) Dial(ctx context.Context, network, addr string) (tunnel.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	ask, err := parseTarget(s.node, network, addr)
	if err == nil {
		var st tunnel.Stream
		if st, err = carrier.Open(ctx, s.Session, func() (tunnel.Stream, error) { return s.channel(addr, ask) }); err == nil {
			return st, nil
		}
	}
	return nil, tunnel.NewDialError(addr, err)
}

// channel opens a channel to addr. Its stream releases the place in Opened.
func (s *Session) channel(addr string, ask target) (tunnel.Stream, error) {
	ch, requests, err := s.conn.OpenChannel("direct-tcpip", ssh.Marshal(&ask))
	if err != nil {
		if refusal, ok := errors.AsType[*ssh.OpenChannelError](err); ok {
			return nil, rejected(refusal)
		}
		return nil, s.lost(err)
	}
	near, far := memnet.Pipe(s.wire.LocalAddr(), tunnel.Addr(addr))
	st := &stream{far: far, session: s, ch: ch, sent: make(chan struct{}), done: make(chan struct{})}
	if !s.Go(func() { st.run(requests) }) {
		return nil, context.Cause(s.Alive())
	}
	return &tunnel.Tap{Conn: near, Ended: st.finish}, nil
}
