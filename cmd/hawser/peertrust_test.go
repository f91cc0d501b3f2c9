// Tests of whom a hub takes for another hub.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/controlplane/servers"
)

// A testHub is as much of a hub as others know it by.
type testHub struct {
	keys   *pki.PKI
	trust  peerTrust
	lease  servers.Server
	listen *tls.Config
}

// newTestHub makes one whose agents' authority is agents.
func newTestHub(t *testing.T, id string, agents *pkitest.Authority) *testHub {
	t.Helper()
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: []string{"localhost", peerName}, HubOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	h, files := &testHub{keys: keys}, &auth.Files{}
	own, err := ownAuthorities(keys, files)
	if err != nil {
		t.Fatal(err)
	}
	h.lease = servers.Server{ID: id, Authorities: own()}
	pair, err := files.KeyPair(keys.Path(pki.Hub, false), keys.Path(pki.Hub, true))
	if err != nil {
		t.Fatal(err)
	}
	h.listen = h.trust.listener(auth.ServerTLS(pair.GetCertificate, func() (*x509.CertPool, error) { return agents.Pool(), nil }), pair)
	return h
}

// handshake is what each end makes of the other.
func handshake(t *testing.T, server, client *tls.Config) (asServer, asClient error) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // a pipe has no room for what both write at once
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	its, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- tls.Server(its, server).HandshakeContext(context.WithoutCancel(t.Context()))
		_ = its.Close()
	}()
	c := tls.Client(mine, client)
	if asClient = c.HandshakeContext(t.Context()); asClient == nil {
		_, _ = c.Read(make([]byte, 1)) // what the server makes of the certificate comes after the handshake
	}
	_ = mine.Close()
	return <-done, asClient
}

// TestWhoIsAHub: hubs take each other for who they are by the authorities in their Leases,
// each for itself alone. None makes agents or other hubs, and the authority of agents makes
// no hubs.
func TestWhoIsAHub(t *testing.T) {
	cluster := pkitest.New(t, "cluster")
	a, b, c := newTestHub(t, "a", cluster), newTestHub(t, "b", cluster), newTestHub(t, "c", cluster)
	all := []servers.Server{a.lease, b.lease, {ID: "broken", Authorities: "none"}}
	for _, h := range []*testHub{a, b} {
		h.trust.set(all, slog.New(slog.DiscardHandler))
	}
	shows := func(h *testHub, id string) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return shownToPeers(id, h.keys)
	}
	issued := func(ca *pkitest.Authority, cn, org string) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert := ca.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: cn, Organization: []string{org}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	ofB := pkitest.Load(t, b.keys.Path(pki.ClientCA, false), b.keys.Path(pki.ClientCA, true))
	falseB := issued(cluster, auth.ServerUserPrefix+"b", auth.ServersGroup)
	node, nodes := auth.NodeUserPrefix+"n", auth.NodesGroup
	for _, tc := range []struct {
		name, calls string
		shows       func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
		ok          bool
	}{
		{"a hub", peerName, shows(b, "b"), true},
		{"a hub as another one", peerName, shows(b, "a"), false},
		{"a hub as one that is not there", peerName, shows(c, "c"), false},
		{"a hub whose Lease makes no sense", peerName, shows(c, "broken"), false},
		{"a hub among agents", "localhost", shows(b, "b"), false},
		{"a hub's agent", "localhost", issued(ofB, node, nodes), false},
		{"a hub's agent among hubs", peerName, issued(ofB, node, nodes), false},
		{"an agent", "localhost", issued(cluster, node, nodes), true},
		{"an agent among hubs", peerName, issued(cluster, node, nodes), false},
		{"a hub of the cluster's authority", peerName, falseB, false},
		{"the same among agents", "localhost", falseB, false},
	} {
		tickets := tls.NewLRUClientSessionCache(1)
		for range 2 { // the second may resume the first
			conf := &tls.Config{InsecureSkipVerify: true, ServerName: tc.calls, GetClientCertificate: tc.shows, ClientSessionCache: tickets}
			if err, _ := handshake(t, a.listen, conf); (err == nil) != tc.ok {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	}
	toA := b.trust.client(shows(b, "b"))
	conf, err := toA("a")
	if err != nil {
		t.Fatal(err)
	}
	if here, there := handshake(t, a.listen, conf); here != nil || there != nil {
		t.Errorf("two hubs: %v, %v", here, there)
	}
	if _, there := handshake(t, c.listen, conf); there == nil {
		t.Error("another hub passes for a")
	}
	if _, err := toA("c"); err == nil {
		t.Error("a hub is dialed that is not there")
	}
}
