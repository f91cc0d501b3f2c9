// This file is a node whose certificate another program renews, such as a kubelet. Its
// files are followed.

package bootstrap

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser/auth"
)

// GivenFiles are the PEM files of an identity. Each may be replaced at any time.
type GivenFiles struct {
	Cert, Key, CA string
	// Kubeconfig is the file that names the others, and that contains what none is named for.
	// Empty means that there is no such file.
	Kubeconfig string
}

// A given has the followed files of an identity.
type given struct {
	files *auth.Files
	pair  *auth.KeyPair
	cas   *auth.Authorities
}

// Given returns the identity in files. A Rotation follows them, and renews no client
// certificate. Other state is in the data directory.
func Given(c Config, files GivenFiles) (*Identity, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	g := &given{files: &auth.Files{Log: c.Log}}
	if err := g.follow(files); err != nil {
		return nil, err
	}
	id := &Identity{cfg: c, given: g}
	id.loadTunnel()
	id.takeAuthorities()
	return id, id.takePair()
}

func (g *given) follow(from GivenFiles) (err error) {
	if from.Kubeconfig != "" {
		return g.followKubeconfig(from)
	}
	if g.pair, err = g.files.KeyPair(from.Cert, from.Key); err != nil {
		return err
	}
	g.cas, err = g.files.Authorities(from.CA)
	return err
}

// takePair uses the present certificate, if it is this node's.
func (i *Identity) takePair() error {
	pair := i.given.pair.Certificate()
	name, err := auth.NodeName(pair.Leaf)
	if err == nil && name != i.cfg.NodeName {
		err = fmt.Errorf("it is of node %q, not %q (--node-name)", name, i.cfg.NodeName)
	}
	if err != nil {
		return fmt.Errorf("the client certificate is not the node's: %w", err)
	}
	i.cert.Store(pair)
	return nil
}

// takeAuthorities uses the file's content as the authorities of the API server. Those that
// were read from the cluster stay.
func (i *Identity) takeAuthorities() {
	i.trusting.Lock()
	defer i.trusting.Unlock()
	next := newTrust(i.given.cas.Certificates(), nil, nil)
	if now := i.trust.Load(); now != nil {
		next.clients, next.clientPool, next.published = now.clients, now.clientPool, now.published
		next.kubelets, next.asked = now.kubelets, now.asked
	}
	i.trust.Store(next)
}

// followGiven uses replaced files until ctx is done.
func (r *Rotation) followGiven(ctx context.Context) {
	id := r.cfg.Identity
	defer id.given.pair.Changed(func() {
		if err := id.takePair(); err != nil {
			r.cfg.Log.Warn("what was read before stays in use", "node", id.NodeName(), "err", err)
			return
		}
		r.client.renewed()
	})()
	defer id.given.cas.Changed(func() {
		id.takeAuthorities()
		r.reconnect()
	})()
	_ = id.given.files.Run(ctx) // it ends with ctx alone
}
