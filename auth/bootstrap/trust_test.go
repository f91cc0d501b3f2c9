// Tests of how a node follows the authorities of its cluster.

package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// notices are the ConfigMaps of a cluster.
type notices struct {
	mu   sync.Mutex
	data map[string]string // by name
	err  error
}

func (n *notices) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return nil, n.err
	}
	text, ok := n.data[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &corev1.ConfigMap{Data: map[string]string{map[string]string{rootsName: rootsKey, clientsName: clientsKey}[name]: text}}, nil
}

func (n *notices) set(name string, list ...*x509.Certificate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.data == nil {
		n.data = map[string]string{}
	}
	n.data[name] = string(encodeCerts(list...))
}

// settled is a node of one authority, with a certificate for a thousand hours.
func settled(t *testing.T, ca *authority) *Identity {
	t.Helper()
	c := Config{NodeName: "node-1", Dir: t.TempDir(), Servers: []string{"https://x"}}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	cert := ca.Sign(t, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "system:node:node-1", Organization: []string{"system:nodes"}},
		NotBefore: time.Now(), NotAfter: time.Now().Add(1000 * time.Hour),
	}, &key.PublicKey)
	if err = errors.Join(writePair(c.path(clientFile), encodeCerts(cert), key), writeFile(c.path(caFile), encodeCerts(ca.Cert), 0o644)); err != nil {
		t.Fatal(err)
	}
	return again(t, c)
}

// again is the same node after a start.
func again(t *testing.T, c Config) *Identity {
	t.Helper()
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// shows makes the server show a certificate of an authority.
func shows(t *testing.T, id *Identity, by *authority, cn string) error {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf := by.Sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: cn}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &key.PublicKey)
	return id.ClientTLS("kubernetes").VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}})
}

// A node reads new authorities, stores them, closes connections that the old ones verified,
// and soon has a certificate of the new authority of clients.
func TestAuthoritiesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, server, clients := newAuthority(t), newAuthority(t), newAuthority(t)
		id := settled(t, old)
		if !id.ClientCAs().Equal(x509.NewCertPool()) {
			t.Error("clients are believed before the cluster has said which")
		}
		if err := shows(t, id, server, "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		told := &notices{}
		told.set(rootsName, server.Cert)
		told.set(clientsName, clients.Cert, old.Cert)
		changed := 0
		api := &memoryRequests{t: t, ca: clients, csrs: map[string]*certificates.CertificateSigningRequest{}, life: 1000 * time.Hour}
		r, err := NewRotation(RotationConfig{Identity: id, Requests: api, ConfigMaps: told, TrustChanged: func() { changed++ }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		advance(10 * time.Minute)
		cancel()
		if err = <-done; err != nil {
			t.Error(err)
		}
		if n := len(api.of(certificates.KubeAPIServerClientKubeletSignerName)); n != 1 {
			t.Errorf("%d requests for a client certificate, want one of the new authority", n)
		}
		if changed != 1 {
			t.Errorf("told %d times that the server's authority is another", changed)
		}
		// After a restart it is the same node, with the old hash on its command line.
		for _, pin := range []Pin{PinOf(old.Cert), PinOf(server.Cert)} {
			c := id.cfg
			c.Pins = []Pin{pin}
			next := again(t, c)
			if !next.ClientTLS("x").RootCAs.Equal(poolOf([]*x509.Certificate{server.Cert})) {
				t.Error("the server is not known by the new authority alone")
			}
			if !next.ClientCAs().Equal(poolOf([]*x509.Certificate{clients.Cert, old.Cert})) {
				t.Error("clients are not known by what the cluster says")
			}
			if err := next.cert.Load().Leaf.CheckSignatureFrom(clients.Cert); err != nil {
				t.Errorf("the certificate kept: %v", err)
			}
		}
		c := id.cfg
		c.Pins = []Pin{PinOf(newAuthority(t).Cert)}
		if _, err := Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), "belongs to another cluster") {
			t.Errorf("with a hash that was never right: %v", err)
		}
	})
}

