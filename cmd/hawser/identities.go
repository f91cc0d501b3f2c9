// Which keys hold the nodes' names: what the API server and the hub ask.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

const (
	// refusedAgain is when an agent whose key does not hold its name is asked to come
	// back: somebody may have allowed it meanwhile.
	refusedAgain = 30 * time.Second
	// unsureAgain is that time when the server cannot tell yet.
	unsureAgain = 2 * time.Second
)

// identities answer by the Keeper, which is made when there is an API server to ask,
// and that is made with them.
type identities struct{ keeper *nodekeys.Keeper }

// Admit implements kubeauth.Names.
func (i *identities) Admit(ctx context.Context, name string, k nodekeys.Key) error {
	return i.keeper.Admit(ctx, name, k)
}

// Watch implements kubeauth.Tenure.
func (i *identities) Watch(ctx context.Context, name string, k nodekeys.Key) (context.Context, func()) {
	return i.keeper.Watch(ctx, name, k)
}

// AdmitPods implements kubeauth.Names.
func (i *identities) AdmitPods(ctx context.Context, name string, issued func() time.Time) error {
	return i.keeper.AdmitPods(ctx, name, issued)
}

// WatchPods implements kubeauth.Tenure.
func (i *identities) WatchPods(ctx context.Context, name string) (context.Context, func()) {
	return i.keeper.WatchPods(ctx, name)
}

// admitSession is the hub's Admit.
func (i *identities) admitSession(ctx context.Context, node string, p tunnel.Peer) error {
	err := i.keeper.Admit(ctx, node, nodekeys.KeyOf(p.TLS.PeerCertificates[0]))
	var refused *nodekeys.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return server.Refuse(tunnel.Revoked, refusedAgain, err.Error())
	default:
		return server.Refuse(tunnel.Busy, unsureAgain, err.Error())
	}
}

// admitName says whether the server may reach a node that shows it no certificate: not
// if its name has been taken from whoever held it. The error wraps Revoked, or Busy
// while that is not known yet.
func (i *identities) admitName(name string) error {
	err := nodekeys.ErrNotReady
	if i.keeper != nil {
		err = i.keeper.Barred(name)
	}
	var refused *nodekeys.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("%w: %w", tunnel.Revoked, err)
	default:
		return fmt.Errorf("%w: %w", tunnel.Busy, err)
	}
}

// keep makes the Keeper. What a node has begun with a key that has lost its name is
// ended in the hub as well. vouched says that somebody else decides who is a node.
func (t *tunnels) keep(client kubernetes.Interface, nodes cache.SharedIndexInformer, vouched bool) (err error) {
	t.names.keeper, err = nodekeys.New(nodekeys.Config{
		Client: client, Nodes: nodes, Vouched: vouched, Log: t.log, Contain: contain(t.log),
		Ended: func(name string, holds func(nodekeys.Key) bool, why error) {
			t.hub.End(name, func(p tunnel.Peer) bool {
				return p.TLS == nil || len(p.TLS.PeerCertificates) == 0 || !holds(nodekeys.KeyOf(p.TLS.PeerCertificates[0]))
			}, server.Refuse(tunnel.Revoked, refusedAgain, why.Error()))
			t.ssh.look()
		},
	})
	return err
}

// contain has panics cost what they are about, as those of controllers do.
func contain(log *slog.Logger) func(what string, f func()) bool {
	return func(what string, f func()) bool {
		return loop.Contain(log, func() string { return what }, f)
	}
}
