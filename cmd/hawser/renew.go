// The server's own certificates: renewed when they are due, and when somebody has put
// another authority in the place of theirs.

package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/client-go/transport"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
)

const (
	// renewEvery is how often the server looks whether its own certificates are due.
	renewEvery = time.Hour
	// clientsFollow is how often client-go looks at the certificates of the controllers.
	clientsFollow = 5 * time.Second
)

// A renewal keeps the server's certificates and the administrator's kubeconfig.
type renewal struct {
	o    *serverOptions
	keys *pki.PKI
	log  *slog.Logger
	due  chan struct{} // has one in it when an authority is another
}

// newRenewal writes the kubeconfig.
func newRenewal(o *serverOptions, keys *pki.PKI, files *auth.Files, log *slog.Logger) (*renewal, error) {
	transport.CertCallbackRefreshDuration = clientsFollow
	r := &renewal{o: o, keys: keys, log: log, due: make(chan struct{}, 1)}
	for _, name := range []string{pki.CA, pki.ClientCA, pki.KubeletCA} {
		pair, err := files.KeyPair(keys.Path(name, false), keys.Path(name, true))
		if err != nil {
			return nil, err
		}
		pair.Changed(func() {
			select {
			case r.due <- struct{}{}:
			default:
			}
		})
	}
	return r, r.writeKubeconfig()
}

func (r *renewal) writeKubeconfig() error {
	return r.keys.WriteKubeconfig(filepath.Join(r.o.dataDir, adminKubeconfig), r.o.localURL(), pki.Admin)
}

// run renews until ctx is done.
func (r *renewal) run(ctx context.Context) error {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.due:
		}
		err := r.keys.Renew()
		if err == nil {
			err = r.writeKubeconfig()
		}
		if err != nil {
			r.log.Error("renew the server's certificates", "err", err)
		}
	}
}
