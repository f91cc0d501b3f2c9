// Tests of joining a cluster whose API server is another program than the hub.

package bootstrap

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// beside is a server whose API server shows a certificate for names, without its CA,
// and answers with public ConfigMaps.
func beside(t *testing.T, ca *authority, maps map[string]map[string]string, names ...string) *server {
	t.Helper()
	s := newServer(t, ca, &x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	chain := &s.http.TLS.Certificates[0].Certificate
	*chain = (*chain)[:1]
	s.http.TLS.ClientAuth = tls.RequestClientCert
	s.busy = func(w http.ResponseWriter, r *http.Request) bool {
		name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/kube-public/configmaps/")
		if !ok {
			return false
		}
		if r.Header.Get("Authorization") != "" {
			t.Error("the token was shown to a server that is not trusted yet")
		}
		if name == tunnelName && len(r.TLS.PeerCertificates) == 0 {
			t.Error("the tunnel's authority was not asked for with the node's certificate")
		}
		if maps[name] == nil {
			w.WriteHeader(cmp.Or(s.noMap, http.StatusNotFound))
			return true
		}
		s.answer(w, &corev1.ConfigMap{Data: maps[name]}, http.StatusOK)
		return true
	}
	return s
}

// info is the ConfigMap that kubeadm publishes.
func info(t *testing.T, ca *authority, server, id, secret string) map[string]string {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: %s\n    certificate-authority-data: %s\n",
		server, base64.StdEncoding.EncodeToString(encodeCerts(ca.Cert)))
	signature, err := jws.ComputeDetachedSignature(text, id, secret)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"kubeconfig": text, "jws-kubeconfig-" + id: signature}
}

func TestJoinBesideACluster(t *testing.T) {
	ca := newAuthority(t)
	maps := map[string]map[string]string{infoName: info(t, ca, "https://api.internal:6443", "abcdef", "0123456789abcdef")}
	s := beside(t, ca, maps, "kubernetes", "api.internal")
	c := s.config()
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if got := id.APIServerName(); got != "api.internal" {
		t.Errorf("the API server is called %q", got)
	}
	// From here on nothing is discovered.
	delete(maps, infoName)
	if got := again(t, c).APIServerName(); got != "api.internal" {
		t.Errorf("after a start the API server is called %q", got)
	}
	if _, err := id.rejoin(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no CA was shown") {
		t.Errorf("joining anew where nothing is published any more: %v", err)
	}
}

// TestProbeBesideACluster: Probe trusts the same servers as Join, and makes no file.
func TestProbeBesideACluster(t *testing.T) {
	ca := newAuthority(t)
	maps := map[string]map[string]string{infoName: info(t, ca, "https://api.internal:6443", "abcdef", "0123456789abcdef")}
	s := beside(t, ca, maps, "kubernetes", "api.internal")
	c := s.config()
	if p, err := c.Probe(t.Context(), s.http.URL, 0); err != nil || p.RefusesToken || p.NoToken {
		t.Errorf("%+v, %v", p, err)
	}
	s.token = "abcdef.another0another0"
	if p, err := c.Probe(t.Context(), s.http.URL, 0); err != nil || !p.RefusesToken {
		t.Errorf("after the token has gone: %+v, %v", p, err)
	}
	delete(maps, infoName)
	if _, err := c.Probe(t.Context(), s.http.URL, 0); err == nil || !strings.Contains(err.Error(), "no CA was shown") || !strings.Contains(err.Error(), `issued by "`) {
		t.Errorf("where nothing is published: %v", err)
	}
	if left, err := os.ReadDir(c.Dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestJoinBesideIsRefused(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	good := info(t, ca, "https://api.internal", "abcdef", "0123456789abcdef")
	forged := info(t, ca, "https://api.internal", "abcdef", "ffffffffffffffff")
	changed := info(t, ca, "https://api.internal", "abcdef", "0123456789abcdef")
	changed["kubeconfig"] = strings.Replace(changed["kubeconfig"], "api.internal", "api.elsewhere", 1)
	for name, tt := range map[string]struct {
		publish map[string]string
		name    string // --apiserver-name
		want    string
	}{
		"nothing published":   {nil, "", "no CA was shown"},
		"a forged signature":  {forged, "", "signature by the join token abcdef is wrong"},
		"other text":          {changed, "", "signature by the join token abcdef is wrong"},
		"not signed":          {map[string]string{"kubeconfig": good["kubeconfig"]}, "", "not signed by the join token abcdef: most often that has expired"},
		"another authority":   {info(t, other, "https://api.internal", "abcdef", "0123456789abcdef"), "", "is not the one expected"},
		"another name":        {info(t, ca, "https://api.elsewhere", "abcdef", "0123456789abcdef"), "", "--apiserver-name"},
		"another name said":   {good, "api.elsewhere", "--tls-san"},
		"the right name said": {info(t, ca, "https://api.elsewhere", "abcdef", "0123456789abcdef"), "api.internal", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := beside(t, ca, map[string]map[string]string{infoName: tt.publish}, "api.internal").config()
			c.APIServerName = tt.name
			if err := c.check(); err != nil {
				t.Fatal(err)
			}
			id, err := c.join(t.Context(), c.Servers[0], nil)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), c.Token.Secret) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := id.APIServerName(); got != "api.internal" {
				t.Errorf("the API server is called %q", got)
			}
		})
	}
}

