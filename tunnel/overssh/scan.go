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

// errSeen ends a handshake that was begun only to see the host key.
var errSeen = errors.New("host key seen")

// ShownBy asks the sshd at addr, HOST or HOST:PORT, which key it shows to those
// who take any, and trusts it with nothing. It is what an administrator compares
// before Pin.
func ShownBy(ctx context.Context, addr string) (HostKey, error) {
	return ask(ctx, addr, algorithmsFor(nil))
}

// FindKey asks the sshd at addr for one host key after the other, until it shows
// that whose fingerprint, SHA256:…, is given. The error names those it has shown.
func FindKey(ctx context.Context, addr, fingerprint string) (HostKey, error) {
	var shown []string
	left := algorithmsFor(nil)
	for len(left) > 0 {
		key, err := ask(ctx, addr, left)
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
func ask(ctx context.Context, addr string, algorithms []string) (HostKey, error) {
	addr = withPort(addr)
	ctx, cancel := context.WithTimeout(ctx, DefaultConnectTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
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
