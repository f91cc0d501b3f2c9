// The ssh roles: a kept ssh connection with a CONNECT front end, and an sshd.

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/cmd/internal/bench/sshd"
	"github.com/hawser-project/hawser/server/sshnodes"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// newSSHControl makes as many ssh connections as the order says, once they are
// waited for. The first serves a CONNECT front end.
func newSSHControl(ctx context.Context, o order) (*part, error) {
	line, err := os.ReadFile(filepath.Join(o.Dir, sshd.HostKey+".pub"))
	if err != nil {
		return nil, fmt.Errorf("read host key: %w", err)
	}
	// One line stands for all nodes.
	file := filepath.Join(o.Dir, "known_hosts")
	if err = os.WriteFile(file, append([]byte("* "), line...), 0o600); err != nil {
		return nil, fmt.Errorf("write host keys: %w", err)
	}
	known, err := hostkeys.Open(file, nil)
	if err != nil {
		return nil, err
	}
	fleet, err := sshnodes.New(sshnodes.Config{SSH: overssh.Config{User: o.User, KeyFile: filepath.Join(o.Dir, sshd.UserKey), HostKeys: known}})
	if err != nil {
		return nil, err
	}
	p := &part{run: []func(context.Context) error{fleet.Run}}
	p.wait = func(ctx context.Context, n int) error {
		var errs []error
		for i := range n {
			fleet.Set(nodeName(i+1), o.To, "")
			errs = append(errs, fleet.Ready(ctx, nodeName(i+1)))
		}
		return errors.Join(errs...)
	}
	return p, p.front(ctx, o.Socket, func(ctx context.Context, network, addr string) (net.Conn, error) {
		return fleet.Dial(ctx, nodeName(1), tunnel.Dial{Network: network, Addr: addr})
	})
}

// newSSHNode starts an sshd.
func newSSHNode(ctx context.Context, o order) (*part, error) {
	s, err := sshd.Start(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	return &part{
		answer: answer{Addr: s.Addr, User: s.User, Kind: s.Kind},
		run:    []func(context.Context) error{s.Run}, processes: s.Processes,
	}, nil
}
