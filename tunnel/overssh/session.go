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

type session struct {
	cfg      *Config
	wire     *wire
	conn     ssh.Conn
	channels <-chan ssh.NewChannel
	requests <-chan *ssh.Request
	tokens   chan struct{} // one for each stream
	gone     chan struct{} // closed when the library has given up the connection
	end      func(error)   // ends the session for a reason, unless there was one, and does not wait
	why      func() error  // that reason; nil before

	mu      sync.Mutex // guards the following
	over    bool       // nothing may be added to the rest
	streams map[*stream]struct{}
	opens   sync.WaitGroup // channels being opened
	tasks   sync.WaitGroup // everything else
}

// connect makes a connection and logs in. The caller must call hold.
func (d *Dialer) connect(ctx context.Context) (s *session, err error) {
	defer func() { d.cfg.Metrics.opened(err) }()
	cctx, cancel := context.WithTimeout(ctx, d.cfg.ConnectTimeout)
	defer cancel()
	algorithms, err := d.cfg.HostKeys.Algorithms(d.cfg.Node, d.cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	key, err := readKey(d.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	raw, err := d.cfg.Dial(cctx, "tcp", d.cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("connect to sshd of %s: %w", d.cfg.Node, err)
	}
	w := newWire(raw)
	stop := context.AfterFunc(cctx, func() { _ = w.Close() }) // the handshake fails then
	var refused error                                         // the host key
	verified := false
	conn, channels, requests, err := ssh.NewClientConn(w, d.cfg.Addr, &ssh.ClientConfig{
		User:              d.cfg.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, shown ssh.PublicKey) error {
			refused = d.cfg.HostKeys.Check(d.cfg.Node, d.cfg.Addr, shown)
			verified = refused == nil
			return refused
		},
		ClientVersion: "SSH-2.0-hawser",
	})
	if !stop() && err == nil {
		_ = conn.Close() // ctx came last, and counts
		err = context.Cause(cctx)
	}
	switch {
	case err == nil:
	case refused != nil:
		_ = w.Close() // the other error is the news
		return nil, fmt.Errorf("%w: %w", tunnel.Denied, refused)
	default:
		_ = w.Close() // as above
		return nil, d.loginFailed(cctx, w, verified, err)
	}
	ended, end := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ended, func() { _ = w.Close() }) // nothing could be done about it
	return &session{
		cfg: &d.cfg, wire: w, conn: conn, channels: channels, requests: requests,
		tokens:  make(chan struct{}, tunnel.Options{MaxStreams: d.cfg.MaxStreams}.Streams()),
		gone:    make(chan struct{}),
		end:     end,
		why:     func() error { return context.Cause(ended) },
		streams: make(map[*stream]struct{}),
	}, nil
}

// loginFailed says why there is no session.
func (d *Dialer) loginFailed(ctx context.Context, w *wire, verified bool, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("log in to sshd of %s: %w", d.cfg.Node, context.Cause(ctx))
	case verified && w.broken() == nil:
		// The connection is well and the host is the right one: it is the login.
		return fmt.Errorf("%w: sshd of %s refuses user %s with key %s; put its public half into that user's authorized_keys: %w",
			tunnel.Denied, d.cfg.Node, d.cfg.User, d.cfg.KeyFile, err)
	default:
		return fmt.Errorf("log in to sshd of %s: %w", d.cfg.Node, err)
	}
}

// hold keeps the session until it is lost or ctx is done, ends it, waits for all
// that belongs to it, and says why it is over.
func (s *session) hold(ctx context.Context) error {
	s.tasks.Go(func() { ssh.DiscardRequests(s.requests) })
	s.tasks.Go(func() {
		for c := range s.channels {
			// Nothing on the node may open a channel here; that it failed to
			// hear so is seen by hold.
			_ = c.Reject(ssh.Prohibited, "this end opens all channels")
		}
	})
	s.tasks.Go(func() {
		defer close(s.gone)
		s.end(s.lost(s.conn.Wait()))
	})
	s.end(s.watch(ctx))
	<-s.gone
	s.bury()
	return s.why()
}

// watch asks for a sign of life whenever nothing has come for KeepAlive. It returns
// when nothing has come for KeepAliveTimeout after that either (behind bulk, an answer
// may take its time), when the connection is gone, or when ctx is done.
func (s *session) watch(ctx context.Context) error {
	limit := s.cfg.KeepAlive + s.cfg.KeepAliveTimeout
	asked := make(chan struct{}, 1) // holds one until the answer has come
	for {
		silent := s.wire.silent()
		wait := s.cfg.KeepAlive - silent
		if silent >= limit {
			return fmt.Errorf("%w: sshd of %s sent nothing for %v", tunnel.Dead, s.cfg.Node, silent.Round(time.Millisecond))
		}
		if wait <= 0 {
			wait = limit - silent
			select {
			case asked <- struct{}{}:
				s.spawn(&s.tasks, func() { // or the session is gone
					_ = s.ping(ctx) // if it fails then so will what follows
					<-asked
				})
			default:
			}
		}
		select {
		case <-ctx.Done():
			return tunnel.ErrSessionClosed
		case <-s.gone:
			return s.why()
		case <-time.After(wait):
		}
	}
}

// ping waits for an answer to a request that no sshd knows: that it says so is
// enough. The request lives on when ctx is done, until it is answered or the
// session ends; the library asks one at a time.
func (s *session) ping(ctx context.Context) error {
	answered := make(chan error, 1)
	began := time.Now()
	if !s.spawn(&s.tasks, func() {
		_, _, err := s.conn.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}) {
		return s.why()
	}
	select {
	case err := <-answered:
		if err != nil {
			return s.lost(err)
		}
		s.cfg.Metrics.rtt.Observe(time.Since(began).Seconds())
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
	if why := s.why(); why != nil {
		return why
	}
	if werr := s.wire.broken(); werr != nil {
		err = werr
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: sshd of %s closed the connection", tunnel.Lost, s.cfg.Node)
	}
	return fmt.Errorf("%w: connection to sshd of %s: %w", tunnel.Lost, s.cfg.Node, err)
}

// bury ends all that belongs to a session that is gone, and waits for it.
func (s *session) bury() {
	s.mu.Lock()
	s.over = true
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, st := range streams {
		st.far.CloseWriteWithError(s.why())
		st.far.CloseReadWithError(s.why())
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
}

// open opens a channel to t. The library's way knows no context, so it is waited
// for beside it, and a channel that nobody wants any more is closed as soon as it
// is open; until then it keeps its token.
func (s *session) open(ctx context.Context, t target) (*stream, error) {
	select {
	case s.tokens <- struct{}{}:
	case <-s.gone:
		return nil, s.why()
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
		return nil, s.why()
	}
	select {
	case r := <-opened:
		return r.stream, r.err
	case <-s.gone:
		return nil, s.why()
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
		return nil, s.why()
	}
	st := newStream(s, ch, t)
	s.streams[st] = struct{}{}
	s.tasks.Go(func() { ssh.DiscardRequests(requests) })
	s.tasks.Go(st.up)
	s.tasks.Go(st.down)
	s.cfg.Metrics.streams.Inc()
	return st, nil
}

// forget takes a stream off the books.
func (s *session) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
	s.cfg.Metrics.streams.Dec()
	<-s.tokens
}
