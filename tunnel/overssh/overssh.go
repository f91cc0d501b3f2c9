// Package overssh reaches a node through the OpenSSH server that runs on it.
//
// The mode is deprecated: it is the way clusters reached their nodes before there
// were agents that call home. It is kept for nodes that already run sshd and for
// comparison; it needs an inbound path to every node, costs more than the other
// transports and says less about failures. New clusters use the agent's own
// transports.
//
// The mental model is turned round: here the server dials. A Fleet keeps one SSH
// connection to each node's sshd, has HostKeys check the host key, pings
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
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

// Config configures a Fleet. User, KeyFile and HostKeys are required.
type Config struct {
	// User logs in, with the private key in KeyFile (PEM, no passphrase). The file
	// is read again for each connection, so that a key can be replaced.
	User    string
	KeyFile string
	// HostKeys says which keys nodes may show.
	HostKeys HostKeys
	// Admit may refuse a node by error; nil refuses none. It is asked before a node is
	// dialed, for each stream, and every few seconds besides: a refused node's
	// connection ends, and its streams with it, and it is not dialed before it is
	// admitted again. It must not block, nor call the Fleet.
	Admit func(node string) error
	// Dial makes the connection below SSH; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// MaxStreams bounds the channels that a node may have open at a time; more wait.
	// Zero means tunnel.DefaultMaxStreams.
	MaxStreams int
	Metrics    prometheus.Registerer // nil means none
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

// A Fleet keeps a connection to each node that it is told of and that may be dialed. Its
// methods may be called at the same time.
type Fleet struct {
	cfg     Config
	metrics *metrics

	mu    sync.Mutex       // guards the following
	nodes map[string]*node // by name; nil once Run has ended
	start func(*node)      // nil unless Run runs
}

// New checks c, reads the key once to see that it can be, and starts nothing.
func New(c Config) (*Fleet, error) {
	switch {
	case c.User == "":
		return nil, errors.New("ssh: Config.User is required")
	case c.HostKeys == nil:
		return nil, errors.New("ssh: Config.HostKeys is required")
	}
	if err := CheckKey(c.KeyFile); err != nil {
		return nil, err
	}
	if c.Admit == nil {
		c.Admit = func(string) error { return nil }
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("ssh: register metrics: %w", err)
	}
	return &Fleet{cfg: c, metrics: m, nodes: make(map[string]*node)}, nil
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

// Set has the fleet reach the node of a name at addr, HOST:PORT, from now on. If target
// is not empty it is dialed through the node's sshd once a minute, and what comes of
// it is logged and counted. A node that is already reached at addr keeps its
// connection and its streams; one that was reached elsewhere loses them.
func (f *Fleet) Set(name, addr, target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes == nil {
		return
	}
	n := newNode(f, name, addr, target)
	if old := f.nodes[name]; old != nil {
		if old.addr == addr && old.target == target {
			return
		}
		n.told = old.lastTold()
		old.stop()
	}
	f.nodes[name] = n
	if f.start != nil {
		f.start(n)
	}
}

// Remove has the fleet forget a node: its connection ends, and its streams with it.
func (f *Fleet) Remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[name]; n != nil {
		n.stop()
	}
	delete(f.nodes, name)
}

// Look has the fleet ask at once which nodes are admitted.
func (f *Fleet) Look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		n.wake()
	}
}

// Run keeps the connections until ctx is done, and returns nil once all have ended.
// It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	f.mu.Lock()
	f.start = func(n *node) {
		var nctx context.Context
		nctx, n.stop = context.WithCancel(ctx)
		wg.Go(func() { n.run(nctx) })
		if n.target != "" {
			wg.Go(func() { n.check(nctx) })
		}
	}
	for _, n := range f.nodes {
		f.start(n)
	}
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	f.nodes = nil
	f.mu.Unlock()
	wg.Wait()
	return nil
}

// DialContext has the sshd of the node of a name connect to addr. A host that is the
// node's name means the node's loopback, where a kubelet in this mode listens; HOST%NODE
// is HOST. ctx bounds the dial, not the stream's life; without a deadline it takes at
// most tunnel.DefaultDialTimeout. While the node is being connected to it waits, as it
// does before Run; when that has failed it says so at once. Errors unwrap to
// *tunnel.DialError. The connection is a tunnel.Stream, which the caller owns.
func (f *Fleet) DialContext(ctx context.Context, name, network, addr string) (net.Conn, error) {
	n, err := f.node(name)
	if err != nil {
		f.metrics.dialed(err, 0)
		return nil, tunnel.NewDialError(addr, err)
	}
	st, err := n.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// Ready waits until there is a connection to the node of a name, or says why there is
// none.
func (f *Fleet) Ready(ctx context.Context, name string) error {
	n, err := f.node(name)
	if err == nil {
		_, err = n.current(ctx)
	}
	return err
}

func (f *Fleet) node(name string) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("%w: node %s is not reached by ssh", tunnel.NoNode, name)
}
