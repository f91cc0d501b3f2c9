// Scan: reading an sshd's host keys, as an administrator does before pinning.

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

// errSeen ends a handshake that was made only to read the host key.
var errSeen = errors.New("host key seen")

// Scan reads all host keys of the sshd at addr, HOST:PORT, and sends it no secret. The
// first is the key that it uses for clients that accept any.
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

// ask starts a handshake with the sshd at addr, with algorithms alone, and ends it when it
// has got the host key.
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
