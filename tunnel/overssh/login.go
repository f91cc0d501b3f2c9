// Login: what an SSH handshake tells, and why it has failed.

package overssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// publicKey is the only method of authentication that this package has (RFC 4252, 7).
const publicKey = "publickey"

// A login is a handshake with a node's sshd. It is not for use by several goroutines.
type login struct {
	config     Config
	node, addr string
	unverified error                  // why the host key was not accepted; nil if it was
	answered   *ssh.ClientAuthContext // the last answer that did not let this end in; nil if none came
}

// clientConfig is the library's configuration for the login.
func (l *login) clientConfig(key ssh.Signer, algorithms []string) *ssh.ClientConfig {
	return &ssh.ClientConfig{
		User:              l.config.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, shown ssh.PublicKey) error {
			if l.unverified = l.config.HostKeys.Check(l.node, l.addr, shown); l.unverified != nil {
				l.unverified = &HostKeyError{shown, l.unverified}
			}
			return l.unverified
		},
		AuthCallback: func(a *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			l.answered = a
			return nil, nil // the library tries Auth
		},
		ClientVersion: "SSH-2.0-hawser",
	}
}

// failed is why there is no session; err is the library's error.
func (l *login) failed(ctx context.Context, w *wire, err error) error {
	switch {
	case errors.Is(l.unverified, tunnel.Denied):
		return l.unverified // it names node, address and key
	case ctx.Err() != nil:
		return fmt.Errorf("log in to sshd of %s: %w", l.node, context.Cause(ctx))
	case l.unverified == nil && l.answered != nil && w.failure() == nil:
		// The connection works and the host key was accepted: the login has failed.
		return fmt.Errorf("%w: sshd of %s %s: %w", tunnel.Denied, l.node, l.refusal(), err)
	default:
		return fmt.Errorf("log in to sshd of %s: %w", l.node, err)
	}
}

// refusal is how sshd has refused the user, and the remedy.
func (l *login) refusal() string {
	user, key, offered := l.config.User, l.config.KeyFile, l.answered.AllowedMethods
	methods := cmp.Or(strings.Join(offered, ", "), "nothing")
	switch {
	case slices.Contains(l.answered.PartialSuccessMethods, publicKey):
		return fmt.Sprintf("accepts key %s of user %s and then wants %s; set AuthenticationMethods publickey for that user in its sshd_config", key, user, methods)
	case slices.Contains(offered, publicKey) || slices.Contains(l.answered.TriedMethods, publicKey):
		return fmt.Sprintf("refuses user %s with key %s; put its public half into that user's authorized_keys, and check AllowUsers, DenyUsers and PermitRootLogin in its sshd_config", user, key)
	default:
		return fmt.Sprintf("offers user %s no login by public key, only %s; set PubkeyAuthentication yes and AuthenticationMethods publickey for that user in its sshd_config", user, methods)
	}
}
