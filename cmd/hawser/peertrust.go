// How hubs beside one cluster know each other: each by authorities of its own, which stand
// in its Lease.

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/servers"
)

// peerName is what hubs call each other, in TLS. It is in the certificate of a hub's own
// authority.
const peerName = "hub.hawser.dev"

// A peerTrust has the authorities of the other hubs. One may sign for itself alone: it
// makes no agents and no other hubs.
type peerTrust struct {
	mu    sync.Mutex // guards the following
	pools map[string]*x509.CertPool
}

// set takes the hubs that there are. A nil one is of servers that share their authorities.
func (t *peerTrust) set(all []servers.Server, log *slog.Logger) {
	if t == nil {
		return
	}
	pools := make(map[string]*x509.CertPool)
	for _, s := range all {
		list, err := auth.ParseCertificates([]byte(s.Authorities))
		if err != nil {
			log.Warn("another server is not known by any authority", "lease", servers.Namespace+"/"+s.ID, "annotation", servers.Authorities, "err", err)
			continue
		}
		pools[s.ID] = x509.NewCertPool()
		for _, cert := range list {
			pools[s.ID].AddCert(cert)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pools = pools
}

func (t *peerTrust) of(id string) (*x509.CertPool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pool := t.pools[id]; pool != nil {
		return pool, nil
	}
	return nil, fmt.Errorf("there is no server %s with authorities among the Leases of %s", id, servers.Namespace)
}

// client is how this hub, which shows cert, speaks to the one of an ID.
func (t *peerTrust) client(cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) func(id string) (*tls.Config, error) {
	return func(id string) (*tls.Config, error) {
		pool, err := t.of(id)
		if err != nil {
			return nil, err
		}
		return auth.ClientTLS(cert, pool, peerName), nil
	}
}

// listener is conf of a port where agents come, which knows other hubs as well: they call
// it by peerName and are shown own. Who comes like that and is no hub is refused, and so is
// a hub's certificate that the agents' authority has signed.
func (t *peerTrust) listener(conf *tls.Config, own *auth.KeyPair) *tls.Config {
	conf = conf.Clone()
	ofAgents := conf.GetConfigForClient
	conf.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if h.ServerName == peerName {
			return &tls.Config{
				MinVersion: tls.VersionTLS13, GetCertificate: own.GetCertificate,
				ClientAuth: tls.RequireAnyClientCert, VerifyConnection: t.verify, // of resumed sessions, too
			}, nil
		}
		c, err := ofAgents(h)
		if err == nil {
			c.VerifyConnection = notServer
		}
		return c, err
	}
	return conf
}

// verify refuses whoever is not the hub that its certificate says.
func (t *peerTrust) verify(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return auth.ErrNotServer
	}
	id, err := auth.ServerID(cs.PeerCertificates[0])
	if err != nil {
		return err
	}
	pool, err := t.of(id)
	if err != nil {
		return err
	}
	if _, err = cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("server %s: %w", id, err)
	}
	return nil
}

// notServer refuses a certificate that would make an agent another hub.
func notServer(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) > 0 {
		if id, err := auth.ServerID(cs.PeerCertificates[0]); err == nil {
			return errors.New("the authority of agents has signed a certificate of server " + id)
		}
	}
	return nil
}

// ownAuthorities are those by which other hubs know this one: of its serving certificate
// and of its client certificate.
func ownAuthorities(keys *pki.PKI, files *auth.Files) (func() string, error) {
	serving, err := files.Authorities(keys.Path(pki.CA, false))
	if err != nil {
		return nil, err
	}
	clients, err := files.Authorities(keys.Path(pki.ClientCA, false))
	if err != nil {
		return nil, err
	}
	return func() string { return string(slices.Concat(serving.PEM(), clients.PEM())) }, nil
}
