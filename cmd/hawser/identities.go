// Which keys hold the nodes' names: what the API server and the hub ask.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
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
func (i *identities) AdmitPods(ctx context.Context, name string) error {
	return i.keeper.AdmitPods(ctx, name)
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
// ended in the hub as well.
func (t *tunnels) keep(client kubernetes.Interface, nodes cache.SharedIndexInformer) (err error) {
	t.names.keeper, err = nodekeys.New(nodekeys.Config{
		Client: client, Nodes: nodes, Log: t.log, Contain: contain(t.log),
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

// keepBeside writes down what becomes of the names in a cluster whose API server is
// another process's, until ctx is done. Whom that server believes is its own affair.
func keepBeside(ctx context.Context, client kubernetes.Interface, log *slog.Logger) error {
	f := informers.NewSharedInformerFactory(client, 0)
	nodes := f.Core().V1().Nodes().Informer()
	if err := nodes.SetTransform(onlyNames); err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	keeper, err := nodekeys.New(nodekeys.Config{Client: client, Nodes: nodes, Log: log, Contain: contain(log)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	f.Start(ctx.Done())
	defer f.Shutdown()
	defer cancel()
	return keeper.Run(ctx)
}

// onlyNames leaves of a Node what tells it from others.
func onlyNames(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}, nil
	}
	return o, nil
}
