// Tests of the controllers beside another process's API server.

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// TestNamesBeside: of another API server's names those are known by which it is called
// and those that administrators say.
func TestNamesBeside(t *testing.T) {
	o, err := parse(t, "--kubeconfig", "x", "--tls-san", "hub.example.net,198.51.100.9")
	if err != nil {
		t.Fatal(err)
	}
	for host, called := range map[string]string{
		"https://api.example.com:6443": "api.example.com", "https://API.example.com": "api.example.com", "api.example.com": "api.example.com",
		"api.example.com:6443": "api.example.com", "https://192.0.2.7:6443/prefix": "192.0.2.7", "https://[2001:db8::1]:6443": "2001:db8::1",
	} {
		names, err := o.namesBeside(&clientrest.Config{Host: host, TLSClientConfig: clientrest.TLSClientConfig{ServerName: "sni.example.com"}})
		if err != nil {
			t.Fatal(host, err)
		}
		for _, name := range []string{called, "sni.example.com", "hub.example.net", "198.51.100.9", "kubernetes", "apiserver"} {
			if names.Check(name) == nil {
				t.Errorf("beside %s a node may be called %s", host, name)
			}
		}
		if err := names.Check("node-1"); err != nil {
			t.Errorf("beside %s: %v", host, err)
		}
	}
}

// TestApproverBeside: the approver beside another API server denies a node that is called
// like it, by the name in its certificate too, and approves others; and it is said when
// the authorities end that sign there.
func TestApproverBeside(t *testing.T) {
	decided := make(chan *certificatesv1.CertificateSigningRequest, 9)
	api := httptest.NewTLSServer(requests(t, decided, "example.com", "www.example.com", "hub.example.net", "node-1"))
	defer api.Close()
	signing, serving := newAuthority(t, "signing", time.Hour), newAuthority(t, "serving", 2*time.Hour)
	port, err := setup.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	health, err := setup.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse(t, "--kubeconfig", kubeconfigFor(t, api), "--tls-san", "hub.example.net", "--health-port", strconv.Itoa(health), "--connect-port", "0",
		"--controllers", "certificatesigningrequest-approving-controller", "--leader-elect=false",
		"--cluster-signing-cert-file", signing.cert, "--cluster-signing-key-file", signing.key,
		"--cluster-signing-kubelet-serving-cert-file", serving.cert, "--cluster-signing-kubelet-serving-key-file", serving.key,
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, metrics := make(chan error, 1), prometheus.NewRegistry()
	go func() { ended <- runBeside(ctx, o, metrics, slog.New(slog.DiscardHandler)) }()
	got := map[string]certificatesv1.RequestConditionType{}
	for range 4 {
		select {
		case r := <-decided:
			got[r.Name] = r.Status.Conditions[0].Type
		case err := <-ended:
			t.Fatal(err)
		}
	}
	for name, pair := range map[string]pairFiles{"cluster-signing": signing, "cluster-signing-kubelet-serving": serving} {
		if got, want := endOf(t, metrics, name), float64(pair.until.Unix()); got != want {
			t.Errorf("%s ends at %v, want %v", name, got, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for name, want := range map[string]certificatesv1.RequestConditionType{
		"example.com": certificatesv1.CertificateDenied, "www.example.com": certificatesv1.CertificateDenied,
		"hub.example.net": certificatesv1.CertificateDenied, "node-1": certificatesv1.CertificateApproved,
	} {
		if got[name] != want {
			t.Errorf("the serving certificate of node %s: %s, want %s", name, got[name], want)
		}
	}
}

// requests is as much of an API server as has requests for serving certificates of
// nodes, and sends what is decided.
func requests(t *testing.T, decided chan<- *certificatesv1.CertificateSigningRequest, nodes ...string) http.Handler {
	t.Helper()
	list := certificatesv1.CertificateSigningRequestList{TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequestList"}}
	for _, node := range nodes {
		list.Items = append(list.Items, certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: servingRequest(t, node), SignerName: certificatesv1.KubeletServingSignerName, Username: "system:node:" + node,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			},
		})
	}
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	m := http.NewServeMux()
	m.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.FormValue("sendInitialEvents") != "": // as servers do that cannot: the list is asked for
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case r.FormValue("watch") != "":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(list)
		}
	})
	m.HandleFunc("PUT "+path+"/{name}/approval", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			t.Error(err)
			return
		}
		decided <- o.(*certificatesv1.CertificateSigningRequest)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = w.Write(body)
	})
	return m
}

