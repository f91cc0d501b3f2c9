// This file is whom a node believes at the other end of its tunnel. Beside a cluster
// that has an API server of its own, the hub is another program with a certificate of
// another authority.

package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/hawser-project/hawser/auth"
)

const (
	// tunnelName and tunnelKey are where, in namespace kube-public, a hub says by which
	// authority it is known.
	tunnelName, tunnelKey = "hawser-tunnel", "ca.crt"
	// tunnelFile, in DIR/pki, is what it said last: nothing if there is no such
	// authority.
	tunnelFile = "tunnel-ca.crt"
	// tunnelPatience bounds one attempt to ask.
	tunnelPatience = 10 * time.Second
)

// TunnelTLS is the configuration of a client that is the node, for the server's end of
// the tunnel. Beside the authorities of the API server it believes the hub's own.
func (i *Identity) TunnelTLS() *tls.Config {
	list := i.trust.Load().roots
	if tunnel := i.tunnel.Load(); tunnel != nil {
		list = slices.Concat(list, *tunnel)
	}
	return auth.ClientTLS(i.GetClientCertificate, poolOf(list), "")
}

// TunnelKnown says whether the cluster has ever said by which authority the hub is known,
// or that there is none.
func (i *Identity) TunnelKnown() bool { return i.tunnel.Load() != nil }

// RefreshTunnel asks the API server by which authority the hub is known, at the hub's port
// and not through the tunnel: the tunnel may need the answer. A server that does not
// publish one is known by the cluster's authorities alone.
func (i *Identity) RefreshTunnel(ctx context.Context) error {
	var errs []error
	for _, server := range i.cfg.Servers {
		list, err := i.askTunnel(ctx, server)
		if err == nil {
			return i.setTunnel(list)
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("cannot learn the authority of the tunnel: %w", errors.Join(errs...))
}

// askTunnel asks at one server; the list is empty if there is no such authority.
func (i *Identity) askTunnel(ctx context.Context, server string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	t := i.cfg.transport(i.ClientTLS(i.APIServerName()))
	defer t.CloseIdleConnections()
	m, err := publicMap(ctx, t, server, tunnelName)
	if errors.Is(err, errNotPublished) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := auth.ParseCertificates([]byte(m.Data[tunnelKey]))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap kube-public/%s, key %s: %w", tunnelName, tunnelKey, err)
	}
	return list, nil
}

// setTunnel believes and keeps list.
func (i *Identity) setTunnel(list []*x509.Certificate) error {
	was := i.tunnel.Swap(&list)
	if was != nil && same(*was, list) {
		return nil
	}
	if len(list) > 0 {
		i.cfg.Log.Info("the tunnel has an authority of its own", "node", i.NodeName(), "hash", PinOf(list[0]))
	}
	return writeFile(i.cfg.path(tunnelFile), encodeCerts(list...), 0o644)
}

// loadTunnel reads what was kept.
func (i *Identity) loadTunnel() {
	path := i.cfg.path(tunnelFile)
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	var list []*x509.Certificate
	if info.Size() > 0 {
		if list, err = readCerts(path); err != nil {
			i.cfg.Log.Warn("an authority kept is of no use, asking the server again", "file", tunnelFile, "err", err)
			return
		}
	}
	i.tunnel.Store(&list)
}

// followTunnel learns of another authority until ctx is done. Whoever cannot connect
// asks by itself.
func (r *Rotation) followTunnel(ctx context.Context) {
	var wait time.Duration
	next := r.cfg.Follow*3/4 + rand.N(r.cfg.Follow/2)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		next = r.cfg.Follow*3/4 + rand.N(r.cfg.Follow/2)
		err := r.cfg.Identity.RefreshTunnel(ctx)
		if err == nil || ctx.Err() != nil {
			wait = 0
			continue
		}
		if wait == 0 {
			r.cfg.Log.Warn("will keep trying", "node", r.cfg.Identity.NodeName(), "err", err)
		}
		wait = min(max(2*wait, renewFirst), renewLimit)
		next = max(wait/2+rand.N(wait), asked(err))
	}
}