// TestInfoNotToBeHad: the alarm about an API server that shows no CA says why the cluster does not
// name it. Of a server that shows one that is no question.
func TestInfoNotToBeHad(t *testing.T) {
	for status, why := range map[int]string{
		http.StatusNotFound: "does not exist", http.StatusForbidden: "may not be read by this machine (403 Forbidden)", http.StatusUnauthorized: "may not be read by this machine (401 Unauthorized)",
	} {
		why = "the cluster does not name it: ConfigMap kube-public/cluster-info " + why
		s := beside(t, newAuthority(t), nil, "api.internal")
		s.noMap = status
		c := s.config()
		if err := c.check(); err != nil {
			t.Fatal(err)
		}
		_, joins := c.join(t.Context(), c.Servers[0], nil)
		_, probes := c.Probe(t.Context(), s.http.URL, 0)
		for _, err := range []error{joins, probes} {
			if err == nil || !final(err) || !strings.Contains(err.Error(), "no CA was shown") || !strings.Contains(err.Error(), why) {
				t.Errorf("status %d: %v", status, err)
			}
		}
		chain := &s.http.TLS.Certificates[0].Certificate
		*chain, c.Pins = (*chain)[:2], []Pin{PinOf(newAuthority(t).Cert)}
		if _, err := c.join(t.Context(), c.Servers[0], nil); err == nil || !strings.Contains(err.Error(), "is not the one expected") || strings.Contains(err.Error(), infoName) {
			t.Errorf("status %d, with another CA: %v", status, err)
		}
	}
}

