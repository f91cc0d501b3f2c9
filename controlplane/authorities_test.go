package controlplane

// Tests of whom the parts of a running cluster believe, in one whose data directory
// was made when one authority signed everything.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func TestAuthorities(t *testing.T) {
	dir := t.TempDir()
	old := pkitest.Legacy(t, filepath.Join(dir, "pki"), "127.0.0.1")
	// What nodes have from before: of a node called like the server, whose serving
	// certificate the old authority signed, too.
	past := time.Now().Add(-time.Hour)
	tmpl := pkitest.NodeClient("node-1")
	tmpl.NotBefore = past
	running := old.Issue(t, tmpl)
	tmpl = pkitest.NodeServing("localhost", "localhost", "127.0.0.1", "kubernetes")
	tmpl.NotBefore = past
	stolen := old.Issue(t, tmpl)
	stolen.Certificate = append(stolen.Certificate, old.Cert.Raw)

	c := startClusterIn(t, dir)
	pins := map[string]bootstrap.Pin{"old": bootstrap.PinOf(old.Cert), "new": bootstrap.PinOf(c.keys.CACert())}
	c.token("abcdef", time.Hour)
	t.Run("an agent that runs on", func(t *testing.T) { oldAgentRunsOn(t, c, old, running) })
	t.Run("what the old authority signs later", func(t *testing.T) {
		late := old.Issue(t, pkitest.NodeClient("node-1"))
		if err := c.whoami(t, late, old.Cert); !apierrors.IsUnauthorized(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("agents that join", func(t *testing.T) {
		for which, pin := range pins {
			joinsAndFollows(t, c, "joins-by-"+which, pin)
		}
	})
	t.Run("certificates of nodes as the server's", func(t *testing.T) { nodeIsNoServer(t, c, stolen, pins) })
	t.Run("certificates of servers as clients'", func(t *testing.T) {
		for name, cert := range map[string]*tls.Certificate{
			"an old kubelet's":           stolen,
			"a kubelet's":                issuedBy(t, c, pki.KubeletCA).Issue(t, pkitest.NodeServing("node-1", "node-1")),
			"the server's":               load(t, c, pki.APIServer),
			"by the server's authority":  issuedBy(t, c, pki.CA).Issue(t, pkitest.NodeClient("node-1")),
			"by the kubelets' authority": issuedBy(t, c, pki.KubeletCA).Issue(t, pkitest.NodeClient("node-1")),
		} {
			if err := c.whoami(t, cert, c.keys.CACert()); !apierrors.IsUnauthorized(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func load(t *testing.T, c *cluster, name string) *tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.keys.Path(name, false), c.keys.Path(name, true))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

func issuedBy(t *testing.T, c *cluster, name string) *pkitest.Authority {
	t.Helper()
	return pkitest.Load(t, c.keys.Path(name, false), c.keys.Path(name, true))
}

func (c *cluster) client(conf *rest.Config) *kubernetes.Clientset {
	c.t.Helper()
	conf.QPS = -1
	k, err := kubernetes.NewForConfig(conf)
	if err != nil {
		c.t.Fatal(err)
	}
	return k
}

// over is a client of the cluster with a TLS configuration of its own.
func (c *cluster) over(t *testing.T, conf *tls.Config) *kubernetes.Clientset {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: conf}
	t.Cleanup(transport.CloseIdleConnections)
	k, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: c.host, QPS: -1}, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// trusting shows cert to servers of root.
func trusting(cert *tls.Certificate, root *x509.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil },
	}
}

// whoami says what becomes of a request with cert that every node may make.
func (c *cluster) whoami(t *testing.T, cert *tls.Certificate, root *x509.Certificate) error {
	t.Helper()
	_, err := c.over(t, trusting(cert, root)).CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	return err
}

// oldAgentRunsOn: an agent that was started before goes on with what it has, and its
// next certificate is of the new authority.
func oldAgentRunsOn(t *testing.T, c *cluster, old *pkitest.Authority, running *tls.Certificate) {
	leaf, err := x509.ParseCertificate(running.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	// The node's key holds its name, as that of each node does after an upgrade.
	name := strings.TrimPrefix(leaf.Subject.CommonName, "system:node:")
	if err = nodekeys.NewBook(c.admin).Claim(t.Context(), name, nodekeys.KeyOf(leaf), ""); err != nil {
		t.Fatal(err)
	}
	if err = c.whoami(t, running, old.Cert); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	client := c.over(t, trusting(running, old.Cert))
	r := c.ask(client, "renewal", certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:node-1", nil, key)
	block, _ := pem.Decode(r.Status.Certificate)
	if block == nil {
		t.Fatalf("no certificate: %+v", r.Status)
	}
	leaf, err = x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if err = leaf.CheckSignatureFrom(issuedBy(t, c, pki.ClientCA).Cert); err != nil {
		t.Errorf("the new certificate: %v", err)
	}
	if err = c.whoami(t, &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}, old.Cert); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
}

// join joins the server at host by a hash.
func join(t *testing.T, host, dir, name string, pin bootstrap.Pin) (*bootstrap.Identity, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return bootstrap.Join(ctx, bootstrap.Config{
		Servers: []string{host}, NodeName: name, Dir: dir, Pins: []bootstrap.Pin{pin},
		Token: bootstrap.Token{ID: "abcdef", Secret: "0123456789abcdef"},
	})
}

// joinsAndFollows: whichever hash an agent is given, it ends up with the new authority
// of the server, that of clients, and a serving certificate for its name.
func joinsAndFollows(t *testing.T, c *cluster, name string, pin bootstrap.Pin) {
	dir := t.TempDir()
	id, err := join(t, c.host, dir, name, pin)
	if err != nil {
		t.Fatal(err)
	}
	api := c.over(t, id.ClientTLS(""))
	r, err := bootstrap.NewRotation(bootstrap.RotationConfig{
		Identity: id, Requests: api.CertificatesV1().CertificateSigningRequests(), ConfigMaps: api.CoreV1().ConfigMaps("kube-system"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	want := x509.NewCertPool()
	want.AddCert(c.keys.CACert())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		_, none := r.GetCertificate(nil)
		if none == nil && id.ClientTLS("").RootCAs.Equal(want) {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s has not followed: %v", name, none)
		}
	}
	cancel()
	if err = <-done; err != nil {
		t.Error(err)
	}
	serving, err := r.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if leaf := serving.Leaf; len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != name || len(leaf.IPAddresses) != 0 || leaf.CheckSignatureFrom(issuedBy(t, c, pki.KubeletCA).Cert) != nil {
		t.Errorf("serving certificate for %v %v by %s", leaf.DNSNames, leaf.IPAddresses, leaf.Issuer)
	}
	kubelets := load(t, c, pki.KubeletClient)
	opts := x509.VerifyOptions{Roots: id.ClientCAs(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err = kubelets.Leaf.Verify(opts); err != nil {
		t.Errorf("the node does not believe the server's client certificate: %v", err)
	}
	if again, err := join(t, c.host, dir, name, pin); err != nil || again.NodeName() != name {
		t.Errorf("after a start with the same command line: %v", err)
	}
}

// nodeIsNoServer: whatever certificate of a node is shown in the server's place, nobody
// who has joined or got a kubeconfig takes it, nor does anybody who joins.
func nodeIsNoServer(t *testing.T, c *cluster, stolen *tls.Certificate, pins map[string]bootstrap.Pin) {
	clientCA, kubeletCA := issuedBy(t, c, pki.ClientCA), issuedBy(t, c, pki.KubeletCA)
	current := kubeletCA.Issue(t, pkitest.NodeServing("node-1", "localhost", "127.0.0.1"))
	current.Certificate = append(current.Certificate, kubeletCA.Cert.Raw, c.keys.CACert().Raw)
	tmpl := pkitest.NodeServing("node-1", "localhost", "127.0.0.1")
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	client := clientCA.Issue(t, tmpl)
	client.Certificate = append(client.Certificate, load(t, c, pki.KubeletClient).Certificate[1], load(t, c, pki.APIServer).Certificate[1], load(t, c, pki.APIServer).Certificate[2])
	kubeconfig := filepath.Join(t.TempDir(), "admin.kubeconfig")
	for name, cert := range map[string]*tls.Certificate{"an old serving certificate": stolen, "a serving certificate": current, "a client certificate": client} {
		host := pretend(t, cert)
		if err := c.keys.WriteKubeconfig(kubeconfig, host, pki.Admin); err != nil {
			t.Fatal(err)
		}
		conf, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.client(conf).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !strings.Contains(errorText(err), "x509: ") {
			t.Errorf("%s, to the administrator: %v", name, err)
		}
		for which, pin := range pins {
			// A join that is refused says so, and would try again.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var refused refusals = func() { cancel() }
			_, err := bootstrap.Join(ctx, bootstrap.Config{
				Log:     slog.New(slog.NewTextHandler(refused, nil)),
				Servers: []string{host}, NodeName: "node-9", Dir: t.TempDir(), Pins: []bootstrap.Pin{pin},
				Token: bootstrap.Token{ID: "abcdef", Secret: "0123456789abcdef"},
			})
			if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("%s, to an agent that joins by the %s hash: %v, %v", name, which, err, ctx.Err())
			}
			cancel()
		}
	}
}

// refusals is called by a log for each join that failed.
type refusals func()

func (r refusals) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "cannot join yet") && strings.Contains(string(line), "do not go on") {
		r()
	}
	return len(line), nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// pretend serves with cert, and fails the test if anybody believes it. Those who join may
// ask for what a cluster tells everybody, without saying who they are: it is signed, and
// here by nobody who knows the token.
func pretend(t *testing.T, cert *tls.Certificate) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info") && r.Header.Get("Authorization") == "" && len(r.TLS.PeerCertificates) == 0 {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: map[string]string{
				"kubeconfig": "clusters: [{cluster: {server: https://" + r.Host + ", certificate-authority-data: " +
					base64.StdEncoding.EncodeToString(pkitest.PEM("CERTIFICATE", cert.Certificate[len(cert.Certificate)-1])) + "}}]",
				"jws-kubeconfig-abcdef": base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","kid":"abcdef"}`)) + ".." + base64.RawURLEncoding.EncodeToString(make([]byte, 32)),
			}})
			return
		}
		t.Errorf("somebody took a node for the server: %s %s, %s", r.Method, r.URL, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusTeapot)
	}))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "https://" + net.JoinHostPort("127.0.0.1", port)
}

