// Package overssh reaches a node through the OpenSSH server that runs on it, with the
// client of golang.org/x/crypto/ssh, as it is.
//
// The mode is deprecated: it is the way clusters reached their nodes before there
// were agents that call home. It is kept for nodes that already run sshd and for
// comparison; it needs an inbound path to every node, costs more than the other
// transports and says less about failures. New clusters use the agent's own
// transports.
//
// The mental model is turned round: here the server dials. A Session is one SSH
// connection to a node's sshd, and each Dial on it a direct-tcpip channel (RFC 4254,
// section 7.2). The node runs nothing of ours, so this is no tunnel.Transport: it is not
// symmetric, there is no control stream and no dial frame, and a node cannot open a
// stream to the server. Which nodes have a session, and when they get another one, is
// for package server/sshnodes to say. Capabilities declares what sessions can do, and package
// tunneltest runs what is declared, from the dialing end. What the streams promise is what a
// tunnel.Stream promises, as far as SSH can say it:
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
// Memory is bounded by MaxStreams: a stream holds at most 128 KiB to send, 80 KiB
// received and the 2 MiB window that the library grants each channel. A stream that waits
// holds 4 KiB: a channel has to be read to learn whether there is data.
package overssh

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// Capabilities are those of each Session. They are never changed.
var Capabilities = tunnel.Capabilities{HalfClose: true}

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

// Config says how to log in to nodes. User, KeyFile and HostKeys are required.
type Config struct {
	// User logs in, with the private key in KeyFile (PEM, no passphrase, closed to others if
	// this process's user owns it). The file is read again for each session, so that a key can
	// be replaced.
	User    string
	KeyFile string
	// HostKeys says which keys nodes may show.
	HostKeys HostKeys
	// Dial makes the connection below SSH; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// MaxStreams bounds the channels that a session may have open at a time; more wait.
	// Zero means tunnel.DefaultMaxStreams.
	MaxStreams int
	// RTT is told of each round trip; nil if nobody asks. It must return at once.
	RTT func(time.Duration)
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

// Check says what is wrong with c, as far as that can be seen without a node.
func (c Config) Check() error {
	switch {
	case c.User == "":
		return errors.New("ssh: Config.User is required")
	case c.HostKeys == nil:
		return errors.New("ssh: Config.HostKeys is required")
	}
	return CheckKey(c.KeyFile)
}

// CheckKey says what is wrong with a file for Config.KeyFile.
func CheckKey(path string) error {
	_, err := readKey(path)
	return err
}

// readKey reads a private key. As OpenSSH does, it refuses one that this process's user owns and
// that others may use.
func readKey(path string) (ssh.Signer, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read ssh key: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read ssh key: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("ssh key %s is open to other users (mode %04o): chmod 600 %s, or mount its Secret with defaultMode: 0400", path, info.Mode().Perm(), path)
	}
	key, err := ssh.ParsePrivateKey(pem)
	switch {
	case errors.As(err, new(*ssh.PassphraseMissingError)):
		return nil, fmt.Errorf("ssh key %s has a passphrase, which nobody can type here: remove it with ssh-keygen -p", path)
	case err != nil:
		return nil, fmt.Errorf("ssh key %s: %w", path, err)
	}
	return key, nil
}
