// The server's own certificates: renewed when they are due, and when somebody has put
// another authority in the place of theirs.

package main

import (
	"context"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	reloading "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/client-go/transport"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
)

const (
	// renewEvery is how often the server looks whether its own certificates are due.
	renewEvery = time.Hour
	// clientsFollow is how often client-go looks at the certificates of the controllers.
	clientsFollow = 5 * time.Second
	// encryptionFollow is how often the library looks at the encryption configuration.
	encryptionFollow = 10 * time.Second
)

// A renewal keeps the server's certificates and the administrator's kubeconfig.
type renewal struct {
	o    *serverOptions
	keys *pki.PKI
	log  *slog.Logger
	due  chan struct{} // has one in it when an authority is another
	ends *auth.ExpiryWatch
	then func() error // called after each time; nil for nothing
}

// keepRenewed renews what the authorities of those names have signed.
func keepRenewed(keys *pki.PKI, files *auth.Files, names []string, log *slog.Logger) (*renewal, error) {
	r := &renewal{keys: keys, log: log, due: make(chan struct{}, 1)}
	for _, name := range names {
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
	return r, nil
}

// newRenewal writes the kubeconfig.
func newRenewal(o *serverOptions, keys *pki.PKI, files *auth.Files, log *slog.Logger) (*renewal, error) {
	transport.CertCallbackRefreshDuration, reloading.EncryptionConfigFileChangePollDuration = clientsFollow, encryptionFollow
	r, err := keepRenewed(keys, files, []string{pki.CA, pki.ClientCA, pki.KubeletCA, pki.FrontProxyCA}, log)
	if err != nil {
		return nil, err
	}
	r.o, r.then = o, r.writeKubeconfig
	certificates, err := r.certificates(files)
	if err != nil {
		return nil, err
	}
	r.ends = watchEnds(certificates, metricsRegisterer(), log)
	return r, r.writeKubeconfig()
}

// watchEnds tells in metrics when certificates end, and warns while what it returns runs.
func watchEnds(certificates []auth.Expiring, metrics prometheus.Registerer, log *slog.Logger) *auth.ExpiryWatch {
	for _, c := range certificates {
		metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: auth.ExpirationMetric, Help: auth.ExpirationHelp, ConstLabels: prometheus.Labels{"name": c.Name},
		}, c.Ends))
	}
	return auth.NewExpiryWatch(log, certificates...)
}

// expiringPair is a certificate with its key.
func expiringPair(files *auth.Files, name, cert, key string) (auth.Expiring, error) {
	pair, err := files.KeyPair(cert, key)
	if err != nil {
		return auth.Expiring{}, err
	}
	return auth.Expiring{Name: name, Now: func() *x509.Certificate { return pair.Certificate().Leaf }}, nil
}

// expiringAuthority is the certificate of a file of authorities that is the next to end.
func expiringAuthority(files *auth.Files, name, file string) (auth.Expiring, error) {
	list, err := files.Bundle(file)
	if err != nil {
		return auth.Expiring{}, err
	}
	return auth.Expiring{Name: name, Now: func() *x509.Certificate { return nextToEnd(list.Certificates(), time.Now()) }}, nil
}

// nextToEnd is the authority of a list that is the next to end. One that has ended, or has a
// successor of the same name, does not count, unless all have ended.
func nextToEnd(list []*x509.Certificate, now time.Time) *x509.Certificate {
	last := map[string]*x509.Certificate{} // by name
	for _, c := range list {
		if had := last[string(c.RawSubject)]; had == nil || c.NotAfter.After(had.NotAfter) {
			last[string(c.RawSubject)] = c
		}
	}
	var next *x509.Certificate
	for _, c := range last {
		ended := c.NotAfter.Before(now)
		switch {
		case next == nil, next.NotAfter.Before(now) && c.NotAfter.After(next.NotAfter), !ended && c.NotAfter.Before(next.NotAfter):
			next = c
		}
	}
	return next
}

// certificates are all that this process uses. The port of the CONNECT front end shows
// that of the API.
func (r *renewal) certificates(files *auth.Files) ([]auth.Expiring, error) {
	var all []auth.Expiring
	add := func(e auth.Expiring, err error) error {
		all = append(all, e)
		return err
	}
	for _, name := range []string{
		pki.CA, pki.ClientCA, pki.KubeletCA, pki.FrontProxyCA,
		pki.APIServer, pki.KubeletClient, pki.ConnectClient, pki.Admin, pki.ControllerManager, pki.Scheduler, pki.FrontProxyClient,
	} {
		if err := add(expiringPair(files, name, r.keys.Path(name, false), r.keys.Path(name, true))); err != nil {
			return nil, err
		}
	}
	if cert := r.o.store.certFile; cert != "" {
		if err := add(expiringPair(files, "etcd-client", cert, r.o.store.keyFile)); err != nil {
			return nil, err
		}
	}
	for name, file := range map[string]string{"etcd-ca": r.o.store.caFile, "requestheader-client-ca": r.o.accounts.proxies.ClientCAFile, "kubelet-certificate-authority": r.o.beside.kubeletCA} {
		if file == "" {
			continue
		}
		if err := add(expiringAuthority(files, name, file)); err != nil {
			return nil, err
		}
	}
	return all, nil
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
		if err == nil && r.then != nil {
			err = r.then()
		}
		if err != nil {
			r.log.Error("renew the server's certificates", "err", err)
		}
	}
}
