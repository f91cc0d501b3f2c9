// Scan: asking an sshd for its host keys, as an administrator does before pinning.

package hostkeys

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"
)

// scanTimeout bounds the wait for a key.
const scanTimeout = 15 * time.Second

// errSeen ends a handshake that was begun only to see the host key.
var errSeen = errors.New("host key seen")

// Scan asks the sshd at addr, HOST:PORT, for all its host keys, and trusts it with
// nothing. The first is the one that it shows to those who take any.
func Scan(ctx context.Context, addr string) ([]Key, error) {
	var keys []Key
	left, _ := algorithms()
	for len(left) > 0 {
		key, err := ask(ctx, addr, left)
		var none *ssh.AlgorithmNegotiationError
		switch {
		case errors.As(err, &none) && len(keys) > 0:
			return keys, nil // it has no other
		case err != nil:
			return nil, fmt.Errorf("ask %s for its host key: %w", addr, err)
		}
		keys = append(keys, key)
		left = slices.DeleteFunc(left, func(a string) bool { return keyType(a) == key.Type() })
	}
	return keys, nil
}

// ask begins a handshake with the sshd at addr and ends it when it has shown a key
// of one of algorithms.
func ask(ctx context.Context, addr string, algorithms []string) (shown Key, err error) {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return Key{}, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	_, _, _, err = ssh.NewClientConn(c, addr, &ssh.ClientConfig{
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			shown = Key{key}
			return errSeen
		},
	})
	if errors.Is(err, errSeen) {
		err = nil
	}
	return shown, err
}
