// Tests of the controllers beside another process's API server.

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
// like it, by the name in its certificate too, and approves others.
func TestApproverBeside(t *testing.T) {
	decided := make(chan *certificatesv1.CertificateSigningRequest, 9)
	api := httptest.NewTLSServer(requests(t, decided, "example.com", "www.example.com", "hub.example.net", "node-1"))
	defer api.Close()
	port, err := freePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse(t, "--kubeconfig", kubeconfigFor(t, api), "--tls-san", "hub.example.net",
		"--controllers", "certificatesigningrequest-approving-controller", "--leader-elect=false",
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runBeside(ctx, o, slog.New(slog.DiscardHandler)) }()
	got := map[string]certificatesv1.RequestConditionType{}
	for range 4 {
		select {
		case r := <-decided:
			got[r.Name] = r.Status.Conditions[0].Type
		case err := <-ended:
			t.Fatal(err)
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
