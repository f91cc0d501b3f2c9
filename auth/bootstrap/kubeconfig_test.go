// Tests of a node whose identity is in a kubeconfig.

package bootstrap

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// A kubeletConf is the kubeconfig of a kubelet, and the files that it names.
type kubeletConf struct {
	t                *testing.T
	ca               *authority
	file, pem, roots string
	written          time.Time // the time of the files
}

func newKubeletConf(t *testing.T) *kubeletConf {
	t.Helper()
	dir := t.TempDir()
	return &kubeletConf{t: t, ca: newAuthority(t), written: time.Now(), file: filepath.Join(dir, "kubelet.conf"), pem: filepath.Join(dir, "kubelet-client-current.pem"), roots: filepath.Join(dir, "ca.crt")}
}

// put writes all files, with a new certificate like tmpl. The kubeconfig names the files if
// change is nil.
func (k *kubeletConf) put(tmpl *x509.Certificate, change func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo)) *x509.Certificate {
	k.t.Helper()
	key := pkitest.NewKey(k.t)
	cert := k.ca.Sign(k.t, tmpl, key.Public())
	must := func(err error) {
		k.t.Helper()
		if err != nil {
			k.t.Fatal(err)
		}
	}
	must(writePair(k.pem, encodeCerts(cert), key))
	must(os.WriteFile(k.roots, encodeCerts(k.ca.Cert), 0o600))
	conf := clientcmdapi.NewConfig()
	cluster := &clientcmdapi.Cluster{Server: "https://api.internal:7443", CertificateAuthority: "ca.crt"}
	user := &clientcmdapi.AuthInfo{ClientCertificate: "kubelet-client-current.pem", ClientKey: k.pem}
	if change != nil {
		change(cluster, user)
	}
	conf.Clusters["c"], conf.AuthInfos["u"] = cluster, user
	conf.Contexts["x"], conf.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	must(clientcmd.WriteToFile(*conf, k.file))
	k.written = k.written.Add(time.Second) // the clock of the file system may not have moved
	for _, file := range []string{k.pem, k.roots, k.file} {
		must(os.Chtimes(file, k.written, k.written))
	}
	return cert
}

// embed has the kubeconfig contain everything.
func (k *kubeletConf) embed(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
	pair, err := os.ReadFile(k.pem)
	if err != nil {
		k.t.Fatal(err)
	}
	// The files are named, too: what is embedded counts.
	c.CertificateAuthorityData, u.ClientCertificateData, u.ClientKeyData = encodeCerts(k.ca.Cert), pair, pair
}

// given reads the kubeconfig for node-1.
func (k *kubeletConf) given() (*Kubeconfig, *Identity, error) {
	conf, err := ReadKubeconfig(k.file)
	if err != nil {
		return nil, nil, err
	}
	id, err := Given(Config{NodeName: "node-1", Dir: k.t.TempDir(), Servers: []string{conf.Server}, APIServerName: conf.APIServerName}, conf.Files)
	return conf, id, err
}

