// Package overssh reaches a node through the OpenSSH server that runs on it.
//
// The mode is deprecated: it is the way clusters reached their nodes before there
// were agents that call home. It is kept for nodes that already run sshd and for
// comparison; it needs an inbound path to every node, costs more than the other
// transports and says less about failures. New clusters use the agent's own
// transports.
//
// The mental model is turned round: here the server dials. A Dialer keeps one SSH
// connection to one node's sshd, checks the host key against a pinned one, pings
// it, dials it again when it is lost, and turns every DialContext into a
// direct-tcpip channel (RFC 4254, section 7.2). The node runs nothing of ours, so
// this is no tunnel.Transport: it is not symmetric, there is no control stream
// and no dial frame, and a node cannot open a stream to the server. What the
// streams promise is what a tunnel.Stream promises, as far as SSH can say it:
//
//	half-close             yes   SSH_MSG_CHANNEL_EOF (RFC 4254, section 5.3)
//	flow control a stream  yes   the window of its channel; a stalled one holds up no other
//	loss told from an end  yes   a lost connection is never taken for the end of a stream
//	deadlines              yes   added here: a channel has none
//	why a dial failed      part  sshd passes on the C library's words, which become a tunnel.Code
//	reset                  no    Abort ends both directions at once and throws away what was not
//	                             sent, but the target sees an orderly end, and sshd shows a
//	                             target's reset as one
//	migration              no    the session is one TCP connection, and ends with it
//	resumption             no    streams end with their session; new ones wait for the next
//	streams from the node  no    only this end opens channels
//
// SSH's library shows a lost connection and the end of a stream both as io.EOF; see
// wire.alive for how they are told apart. The other way round, an end that had not
// been read yet when the connection was lost may be reported as a loss. A Write copies
// into a bounded buffer, as for a socket, and a failure shows in a later call.
//
// Which host key a node may show is for HostKeys to say: none is trusted because it was
// the first one seen. Whatever they refuse is tunnel.Denied.
//
// Memory is bounded by MaxStreams: a stream holds at most 128 KiB to send, 96 KiB
// received and the 2 MiB window that the library grants each channel.
package overssh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// Defaults of Config.
const (
	DefaultPort             = "22"
	DefaultConnectTimeout   = 15 * time.Second
	DefaultKeepAlive        = 15 * time.Second
	DefaultKeepAliveTimeout = 5 * time.Second
	DefaultMinBackoff       = time.Second
	DefaultMaxBackoff       = 30 * time.Second
)

// Config configures a Dialer. Node, Addr, User, KeyFile and HostKeys are
// required.
type Config struct {
	// Node is the node's name, which is the host of targets that mean the node itself.
	Node string
	// Addr is where its sshd listens, HOST or HOST:PORT.
	Addr string
	// User logs in, with the private key in KeyFile (PEM, no passphrase). The file
	// is read again for each connection, so that a key can be replaced.
	User    string
	KeyFile string
	// HostKeys says which keys nodes may show.
	HostKeys HostKeys

	// Dial makes the connection below SSH; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// ConnectTimeout bounds TCP connect, handshake and login together.
	ConnectTimeout time.Duration
	// KeepAlive is the silence after which a sign of life is asked for, and
	// KeepAliveTimeout how long that may stay unanswered while nothing else
	// arrives either. Their sum is how soon a dead connection is given up. An idle
	// connection costs one exchange every KeepAlive, 244 bytes with the headers of
	// TCP and IP: by default 57 KiB an hour.
	KeepAlive        time.Duration
	KeepAliveTimeout time.Duration
	// MinBackoff and MaxBackoff bound the random waits between attempts to
	// connect: the n-th is up to MinBackoff·2ⁿ, at most MaxBackoff.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// MaxStreams bounds the channels that may be open at a time; more wait.
	// Zero means tunnel.DefaultMaxStreams.
	MaxStreams int
	// Metrics may be shared by many Dialers; nil means none.
	Metrics *Metrics
	// Log is told of connections made, lost and refused; nil means discard.
	Log *slog.Logger
}

// HostKeys decide which host keys nodes may show. Methods may be called at the same
// time. Package auth/hostkeys has them in a known_hosts file.
type HostKeys interface {
	// Algorithms are those to ask the sshd of node at addr for, best first. It fails if
	// no key of the node's is known; then the sshd is not dialed.
	Algorithms(node, addr string) ([]string, error)
	// Check fails if the sshd of node at addr may not show key.
	Check(node, addr string, key ssh.PublicKey) error
}

// A Dialer reaches one node through its sshd. Its methods may be called at the
// same time.
type Dialer struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex    // guards the following
	session *session      // the one to use; nil while there is none
	failed  error         // why there is none; nil while Run makes one, or has not been called
	changed chan struct{} // closed and replaced when these change
}

// New checks cfg and starts nothing.
func New(cfg Config) (*Dialer, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return newDialer(cfg), nil
}

// newDialer makes a Dialer of a complete configuration.
func newDialer(cfg Config) *Dialer {
	cfg.Addr = withPort(cfg.Addr)
	return &Dialer{cfg: cfg, log: cfg.Log.With("node", cfg.Node, "addr", cfg.Addr), changed: make(chan struct{})}
}

// withPort is addr, HOST or HOST:PORT, with a port.
func withPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return net.JoinHostPort(addr, DefaultPort)
	}
	return addr
}