func servingRequest(t *testing.T, node string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: []string{node},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// kubeconfigFor writes one for a server of a test.
func kubeconfigFor(t *testing.T, api *httptest.Server) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{
		Server: api.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}),
	}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "t"}
	c.Contexts["x"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// pairFiles are an authority's certificate and key, and when it ends.
type pairFiles struct {
	cert, key string
	until     time.Time
}

func newAuthority(t *testing.T, name string, life time.Duration) pairFiles {
	t.Helper()
	a := pkitest.New(t, name).Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	dir := t.TempDir()
	p := pairFiles{filepath.Join(dir, "crt"), filepath.Join(dir, "key"), a.Leaf.NotAfter}
	for file, text := range map[string][]byte{p.cert: pkitest.PEM("CERTIFICATE", a.Certificate[0]), p.key: pkitest.KeyPEM(t, a.PrivateKey)} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// endOf is the metric of when a certificate ends; 0 if there is none.
func endOf(t *testing.T, metrics prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == auth.ExpirationMetric && m.GetLabel()[0].GetValue() == name {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// TestEtcdAuthorityEnds: the authority of another etcd is among the certificates that are
// watched.
func TestEtcdAuthorityEnds(t *testing.T) {
	etcd := newAuthority(t, "etcd", time.Hour)
	o, err := parse(t, "--etcd-servers", "https://127.0.0.1:1", "--etcd-cafile", etcd.cert)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: o.servingNames(), IPs: o.servingIPs()})
	if err != nil {
		t.Fatal(err)
	}
	all, err := (&renewal{o: o, keys: keys}).certificates(&auth.Files{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Name == "etcd-ca" && e.Now().NotAfter.Equal(etcd.until) {
			return
		}
	}
	t.Errorf("watched are %v", all)
}

// TestGivenCertificatesEnd: what a hub was given is among the certificates that are watched.
func TestGivenCertificatesEnd(t *testing.T) {
	kubelet, client := newAuthority(t, "kubelet", time.Hour), newAuthority(t, "client", 2*time.Hour)
	ca, agents := newAuthority(t, "kubelet-ca", 3*time.Hour), newAuthority(t, "agents", 4*time.Hour)
	embedded, named := filepath.Join(t.TempDir(), "embedded"), filepath.Join(t.TempDir(), "named")
	for file, user := range map[string]*clientcmdapi.AuthInfo{
		embedded: {ClientCertificateData: readFile(t, client.cert), ClientKeyData: readFile(t, client.key)},
		named:    {ClientCertificate: client.cert, ClientKey: client.key},
	} {
		c := clientcmdapi.NewConfig()
		c.Clusters["c"], c.AuthInfos["u"] = &clientcmdapi.Cluster{Server: "https://192.0.2.1"}, user
		c.Contexts["x"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
		if err := clientcmd.WriteToFile(*c, file); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range [][2]string{{"agent-ca", embedded}, {"client-ca-file", named}} {
		o, err := parse(t, "--kubeconfig", tt[1], "--"+tt[0], agents.cert, "--kubelet-certificate-authority", ca.cert,
			"--kubelet-client-certificate", kubelet.cert, "--kubelet-client-key", kubelet.key)
		if err != nil {
			t.Fatal(err)
		}
		metrics := prometheus.NewRegistry()
		h := &hubBeside{o: o, files: &auth.Files{}, metrics: metrics, log: slog.New(slog.DiscardHandler)}
		if h.client, err = o.beside.client(); err != nil {
			t.Fatal(err)
		}
		if h.keys, err = pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: o.servingNames(), IPs: o.servingIPs(), HubOnly: true}); err != nil {
			t.Fatal(err)
		}
		if err = h.watchCertificates(); err != nil {
			t.Fatal(err)
		}
		for name, until := range map[string]time.Time{
			tt[0]: agents.until, "kubelet-certificate-authority": ca.until, "kubelet-client-certificate": kubelet.until, "kubeconfig": client.until,
		} {
			if got, want := endOf(t, metrics, name), float64(until.Unix()); got != want {
				t.Errorf("--%s: %s ends at %v, want %v", tt[0], name, got, want)
			}
		}
	}
}

// TestClientCertificateIsFollowed: a client certificate that a kubeconfig names is called that when
// it has been replaced.
func TestClientCertificateIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newAuthority(t, "client", time.Hour), newAuthority(t, "client", 2*time.Hour)
		var log bytes.Buffer
		conf := &clientrest.Config{TLSClientConfig: clientrest.TLSClientConfig{CertFile: first.cert, KeyFile: first.key}}
		all, err := new(besideOptions).given(&auth.Files{Log: slog.New(slog.NewTextHandler(&log, nil))}, conf)
		if err != nil || len(all) != 1 || !all[0].Now().NotAfter.Equal(first.until) {
			t.Fatal(all, err)
		}
		if err = os.WriteFile(first.cert, append(readFile(t, second.cert), '\n'), 0o600); err != nil { // of another size
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if !all[0].Now().NotAfter.Equal(second.until) || !strings.Contains(log.String(), `what="client certificate of the kubeconfig" file=`+first.cert) {
			t.Errorf("it ends %v; the log says\n%s", all[0].Now().NotAfter, &log)
		}
	})
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAuthoritiesEnd: of the authorities in a file that one counts which is the next to end and
// has no successor of its name.
func TestAuthoritiesEnd(t *testing.T) {
	for _, tt := range []struct {
		names string
		hours []time.Duration
		want  int
	}{
		{"a", []time.Duration{1}, 0},
		{"aa", []time.Duration{1, 3}, 1},
		{"aa", []time.Duration{3, 1}, 0},
		{"ab", []time.Duration{3, 1}, 1},
		{"ab", []time.Duration{1, 3}, 0},
		{"aba", []time.Duration{1, 3, 2}, 2},
		{"ab", []time.Duration{-1, 3}, 1},
		{"abc", []time.Duration{-1, 3, 2}, 2},
		{"ab", []time.Duration{-1, -3}, 0},
		{"ab", []time.Duration{-3, -1}, 1},
	} {
		var text []byte
		for i, h := range tt.hours {
			text = append(text, readFile(t, newAuthority(t, tt.names[i:i+1], h*time.Hour).cert)...)
		}
		file := filepath.Join(t.TempDir(), "ca.crt")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := auth.ParseCertificates(text)
		if err != nil {
			t.Fatal(err)
		}
		e, err := expiringAuthority(&auth.Files{}, "x", file)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Now(); !got.Equal(list[tt.want]) {
			t.Errorf("%s, that end in %v: got %s, which ends %v", tt.names, tt.hours, got.Subject.CommonName, got.NotAfter)
		}
	}
}

// TestOpenKubeconfig: a hub warns of a kubeconfig with a secret in it that others may read.
func TestOpenKubeconfig(t *testing.T) {
	client := newAuthority(t, "client", time.Hour)
	for name, tt := range map[string]struct {
		user *clientcmdapi.AuthInfo
		mode os.FileMode
		want bool
	}{
		"token":         {&clientcmdapi.AuthInfo{Token: "t"}, 0o640, true},
		"password":      {&clientcmdapi.AuthInfo{Username: "u", Password: "p"}, 0o604, true},
		"key":           {&clientcmdapi.AuthInfo{ClientCertificateData: readFile(t, client.cert), ClientKeyData: readFile(t, client.key)}, 0o644, true},
		"for its user":  {&clientcmdapi.AuthInfo{Token: "t"}, 0o600, false},
		"names a token": {&clientcmdapi.AuthInfo{TokenFile: client.cert}, 0o644, false}, // as the pod of hawser manifest has it
		"names a key":   {&clientcmdapi.AuthInfo{ClientCertificate: client.cert, ClientKey: client.key}, 0o644, false},
		"says nobody's": {&clientcmdapi.AuthInfo{}, 0o644, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := clientcmdapi.NewConfig()
			c.Clusters["c"], c.AuthInfos["u"] = &clientcmdapi.Cluster{Server: "https://192.0.2.1"}, tt.user
			c.Contexts["x"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := errors.Join(clientcmd.WriteToFile(*c, file), os.Chmod(file, tt.mode)); err != nil {
				t.Fatal(err)
			}
			o, err := parse(t, "--kubeconfig", file)
			if err != nil {
				t.Fatal(err)
			}
			o.dataDir = "/dev/null/none" // it ends there
			var log bytes.Buffer
			if err = runBeside(t.Context(), o, nil, slog.New(slog.NewTextHandler(&log, nil))); err == nil || !strings.Contains(err.Error(), o.dataDir) {
				t.Error(err)
			}
			if got := strings.Contains(log.String(), "the kubeconfig can be read by other users: chmod 600"); got != tt.want {
				t.Errorf("warned: %v\n%s", got, &log)
			}
		})
	}
}

// TestUnusableCluster: a server that agents could not reach through the hub is refused when it
// starts.
func TestUnusableCluster(t *testing.T) {
	for name, tt := range map[string]struct{ server, proxy, want string }{
		"a proxy":               {"https://192.0.2.1", "http://192.0.2.2:3128", "remove proxy-url"},
		"a path":                {"https://192.0.2.1/k8s/clusters/x", "", "its URL can have no path"},
		"a path that ends so":   {"https://192.0.2.1:6443/x/", "", "its URL can have no path"},
		"no TLS":                {"http://192.0.2.1", "", "want https://"},
		"a slash":               {"https://192.0.2.1/", "", "/dev/null/none"}, // it ends there
		"an address and a port": {"https://192.0.2.1:6443", "", "/dev/null/none"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clientcmdapi.NewConfig()
			c.Clusters["c"], c.AuthInfos["u"] = &clientcmdapi.Cluster{Server: tt.server, ProxyURL: tt.proxy}, &clientcmdapi.AuthInfo{}
			c.Contexts["x"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := clientcmd.WriteToFile(*c, file); err != nil {
				t.Fatal(err)
			}
			o, err := parse(t, "--kubeconfig", file)
			if err != nil {
				t.Fatal(err)
			}
			o.dataDir = "/dev/null/none"
			if err = runBeside(t.Context(), o, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
