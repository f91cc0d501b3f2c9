package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/controlplane/servers"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/peers"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// TestServerToken: a data directory keeps its token, and so its server's name.
func TestServerToken(t *testing.T) {
	dir := t.TempDir()
	first, err := keptIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := keptIdentity(dir); err != nil || again != first {
		t.Errorf("%q, %v, want %q", again, err, first)
	}
	if other, err := keptIdentity(t.TempDir()); err != nil || other == first {
		t.Errorf("%q, %v: another directory has the same", other, err)
	}
	id := defaultServerID(first)
	if err := auth.CheckServerID(id); err != nil || !strings.HasSuffix(id, strings.ToLower(first[:8])) {
		t.Errorf("%q: %v", id, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, identityFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
}

// TestShownToPeers: servers are shown a certificate of the present authority, and none that a clock
// which was ahead has made: others do not believe it yet.
func TestShownToPeers(t *testing.T) {
	now := time.Now()
	dir, next := filepath.Join(t.TempDir(), "pki"), filepath.Join(t.TempDir(), "pki")
	keys, err := pki.Ensure(pki.Config{Dir: dir, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Ensure(pki.Config{Dir: next}); err != nil {
		t.Fatal(err)
	}
	get := shownToPeers("a", keys)
	shown := func() *x509.Certificate {
		t.Helper()
		c, err := get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf
	}
	right := now
	now = right.Add(2 * time.Hour)
	shown()
	if now = right; shown().NotBefore.After(right) {
		t.Error("a certificate is shown that is not valid yet")
	}
	for _, file := range []string{"client-ca.crt", "client-ca.key"} {
		if err := os.Rename(filepath.Join(next, file), filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	if err := keys.Renew(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "client-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	authorities, err := auth.ParseCertificates(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := shown().CheckSignatureFrom(authorities[0]); err != nil {
		t.Errorf("after the authority was replaced: %v", err)
	}
}

// TestServerCertificate: servers that share keys have a certificate each, which no hub
// takes for a node's.
func TestServerCertificate(t *testing.T) {
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := keys.ServerCertificate("a-1")
	if err != nil {
		t.Fatal(err)
	}
	if id, err := auth.ServerID(c.Leaf); err != nil || id != "a-1" {
		t.Errorf("%q, %v", id, err)
	}
	if name, err := auth.NodeName(c.Leaf); err == nil {
		t.Errorf("it is that of node %s", name)
	}
	if _, err := keys.ServerCertificate("a.b"); err == nil {
		t.Error("made one for a name that is none")
	}
}

// TestOwnAddressIsNotDialed: a server whose peer address is this one's cannot be told from it. It is
// not dialed, and the log has the remedy once.
func TestOwnAddressIsNotDialed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		dialed := make(map[string]int)
		hub, err := server.New(server.Config{Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("here")}})
		if err != nil {
			t.Fatal(err)
		}
		p := &peering{self: servers.Server{ID: "a", Address: "127.0.0.1:8132"}, log: slog.New(slog.NewTextHandler(&log, nil))}
		var mu sync.Mutex
		p.Peers, err = peers.New(peers.Config{ID: "a", Hub: func() *server.Hub { return hub }, Dial: func(_ context.Context, peer peers.Peer, _ bool) (tunnel.Session, error) {
			mu.Lock()
			defer mu.Unlock()
			dialed[peer.ID]++
			return nil, errors.New("no")
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.run(ctx) }()
		for range 2 {
			p.changed([]servers.Server{{ID: "b", Address: "127.0.0.1:8132"}, {ID: "c", Address: "10.0.0.3:8132"}})
			time.Sleep(10 * time.Second) // the bubble's clock
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if dialed["b"] > 0 || dialed["c"] == 0 {
			t.Errorf("dialed %v", dialed)
		}
		if n := strings.Count(log.String(), "--peer-address or --advertise-address"); n != 1 || !strings.Contains(log.String(), "other=b") {
			t.Errorf("told %d times:\n%s", n, log.String())
		}
	})
}

// TestLoopbackIsTold: a server without a default route has an address that no other machine reaches.
func TestLoopbackIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		o    serverOptions
		told bool
	}{
		"no default route": {serverOptions{bindAddress: "0.0.0.0", bind: net.IPv4zero, advertise: net.IPv4(127, 0, 0, 1)}, true},
		"a default route":  {serverOptions{bindAddress: "0.0.0.0", bind: net.IPv4zero, advertise: net.IPv4(10, 0, 0, 1)}, false},
		"listens there":    {serverOptions{bindAddress: "127.0.0.1", bind: net.IPv4(127, 0, 0, 1), advertise: net.IPv4(127, 0, 0, 1)}, false},
		"advertised":       {serverOptions{advertiseAddress: "127.0.0.1", bind: net.IPv4zero, advertise: net.IPv4(127, 0, 0, 1)}, false},
		"a peer address":   {serverOptions{bind: net.IPv4zero, advertise: net.IPv4(127, 0, 0, 1), peer: peerOptions{address: "10.0.0.1:1"}}, false},
	} {
		if got := tt.o.peerAddressIsGuess(); got != tt.told {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestServersResume: a server that is one of several lets their sessions be resumed, and one that
// is alone does not. Nodes' sessions are the hub's in both.
func TestServersResume(t *testing.T) {
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := server.New(server.Config{Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("here")}})
	if err != nil {
		t.Fatal(err)
	}
	others, err := peers.New(peers.Config{ID: "a", Hub: func() *server.Hub { return hub }, Dial: func(context.Context, peers.Peer, bool) (tunnel.Session, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := keys.ServerCertificate("b")
	if err != nil {
		t.Fatal(err)
	}
	authority := pkitest.New(t, "nodes")
	node := authority.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: auth.NodeUserPrefix + "n", Organization: []string{auth.NodesGroup}}})
	for name, tc := range map[string]struct {
		p    *peering
		cert *x509.Certificate
		ok   bool
	}{
		"a server among several": {&peering{Peers: others}, cert.Leaf, true},
		"a server and one alone": {nil, cert.Leaf, false},
		"a node among several":   {&peering{Peers: others}, node.Leaf, true},
		"a node and one alone":   {nil, node.Leaf, true},
	} {
		if err := tc.p.mayResume(hub, tunnel.Peer{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{tc.cert}}}); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