// A certificate that is replaced is taken into use, in the kubeconfig and in the file that it
// names.
func TestKubeconfigIsFollowed(t *testing.T) {
	for name, embedded := range map[string]bool{"embedded": true, "in files": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKubeletConf(t)
				var change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)
				if embedded {
					change = k.embed
				}
				first := k.put(pkitest.NodeClient("node-1"), change)
				conf, id, err := k.given()
				if err != nil {
					t.Fatal(err)
				}
				if conf.Server != "https://api.internal:7443" || id.APIServerName() != "api.internal" || !id.cert.Load().Leaf.Equal(first) {
					t.Errorf("server %s, called %s, or another certificate", conf.Server, id.APIServerName())
				}
				r, err := NewRotation(RotationConfig{Identity: id, Requests: &memoryRequests{t: t, ca: k.ca, life: time.Hour}, NotServing: true})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				second := k.put(pkitest.NodeClient("node-1"), change)
				advance(3 * time.Second)
				if !id.cert.Load().Leaf.Equal(second) {
					t.Error("the new certificate is not in use")
				}
				for _, tmpl := range []*x509.Certificate{pkitest.NodeClient("node-2"), {Subject: pkitest.NodeClient("node-1").Subject}} {
					if tmpl.ExtKeyUsage == nil {
						tmpl.Subject.Organization = nil
					}
					k.put(tmpl, change)
					advance(3 * time.Second)
					if !id.cert.Load().Leaf.Equal(second) {
						t.Errorf("the certificate of %s is in use", tmpl.Subject)
					}
				}
				k.put(pkitest.NodeClient("node-1"), func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.ClientCertificate = "other.pem" })
				advance(3 * time.Second)
				if !id.cert.Load().Leaf.Equal(second) {
					t.Error("a certificate is in use that another file has")
				}
				k.ca = newAuthority(t)
				third := k.put(pkitest.NodeClient("node-1"), change)
				advance(3 * time.Second)
				if !id.cert.Load().Leaf.Equal(third) || !id.ClientTLS("x").RootCAs.Equal(poolOf([]*x509.Certificate{k.ca.Cert})) {
					t.Error("the new certificate and authority are not in use")
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestKubeconfigServer: a URL without a port means 443, as in kubectl.
func TestKubeconfigServer(t *testing.T) {
	for url, want := range map[string]string{
		"https://api.internal:7443": "https://api.internal:7443",
		"https://api.internal":      "https://api.internal:443",
		"https://api.internal/":     "https://api.internal:443",
		"https://[fd00::1]":         "https://[fd00::1]:443",
	} {
		k := newKubeletConf(t)
		k.put(pkitest.NodeClient("node-1"), func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = url })
		conf, err := ReadKubeconfig(k.file)
		if err != nil || conf.Server != want {
			t.Errorf("%s: %+v, %v, want %s", url, conf, err, want)
		}
	}
}

// What is no identity of this node is refused in a line that says why.
func TestKubeconfigIsRefused(t *testing.T) {
	node := pkitest.NodeClient("node-1")
	nobody := pkitest.NodeClient("node-1")
	nobody.Subject.Organization = nil
	type (
		cluster = clientcmdapi.Cluster
		user    = clientcmdapi.AuthInfo
	)
	for name, tt := range map[string]struct {
		tmpl   *x509.Certificate
		change func(*cluster, *user)
		want   string
	}{
		"another node":  {pkitest.NodeClient("node-2"), nil, `of node "node-2", not "node-1" (--node-name)`},
		"no node":       {nobody, nil, "does not include system:nodes"},
		"a token":       {node, func(_ *cluster, u *user) { u.Token = "x" }, "other credentials"},
		"a token alone": {node, func(_ *cluster, u *user) { *u = user{Token: "x"} }, "no client certificate"},
		"a program": {node, func(_ *cluster, u *user) {
			u.Exec = &clientcmdapi.ExecConfig{Command: "x", APIVersion: "client.authentication.k8s.io/v1"}
		}, "other credentials"},
		"another user":         {node, func(_ *cluster, u *user) { u.Impersonate = "admin" }, "other credentials"},
		"no key":               {node, func(_ *cluster, u *user) { u.ClientKey = "" }, "no client certificate"},
		"no file":              {node, func(_ *cluster, u *user) { u.ClientCertificate = "none.pem" }, "none.pem: no such file"},
		"a certificate as key": {node, func(c *cluster, u *user) { u.ClientKey = c.CertificateAuthority }, "private key"},
		"no authority":         {node, func(c *cluster, _ *user) { c.CertificateAuthority = "" }, "no certificate-authority"},
		"any authority":        {node, func(c *cluster, _ *user) { c.InsecureSkipTLSVerify = true }, "no certificate-authority"},
		"a proxy":              {node, func(c *cluster, _ *user) { c.ProxyURL = "http://proxy:3128" }, "set HTTPS_PROXY"},
		"without TLS":          {node, func(c *cluster, _ *user) { c.Server = "http://api.internal" }, `"http://api.internal" is not https://HOST:PORT`},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubeletConf(t)
			k.put(tt.tmpl, tt.change)
			_, _, err := k.given()
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	for text, want := range map[string]string{
		"":                            `its current-context, "", is none of its contexts`,
		"a: [":                        "yaml",
		"-----BEGIN CERTIFICATE-----": "kubeconfig",
		"kind: Pod\napiVersion: v1\n": "Pod",
		"current-context: x\n":        `its current-context, "x", is none of its contexts`,
		strings.Repeat("# \n", 1<<19): "at most 1048576 are read",
	} {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKubeconfig(file); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.30q: got %v, want %s", text, err, want)
		}
	}
}
