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

// scanPauses are the pauses before an sshd that has shown a key is asked again: it may hang up on a
// connection while it has not done with the one before (sshd_config(5), MaxStartups). They are never
// changed.
var scanPauses = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}

// errSeen ends a handshake that was made only to read the host key.
var errSeen = errors.New("host key seen")

// Scan reads the host keys of the sshd at addr, HOST:PORT, and sends it no secret. The first is
// the key that it uses for clients that accept any. Each takes a connection; Scan makes no more
// once enough returns true for a key. Nil means that all are read. With an error it returns the
// keys that were shown before.
func Scan(ctx context.Context, addr string, enough func(Key) bool) ([]Key, error) {
	var keys []Key
	left, _ := algorithms()
	for len(left) > 0 {
		began := time.Now()
		key, err := ask(ctx, addr, left)
		for _, pause := range scanPauses {
			if err == nil || len(keys) == 0 || noOther(err) || time.Since(began) >= scanTimeout {
				break
			}
			select {
			case <-time.After(pause):
				key, err = ask(ctx, addr, left)
			case <-ctx.Done():
			}
		}
		switch {
		case noOther(err) && len(keys) > 0:
			return keys, nil
		case err != nil:
			return keys, fmt.Errorf("ask %s for its host key: %w", addr, err)
		}
		keys = append(keys, key)
		if enough != nil && enough(key) {
			return keys, nil
		}
		left = slices.DeleteFunc(left, func(a string) bool { return keyType(a) == key.Type() })
	}
	return keys, nil
}

// noOther reports whether err says that the sshd has none of the keys that it was asked for.
func noOther(err error) bool { return errors.As(err, new(*ssh.AlgorithmNegotiationError)) }

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
	switch {
	case errors.Is(err, errSeen):
		err = nil
	case ctx.Err() != nil: // the handshake failed of that
		err = context.Cause(ctx)
	}
	return shown, err
}
