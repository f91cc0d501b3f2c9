// The ssh roles: a kept ssh connection with a CONNECT front end, and an sshd.

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/cmd/internal/bench/sshd"
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
	known, err := hostkeys.Open(file)
	if err != nil {
		return nil, err
	}
	p := new(part)
	var links []*sshLink
	for n := range o.Count {
		d, err := overssh.New(overssh.Config{
			Node: nodeName(n + 1), Addr: o.To, User: o.User,
			KeyFile: filepath.Join(o.Dir, sshd.UserKey), HostKeys: known,
		})
		if err != nil {
			return nil, err
		}
		l := &sshLink{Dialer: d, wanted: make(chan struct{})}
		links = append(links, l)
		p.run = append(p.run, l.run)
	}
	p.wait = func(ctx context.Context, n int) error {
		var errs []error
		for _, l := range links[:n] {
			l.once.Do(func() { close(l.wanted) })
			errs = append(errs, l.Check(ctx, ""))
		}
		return errors.Join(errs...)
	}
	return p, p.front(ctx, o.Socket, links[0].DialContext)
}

// An sshLink is a connection that is made when it is wanted.
type sshLink struct {
	*overssh.Dialer
	once   sync.Once
	wanted chan struct{}
}

func (l *sshLink) run(ctx context.Context) error {
	select {
	case <-l.wanted:
		return l.Run(ctx)
	case <-ctx.Done():
		return nil
	}
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