// The hub lets in who has a certificate of the authority of clients, or has one of the
// authority of before from its time.
func TestHubBelievesClientsOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	old := pkitest.Legacy(t, dir, "127.0.0.1")
	tmpl := pkitest.NodeClient("node-1")
	tmpl.NotBefore = time.Now().Add(-time.Hour)
	before := old.Issue(t, tmpl)
	keys, err := pki.Ensure(pki.Config{Dir: dir, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	cas, err := new(auth.Files).Authorities(keys.Path(pki.ClientCA, false))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := new(auth.Files).KeyPair(keys.Path(pki.APIServer, false), keys.Path(pki.APIServer, true))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, keys: keys}
	for name, tc := range map[string]struct {
		cert *tls.Certificate
		ok   bool
	}{
		"a node":                    {issuedBy(t, c, pki.ClientCA).Issue(t, pkitest.NodeClient("node-1")), true},
		"a node of before":          {before, true},
		"a node of before, later":   {old.Issue(t, pkitest.NodeClient("node-1")), false},
		"a kubelet":                 {issuedBy(t, c, pki.KubeletCA).Issue(t, pkitest.NodeServing("node-1", "node-1")), false},
		"a client of its authority": {issuedBy(t, c, pki.KubeletCA).Issue(t, pkitest.NodeClient("node-1")), false},
		"the server":                {load(t, c, pki.APIServer), false},
		"a server as a client":      {issuedBy(t, c, pki.ClientCA).Issue(t, pkitest.NodeServing("node-1", "node-1")), false},
	} {
		a, b := net.Pipe()
		result := make(chan error, 1)
		go func() {
			err := tls.Server(a, cas.ServerTLS(pair.GetCertificate)).HandshakeContext(t.Context())
			result <- errors.Join(err, a.Close())
		}()
		conf := trusting(tc.cert, keys.CACert())
		conf.ServerName = "127.0.0.1"
		_, _ = io.Copy(io.Discard, tls.Client(b, conf)) // until the server has decided
		_ = b.Close()
		if err := <-result; (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "legacy-ca.key")); err == nil {
		t.Error("the key of before is still there")
	}
}
