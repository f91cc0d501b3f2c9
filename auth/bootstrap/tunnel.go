// This file has the authorities of the server's end of the tunnel. If a cluster has an API
// server of its own, the hub is another program with a certificate of another authority.

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
	// tunnelName and tunnelKey are the ConfigMap, in namespace kube-public, and its key with
	// the hub's authority.
	tunnelName, tunnelKey = "hawser-tunnel", "ca.crt"
	// tunnelFile, in DIR/pki, has the authority that was read last. It is empty if there is
	// none.
	tunnelFile = "tunnel-ca.crt"
	// tunnelPatience bounds one read.
	tunnelPatience = 10 * time.Second
)

// TunnelTLS is the configuration of a client that is the node, for the server's end of the
// tunnel. It trusts the authorities of the API server and the hub's own.
func (i *Identity) TunnelTLS() *tls.Config {
	return auth.ClientTLS(i.GetClientCertificate, i.TunnelRoots(), "")
}

// TunnelRoots are the authorities that TunnelTLS trusts now.
func (i *Identity) TunnelRoots() *x509.CertPool {
	list := i.trust.Load().roots
	if tunnel := i.tunnel.Load(); tunnel != nil {
		list = slices.Concat(list, *tunnel)
	}
	return poolOf(list)
}

// TunnelKnown reports whether the hub's authority, or that there is none, was ever read.
func (i *Identity) TunnelKnown() bool { return i.tunnel.Load() != nil }

// RefreshTunnel reads the hub's authority from the API server at the hub's port, and not
// through the tunnel, because the tunnel may need the authority. A hub that does not
// publish one is verified by the cluster's authorities alone. An authority that is known
// stays until the API server says that there is none: to be refused is an error.
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

// askTunnel reads it from one server; the list is empty if there is no such authority.
func (i *Identity) askTunnel(ctx context.Context, server string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	t := i.cfg.transport(i.ClientTLS(i.APIServerName()))
	defer t.CloseIdleConnections()
	m, err := publicMap(ctx, t, server, tunnelName)
	known := i.tunnel.Load()
	if errors.Is(err, errNotPublished) || errors.Is(err, errNotReadable) && (known == nil || len(*known) == 0) {
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

// setTunnel trusts and stores list. It is trusted though it cannot be written, which the next
// call tries again.
func (i *Identity) setTunnel(list []*x509.Certificate) error {
	i.trusting.Lock()
	defer i.trusting.Unlock()
	if was := i.tunnel.Swap(&list); was == nil || !same(*was, list) {
		i.unsaved = true
		if len(list) > 0 {
			i.cfg.Log.Info("the tunnel has an authority of its own", "node", i.NodeName(), "hash", PinOf(list[0]))
		}
	}
	if !i.unsaved {
		return nil
	}
	err := writeFile(i.cfg.path(tunnelFile), encodeCerts(list...), 0o644)
	i.unsaved = err != nil
	return err
}

// loadTunnel reads the stored authorities.
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

// followTunnel follows the hub's authority until ctx is done. A failed connection reads
// it at once.
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
		next = max(wait/2+rand.N(wait), retryAfterIn(err))
	}
}
