// Scan: asking an sshd for its host keys, as an administrator does before pinning.

package overssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// A dialFunc makes connections.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// errSeen ends a handshake that was begun only to see the host key.
var errSeen = errors.New("host key seen")

// ShownBy asks the sshd at addr, HOST or HOST:PORT, which key it shows to those
// who take any, and trusts it with nothing. It is what an administrator compares
// before Pin. A nil dial means a net.Dialer.
func ShownBy(ctx context.Context, addr string, dial dialFunc) (HostKey, error) {
	return ask(ctx, addr, dial, algorithmsFor(nil))
}

// FindKey asks the sshd at addr for one host key after the other, until it shows
// that whose fingerprint, SHA256:…, is given. The error names those it has shown.
func FindKey(ctx context.Context, addr, fingerprint string, dial dialFunc) (HostKey, error) {
	var shown []string
	left := algorithmsFor(nil)
	for len(left) > 0 {
		key, err := ask(ctx, addr, dial, left)
		var none *ssh.AlgorithmNegotiationError
		if errors.As(err, &none) && len(shown) > 0 {
			break // it has no other
		}
		if err != nil {
			return HostKey{}, err
		}
		if key.Fingerprint() == fingerprint {
			return key, nil
		}
		shown = append(shown, key.words())
		left = slices.DeleteFunc(left, func(a string) bool { return keyType(a) == key.Type() })
	}
	return HostKey{}, fmt.Errorf("%s has no host key %s: it shows %s", addr, fingerprint, strings.Join(shown, ", "))
}

// ask begins a handshake with the sshd at addr and ends it when it has shown a key
// of one of algorithms.
func ask(ctx context.Context, addr string, dial dialFunc, algorithms []string) (HostKey, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, DefaultPort)
	}
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultConnectTimeout)
	defer cancel()
	c, err := dial(ctx, "tcp", addr)
	if err != nil {
		return HostKey{}, fmt.Errorf("ask %s for its host key: %w", addr, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	var shown HostKey
	_, _, _, err = ssh.NewClientConn(c, addr, &ssh.ClientConfig{
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			shown = HostKey{key: key}
			return errSeen
		},
	})
	if !errors.Is(err, errSeen) {
		return HostKey{}, fmt.Errorf("ask %s for its host key: %w", addr, err)
	}
	return shown, nil
}
