package kubeauth

// Tests of authenticating nodes: the key must hold the name, at each request.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// register is Names with one holder of node-1.
type register struct {
	holder  atomic.Pointer[nodekeys.Key]
	asked   atomic.Int64
	ended   context.CancelCauseFunc
	pods    []string // names whose pods were watched
	barred  string   // the name whose pods are refused
	revoked string   // the name whose pods are refused with tokens from until at
	at      time.Time
}

var errNotHeld = errors.New("not held")

func (n *register) Admit(_ context.Context, name string, k nodekeys.Key) error {
	n.asked.Add(1)
	if h := n.holder.Load(); name == "node-1" && h != nil && *h == k {
		return nil
	}
	return errNotHeld
}

func (n *register) Watch(ctx context.Context, _ string, _ nodekeys.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	n.ended = cancel
	return ctx, func() { cancel(nil) }
}

func (n *register) AdmitPods(_ context.Context, name string, issued func() time.Time) error {
	if name == n.barred || name == n.revoked && !issued().After(n.at) {
		return errNotHeld
	}
	return nil
}

func (n *register) WatchPods(ctx context.Context, name string) (context.Context, func()) {
	n.pods = append(n.pods, name)
	return n.Watch(ctx, name, nodekeys.Key{})
}

func named(t testing.TB, ca *issuer, names Names) authenticator.Request {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file, Names: names})
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

func shows(cert *x509.Certificate) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/nodes/node-1", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	return r
}

// A cached certificate is refused once its key has lost the name, and accepted once it holds
// it again.
func TestKeyHoldsTheName(t *testing.T) {
	ca, names := newIssuer(t, "ca"), &register{}
	auth := named(t, ca, names)
	cert, other := ca.client(t, nil), ca.client(t, nil)
	key := nodekeys.KeyOf(cert)
	checkUser(t, auth, shows(cert), "", nil)
	names.holder.Store(&key)
	for range 3 {
		checkUser(t, auth, shows(cert), nodeOne, []string{"system:nodes", "system:authenticated"})
	}
	checkUser(t, auth, shows(other), "", nil)
	names.holder.Store(nil)
	checkUser(t, auth, shows(cert), "", nil)
	// A resumed TLS connection has the certificate too.
	resumed := shows(cert)
	resumed.TLS.DidResume = true
	checkUser(t, auth, resumed, "", nil)
	names.holder.Store(&key)
	checkUser(t, auth, shows(cert), nodeOne, []string{"system:nodes", "system:authenticated"})
	resp, _, err := auth.AuthenticateRequest(shows(cert))
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.User.GetExtra()[nodekeys.ExtraKey]; len(got) != 1 || got[0] != key.String() {
		t.Errorf("the user's key is %q, want %s", got, key)
	}
}

// Names is called for every user with the name of a node, and for no other.
func TestOnlyNodesAreAskedAbout(t *testing.T) {
	ca, names := newIssuer(t, "ca"), &register{}
	auth := named(t, ca, names)
	admin := ca.client(t, func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}
	})
	checkUser(t, auth, shows(admin), "kubernetes-admin", []string{"system:masters", "system:authenticated"})
	if n := names.asked.Load(); n != 0 {
		t.Errorf("asked %d times about an administrator", n)
	}
	for _, groups := range [][]string{nil, {"system:masters"}, {"developers", "system:nodes"}} {
		checkUser(t, auth, shows(ca.client(t, func(c *x509.Certificate) { c.Subject.Organization = groups })), "", nil)
	}
	// A client cannot set its own key.
	if n := names.asked.Load(); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}

// All requests of a node end with its name, in every form: a watch by its decoded query, a
// stream by its subresource, and a write with a slow body.
func TestEndRequests(t *testing.T) {
	names, cert := &register{}, newIssuer(t, "ca").client(t, nil)
	for _, target := range []string{
		"/api/v1/pods?watch=1", "/api/v1/pods?w%61tch=1&fieldSelector=spec.nodeName%3Dnode-1", "/api/v1/pods?%77%61%74%63%68=true",
		"/api/v1/pods?a;b&wat%63h", "/api/v1/watch/pods", "/api/v1/w%61tch/pods", "/api/v1/watch//pods",
		"/api/v1/namespaces/ns/pods/web/log?f%6Fllow=1", "/api/v1/namespaces/ns/pods/web/exec?command=sh", "/api/v1/nodes/node-1/proxy/x",
		"/api/v1/nodes/node-1/status",
	} {
		began, ended := make(chan struct{}), make(chan error, 1)
		h := EndRequests(names, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
		}))
		names.ended = nil
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		r.TLS = shows(cert).TLS
		go h.ServeHTTP(httptest.NewRecorder(), r)
		<-began
		if names.ended == nil {
			t.Errorf("%s: nobody would end it", target)
			continue
		}
		names.ended(errNotHeld)
		if err := <-ended; !errors.Is(err, errNotHeld) {
			t.Errorf("%s: ended because %v", target, err)
		}
	}
	// Requests of others are passed on unchanged.
	names.ended = nil
	var got *http.Request
	pass := EndRequests(names, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	nobody := httptest.NewRequest(http.MethodGet, "/api/v1/nodes?watch=1", nil)
	if pass.ServeHTTP(httptest.NewRecorder(), nobody); got != nobody || names.ended != nil {
		t.Error("a request without a certificate is followed")
	}
}

// BenchmarkAuthenticateNode is the cost of a node's request, with and without Names.
func BenchmarkAuthenticateNode(b *testing.B) {
	ca := newIssuer(b, "ca")
	cert := ca.client(b, nil)
	key := nodekeys.KeyOf(cert)
	names := &register{}
	names.holder.Store(&key)
	for name, n := range map[string]Names{"believed": nil, "asked": names} {
		b.Run(name, func(b *testing.B) {
			auth, r := named(b, ca, n), shows(cert)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, err := auth.AuthenticateRequest(r); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Names allocates nothing.
func TestAskingAllocatesNothing(t *testing.T) {
	ca := newIssuer(t, "ca")
	cert := ca.client(t, nil)
	key := nodekeys.KeyOf(cert)
	names := &register{}
	names.holder.Store(&key)
	allocs := func(n Names) float64 {
		auth, r := named(t, ca, n), shows(cert)
		return testing.AllocsPerRun(100, func() { _, _, _ = auth.AuthenticateRequest(r) })
	}
	if without, with := allocs(nil), allocs(names); with > without {
		t.Errorf("%v allocations, %v without", with, without)
	}
}