// The hub's authority is used for the tunnel only, also after a restart, until it is not
// published any more.
func TestTunnelAuthority(t *testing.T) {
	ca, hub := newAuthority(t), newAuthority(t)
	maps := map[string]map[string]string{
		infoName:   info(t, ca, "https://api.internal", "abcdef", "0123456789abcdef"),
		tunnelName: {tunnelKey: string(encodeCerts(hub.Cert))},
	}
	s := beside(t, ca, maps, "api.internal")
	c := s.config()
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if id.TunnelKnown() {
		t.Error("known before it was asked for")
	}
	free := blocked(t, c.path(tunnelFile))
	for range 2 {
		if err := id.RefreshTunnel(t.Context()); err == nil || !id.TunnelKnown() {
			t.Errorf("while it cannot be written: %v", err)
		}
	}
	free()
	if err := id.RefreshTunnel(t.Context()); err != nil {
		t.Fatal(err)
	}
	alone, both := poolOf([]*x509.Certificate{ca.Cert}), poolOf([]*x509.Certificate{ca.Cert, hub.Cert})
	for when, id := range map[string]*Identity{"now": id, "after a start": again(t, c)} {
		if !id.TunnelKnown() || !id.TunnelTLS().RootCAs.Equal(both) || !id.ClientTLS("x").RootCAs.Equal(alone) {
			t.Errorf("%s: other authorities than the cluster's and the hub's for the tunnel, and the cluster's alone for the API server", when)
		}
	}
	maps[tunnelName] = map[string]string{tunnelKey: "nonsense"}
	if err := id.RefreshTunnel(t.Context()); err == nil || !id.TunnelTLS().RootCAs.Equal(both) {
		t.Errorf("nonsense is published: %v, or what was there before does not count", err)
	}
	delete(maps, tunnelName)
	// An API server that has just started lets nobody read it for a moment.
	for _, s.noMap = range []int{http.StatusUnauthorized, http.StatusForbidden} {
		if err := id.RefreshTunnel(t.Context()); err == nil || !id.TunnelTLS().RootCAs.Equal(both) {
			t.Errorf("status %d: %v, or what was there before does not count", s.noMap, err)
		}
		if err := again(t, c).RefreshTunnel(t.Context()); err == nil {
			t.Errorf("status %d after a start: no error", s.noMap)
		}
	}
	s.noMap = http.StatusNotFound
	if err := id.RefreshTunnel(t.Context()); err != nil {
		t.Error(err)
	}
	for when, id := range map[string]*Identity{"now": id, "after a start": again(t, c)} {
		if !id.TunnelKnown() || !id.TunnelTLS().RootCAs.Equal(alone) {
			t.Errorf("%s: the hub's authority counts though it is not published any more", when)
		}
	}
	// In a cluster that never let the node read it there is none.
	s.noMap = http.StatusForbidden
	if err := id.RefreshTunnel(t.Context()); err != nil {
		t.Error(err)
	}
}

// A node whose certificate another program renews uses replaced files, and refuses another
// node's.
func TestGivenFilesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, next := newAuthority(t), newAuthority(t)
		dir := t.TempDir()
		files := GivenFiles{Cert: dir + "/client.pem", Key: dir + "/client.pem", CA: dir + "/ca.crt"}
		put := func(node string) *x509.Certificate {
			key := pkitest.NewKey(t)
			cert := ca.Sign(t, pkitest.NodeClient(node), key.Public())
			if err := writePair(files.Cert, encodeCerts(cert), key); err != nil {
				t.Fatal(err)
			}
			return cert
		}
		first := put("node-1")
		if err := os.WriteFile(files.CA, encodeCerts(ca.Cert), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Config{NodeName: "node-1", Dir: t.TempDir(), Servers: []string{"https://x"}}
		id, err := Given(c, files)
		if err != nil {
			t.Fatal(err)
		}
		if !id.cert.Load().Leaf.Equal(first) || id.APIServerName() != DefaultAPIServerName {
			t.Error("another certificate, or another name of the API server")
		}
		renewed, changed := 0, 0
		api := &memoryRequests{t: t, ca: ca, life: time.Hour}
		r, err := NewRotation(RotationConfig{Identity: id, Requests: api, NotServing: true, Renewed: func() { renewed++ }, TrustChanged: func() { changed++ }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		second := put("node-1")
		advance(3 * time.Second)
		if !id.cert.Load().Leaf.Equal(second) || renewed != 1 {
			t.Errorf("the certificate was replaced, and %d times taken into use", renewed)
		}
		put("node-2")
		advance(3 * time.Second)
		if !id.cert.Load().Leaf.Equal(second) || renewed != 1 {
			t.Error("the certificate of another node was taken")
		}
		if err := os.WriteFile(files.CA, encodeCerts(next.Cert, ca.Cert), 0o600); err != nil {
			t.Fatal(err)
		}
		advance(3 * time.Second)
		if !id.ClientTLS("x").RootCAs.Equal(poolOf([]*x509.Certificate{next.Cert, ca.Cert})) || changed != 1 {
			t.Errorf("the authorities were replaced, and %d times taken into use", changed)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		c.NodeName = "node-3"
		if _, err := Given(c, files); err == nil || !strings.Contains(err.Error(), `of node "node-2", not "node-3" (--node-name)`) {
			t.Errorf("the certificate of another node: %v", err)
		}
		files.CA += ".none"
		if _, err := Given(c, files); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("no authority: %v", err)
		}
	})
}