// complete checks what must be there and fills in what need not.
func (c *Config) complete() error {
	for _, f := range []struct{ name, value string }{
		{"Node", c.Node}, {"Addr", c.Addr}, {"User", c.User}, {"KeyFile", c.KeyFile},
	} {
		if f.value == "" {
			return fmt.Errorf("ssh to node %q: %s is required", c.Node, f.name)
		}
	}
	if c.HostKeys == nil {
		return fmt.Errorf("ssh to node %q: HostKeys is required", c.Node)
	}
	if err := CheckKey(c.KeyFile); err != nil {
		return err
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	for field, value := range map[*time.Duration]time.Duration{
		&c.ConnectTimeout:   DefaultConnectTimeout,
		&c.KeepAlive:        DefaultKeepAlive,
		&c.KeepAliveTimeout: DefaultKeepAliveTimeout,
		&c.MinBackoff:       DefaultMinBackoff,
		&c.MaxBackoff:       DefaultMaxBackoff,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics, _ = NewMetrics(nil) // there is no registry to refuse them
	}
	return nil
}

// CheckKey says what is wrong with a file for Config.KeyFile.
func CheckKey(path string) error {
	_, err := readKey(path)
	return err
}

// readKey reads a private key.
func readKey(path string) (ssh.Signer, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read ssh key: %w", err)
	}
	key, err := ssh.ParsePrivateKey(pem)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("ssh key %s has a passphrase, which nobody can type here: remove it with ssh-keygen -p", path)
	case err != nil:
		return nil, fmt.Errorf("ssh key %s: %w", path, err)
	}
	return key, nil
}

// Run keeps a connection to the node until ctx is done, and returns nil once
// every goroutine and every stream of the Dialer has ended. It is called once.
func (d *Dialer) Run(ctx context.Context) error {
	defer d.settle(nil, tunnel.ErrSessionClosed)
	for failures := 0; ; failures++ {
		s, err := d.connect(ctx)
		if err == nil {
			d.log.Info("ssh connection made", "user", d.cfg.User)
			began := time.Now()
			d.settle(s, nil)
			d.cfg.Metrics.sessions.Inc()
			err = s.hold(ctx)
			d.cfg.Metrics.lost(err)
			if time.Since(began) > d.cfg.KeepAlive {
				failures = 0 // it was a good one
			}
		}
		d.settle(nil, err)
		if ctx.Err() != nil {
			return nil
		}
		wait := backoff(failures, d.cfg.MinBackoff, d.cfg.MaxBackoff, rand.Float64())
		level := slog.LevelWarn
		if errors.Is(err, tunnel.Denied) {
			level = slog.LevelError // somebody must pin a key, or let one in
		}
		d.log.Log(ctx, level, "no ssh connection", "err", err, "retry", wait.Round(time.Millisecond))
		if pause(ctx, wait); ctx.Err() != nil {
			return nil
		}
		d.settle(nil, nil)
	}
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// backoff is full jitter: draw, of [0, 1), of a bound that doubles with each
// failure in a row.
func backoff(failures int, lowest, highest time.Duration, draw float64) time.Duration {
	bound := lowest
	for ; failures > 0 && bound < highest; failures-- {
		bound *= 2
	}
	return time.Duration(draw * float64(min(bound, highest)))
}

// settle notes that there is a session, or why there is none, or with neither that an
// attempt is under way, and wakes who waits for that.
func (d *Dialer) settle(s *session, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session, d.failed = s, err
	close(d.changed)
	d.changed = make(chan struct{})
}

// current is the session. While an attempt is under way it waits for its
// outcome; between two it says at once why the last one failed.
func (d *Dialer) current(ctx context.Context) (*session, error) {
	for {
		d.mu.Lock()
		s, err, changed := d.session, d.failed, d.changed
		d.mu.Unlock()
		switch {
		case s != nil:
			return s, nil
		case errors.Is(err, tunnel.Denied):
			return nil, err // waiting does not mend it
		case err != nil:
			return nil, fmt.Errorf("%w: %w", tunnel.NoNode, err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Check asks the node's sshd for a sign of life and waits for it until ctx is
// done: nil means that the node can be dialed now. If target is not empty it is
// dialed as well, and closed again. A check is not counted as a dial.
func (d *Dialer) Check(ctx context.Context, target string) error {
	s, err := d.current(ctx)
	if err == nil {
		err = s.ping(ctx)
	}
	if err != nil {
		return fmt.Errorf("check node %s: %w", d.cfg.Node, err)
	}
	if target == "" {
		return nil
	}
	st, err := d.open(ctx, "tcp", target)
	if err != nil {
		return fmt.Errorf("check node %s: %w", d.cfg.Node, err)
	}
	return st.Close()
}

// DialContext is Connect with the shape of net.Dialer's. The connection is a
// tunnel.Stream.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	st, err := d.Connect(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// Connect has the node's sshd connect to addr. A host that is the node's name
// means the node's loopback, where a kubelet in this mode listens; HOST%NODE is
// HOST. ctx bounds the dial, not the stream's life; without a deadline it takes
// at most tunnel.DefaultDialTimeout. Errors unwrap to *tunnel.DialError. The
// caller owns the stream.
func (d *Dialer) Connect(ctx context.Context, network, addr string) (tunnel.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	began := time.Now()
	st, err := d.open(ctx, network, addr)
	d.cfg.Metrics.dialed(err, time.Since(began))
	if err != nil {
		return nil, tunnel.NewDialError(addr, err)
	}
	return st, nil
}

func (d *Dialer) open(ctx context.Context, network, addr string) (*stream, error) {
	t, err := parseTarget(d.cfg.Node, network, addr)
	if err != nil {
		return nil, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return nil, err
	}
	return s.open(ctx, t)
}