// A server that has just removed its former authority still has that authority's certificate on
// an old connection: the node reads by another connection, once.
func TestConnectionOfBefore(t *testing.T) {
	old, server := newAuthority(t), newAuthority(t)
	for name, tc := range map[string]struct {
		shown *authority // by a new connection
		want  []*x509.Certificate
	}{
		"the new authority's": {server, []*x509.Certificate{server.Cert}},
		"the old one's":       {old, []*x509.Certificate{server.Cert, old.Cert}},
	} {
		id := settled(t, old)
		if err := shows(t, id, old, "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		told := &notices{}
		told.set(rootsName, server.Cert, old.Cert)
		told.set(clientsName, server.Cert)
		connections := 0
		r, err := NewRotation(RotationConfig{Identity: id, Requests: &memoryRequests{t: t}, ConfigMaps: told, TrustChanged: func() {
			if connections++; connections > 1 {
				if err := shows(t, id, tc.shown, "kube-apiserver"); err != nil {
					t.Error(err)
				}
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err = r.refresh(t.Context()); err != nil || connections != 1 {
			t.Errorf("%s: while both count: %d connections, %v", name, connections, err)
		}
		told.set(rootsName, server.Cert)
		err = r.refresh(t.Context())
		if proven := tc.shown == server; (err == nil) != proven || !proven && connections != 2 {
			t.Errorf("%s: %d connections, %v", name, connections, err)
		}
		if !id.ClientTLS("x").RootCAs.Equal(poolOf(tc.want)) {
			t.Errorf("%s: the server is known by others", name)
		}
	}
}

// While authorities cannot be written they are believed all the same, and written later.
func TestAuthoritiesThatCannotBeWritten(t *testing.T) {
	for _, file := range []string{formerFile, caFile, clientsFile} {
		old, server, clients := newAuthority(t), newAuthority(t), newAuthority(t)
		id := settled(t, old)
		if err := shows(t, id, server, "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		told, changed := &notices{}, 0
		told.set(rootsName, server.Cert)
		told.set(clientsName, clients.Cert)
		r, err := NewRotation(RotationConfig{Identity: id, Requests: &memoryRequests{t: t}, ConfigMaps: told, TrustChanged: func() { changed++ }})
		if err != nil {
			t.Fatal(err)
		}
		free := blocked(t, id.cfg.path(file))
		for range 2 {
			if err := r.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: error %v", file, err)
			}
		}
		believes := func(when string, id *Identity) {
			if !id.ClientTLS("x").RootCAs.Equal(poolOf([]*x509.Certificate{server.Cert})) || !id.ClientCAs().Equal(poolOf([]*x509.Certificate{clients.Cert})) {
				t.Errorf("%s, %s: others are believed", file, when)
			}
		}
		believes("not written", id)
		if changed != 1 {
			t.Errorf("%s: told %d times that the server's authority is another", file, changed)
		}
		free()
		if err := r.refresh(t.Context()); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		c := id.cfg
		c.Pins = []Pin{PinOf(old.Cert)}
		believes("after a start", again(t, c))
	}
}

// A node that joins again while the cluster's authority is replaced keeps what it has, whichever
// of the two verifies the server. It keeps nothing of another cluster.
func TestJoinAgainDuringReplacement(t *testing.T) {
	old, next, foreign := newAuthority(t), newAuthority(t), newAuthority(t)
	files := []string{clientsFile, formerFile, servingFile, nameFile, tunnelFile}
	for name, tt := range map[string]struct {
		by   *authority
		kept int // of files
		cas  []*x509.Certificate
	}{
		"by the new one":     {next, len(files), []*x509.Certificate{next.Cert, old.Cert}},
		"by the old one":     {old, len(files), []*x509.Certificate{next.Cert, old.Cert}},
		"to another cluster": {foreign, 0, []*x509.Certificate{foreign.Cert}},
	} {
		c := Config{Dir: t.TempDir()}
		err := writeFile(c.path(caFile), encodeCerts(next.Cert, old.Cert), 0o644)
		for _, file := range files {
			err = errors.Join(err, writeFile(c.path(file), []byte("x"), 0o644))
		}
		if err = errors.Join(err, c.keepRoot(tt.by.Cert)); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, file := range files {
			if _, err := os.Stat(c.path(file)); err == nil {
				kept++
			}
		}
		if cas, err := readCerts(c.path(caFile)); err != nil || kept != tt.kept || !same(cas, tt.cas) {
			t.Errorf("%s: %d files and %d authorities are kept, %v", name, kept, len(cas), err)
		}
	}
}

// Published authorities are used only if they verify the server: else the node could not
// connect again.
func TestForeignAuthoritiesAreNotBelieved(t *testing.T) {
	mine, other := newAuthority(t), newAuthority(t)
	for name, prepare := range map[string]func(id *Identity){
		"no connection": func(*Identity) {},
		"another server": func(id *Identity) {
			if err := shows(t, id, mine, "kube-apiserver"); err != nil {
				t.Error(err)
			}
		},
		"a node": func(id *Identity) {
			if err := shows(t, id, other, "system:node:node-2"); err == nil {
				t.Error("a node passes as the server")
			}
		},
	} {
		id := settled(t, mine)
		prepare(id)
		if changed, err := id.adopt([]*x509.Certificate{other.Cert}, nil, nil); err == nil || changed {
			t.Errorf("%s: adopted, %v", name, err)
		}
		if kept, err := readCerts(id.cfg.path(caFile)); err != nil || !kept[0].Equal(mine.Cert) {
			t.Errorf("%s: the file has another authority: %v", name, err)
		}
	}
}

// A cluster that publishes nothing has one authority, by which the nodes joined.
func TestClusterThatPublishesNothing(t *testing.T) {
	ca := newAuthority(t)
	id := settled(t, ca)
	forbidden := &notices{err: apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", nil)}
	r, err := NewRotation(RotationConfig{Identity: id, Requests: &memoryRequests{t: t}, ConfigMaps: forbidden})
	if err != nil {
		t.Fatal(err)
	}
	if err = r.refresh(t.Context()); err != nil || !id.ClientCAs().Equal(poolOf([]*x509.Certificate{ca.Cert})) {
		t.Errorf("clients are not known by the one authority: %v", err)
	}
	if r.client.superseded(id.cert.Load().Leaf) {
		t.Error("the certificate is called one of another authority")
	}
	if _, err = os.Stat(id.cfg.path(clientsFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the cluster has not said was kept: %v", err)
	}
	// If they are not published yet they are read again. If they are missing for a moment
	// later, the former ones stay.
	told := &notices{}
	r.cfg.ConfigMaps = told
	if err = r.refresh(t.Context()); err == nil {
		t.Errorf("nothing is published yet: %v", err)
	}
	told.set(rootsName, ca.Cert)
	clients := newAuthority(t)
	told.set(clientsName, clients.Cert)
	if err = r.refresh(t.Context()); err != nil {
		t.Error(err)
	}
	r.cfg.ConfigMaps = &notices{}
	if err = r.refresh(t.Context()); err == nil || !id.ClientCAs().Equal(poolOf([]*x509.Certificate{clients.Cert})) {
		t.Errorf("what was published before counts no more: %v", err)
	}
	// An unreachable cluster does not count as one that publishes nothing.
	id = settled(t, ca)
	if r, err = NewRotation(RotationConfig{Identity: id, Requests: &memoryRequests{t: t}, ConfigMaps: &notices{err: errors.New("not connected")}}); err != nil {
		t.Fatal(err)
	}
	if err = r.refresh(t.Context()); err == nil || !id.ClientCAs().Equal(x509.NewCertPool()) {
		t.Errorf("clients are believed though the cluster has not been asked: %v", err)
	}
}

// TestGivenCertificateIsUnknownToTheAPI: the API may know other certificates than the server of the
// tunnel does (--agent-ca). That is normal if the node was given its certificate, and told once.
func TestGivenCertificateIsUnknownToTheAPI(t *testing.T) {
	for name, given := range map[string]bool{"given": true, "joined": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				id, maps, log := settled(t, newAuthority(t)), new(notices), new(diary)
				if given {
					path := id.cfg.path(clientFile)
					var err error
					if id, err = Given(id.cfg, GivenFiles{Cert: path, Key: path, CA: id.cfg.path(caFile)}); err != nil {
						t.Fatal(err)
					}
				}
				r, err := NewRotation(RotationConfig{
					Identity: id, Requests: &memoryRequests{t: t}, ConfigMaps: maps, NotServing: true, Log: slog.New(slog.NewTextHandler(log, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				maps.fail(apierrors.NewUnauthorized("Unauthorized")) // before the first answer, which would be kept
				go func() { done <- r.Run(ctx) }()
				for i := range 20 {
					maps.fail(apierrors.NewUnauthorized("Unauthorized"))
					if i%2 == 1 {
						maps.fail(errors.New("connection lost"))
					}
					advance(10 * time.Minute)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if told, warned := len(log.lines("with --agent-ca")), len(log.lines("Unauthorized")); (told == 1) != given || (warned > 1) == given {
					t.Errorf("told %d times, and of 401 %d times: %s", told, warned, log.lines(""))
				}
			})
		})
	}
}

func (n *notices) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}
