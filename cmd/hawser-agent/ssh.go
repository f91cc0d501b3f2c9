// The legacy mode, --transport ssh: no tunnel. The kubelet API listens on the
// node's loopback, where the server's connections come out of the node's sshd, and
// the node's own requests go straight to the server's port.

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// serverTimeout bounds an attempt to connect to one of the servers.
const serverTimeout = 10 * time.Second

// checkSSH refuses flags that mean nothing in the chosen mode.
func (o *options) checkSSH(f *pflag.FlagSet) error {
	if o.transport != setup.SSH {
		if f.Changed("kubelet-port") {
			return errors.New("--kubelet-port needs --transport ssh: otherwise the kubelet API listens on no port")
		}
		return nil
	}
	if o.kubeletPort < 1 || o.kubeletPort > 65535 {
		return fmt.Errorf("--kubelet-port %d: want 1 to 65535", o.kubeletPort)
	}
	if f.Changed("allow-target") {
		return errors.New("--allow-target has no effect with --transport ssh: what the server may reach is decided by PermitOpen in sshd_config")
	}
	return nil
}

// annotations say how the node is to be reached. A node that has gone back to a
// tunnel takes the mark away.
func (o *options) annotations() map[string]string {
	if o.transport == setup.SSH {
		return map[string]string{setup.TransportAnnotation: setup.SSH}
	}
	return map[string]string{setup.TransportAnnotation: ""}
}

// A directDialer connects to one of several servers, without a tunnel.
type directDialer struct {
	servers []string // HOST:PORT
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	last    atomic.Uint32 // index of the server to begin with
}

// DialContext tries the server that answered last, and then the others in turn.
func (s *directDialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	var errs []error
	first := s.last.Load()
	for i := range uint32(len(s.servers)) {
		at := (first + i) % uint32(len(s.servers))
		one, cancel := context.WithTimeout(ctx, serverTimeout)
		c, err := s.dial(one, "tcp", s.servers[at])
		cancel()
		if err == nil {
			s.last.CompareAndSwap(first, at)
			return c, nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// Suspect has the next dial begin with the server after the one that answered last, for when
// requests through that fail.
func (s *directDialer) Suspect() {
	last := s.last.Load()
	s.last.CompareAndSwap(last, (last+1)%uint32(len(s.servers)))
}
