// Tests of whose certificates count at a hub beside another API server, and of what hubs
// publish.

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// TestWhoIsAnAgent: without a flag the cluster's authority counts, once the cluster has
// said which it is; with --client-ca-file that of the file, and with --agent-ca that one
// alone: neither waits for what the cluster says. The hub's own, of the front end, never
// does.
func TestWhoIsAnAgent(t *testing.T) {
	cluster, named := pkitest.New(t, "cluster"), pkitest.New(t, "named")
	file := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(file, named.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: []string{"localhost"}, HubOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	own := pkitest.Load(t, keys.Path(pki.ClientCA, false), keys.Path(pki.ClientCA, true))
	for _, tc := range []struct {
		args      []string
		published bool
		want      string
	}{
		{nil, true, "cluster"},
		{nil, false, ""},
		{[]string{"--client-ca-file", file}, true, "named"},
		{[]string{"--agent-ca", file}, true, "named"},
		{[]string{"--connect-client-ca-file", file}, true, "cluster"},
		{[]string{"--client-ca-file", file}, false, "named"},
		{[]string{"--agent-ca", file}, false, "named"},
	} {
		o, err := parse(t, append([]string{"--kubeconfig", "x"}, tc.args...)...)
		if err != nil {
			t.Fatal(err)
		}
		clients, err := newClusterClients(fake.NewClientset())
		if err != nil {
			t.Fatal(err)
		}
		if tc.published {
			publishClients(t, clients, cluster)
		}
		h := &hubBeside{o: o, keys: keys, files: &auth.Files{}, clients: clients}
		ring, err := h.keyring(new(peerTrust))
		if err != nil {
			t.Fatal(err)
		}
		var in []string
		for name, ca := range map[string]*pkitest.Authority{"cluster": cluster, "named": named, "own": own} {
			if letsIn(t, ring.agents, ca) {
				in = append(in, name)
			}
		}
		if got := strings.Join(in, " "); got != tc.want {
			t.Errorf("%q, published %t: agents of %q are let in, want %q", tc.args, tc.published, got, tc.want)
		}
		ready := false // the hub is not until somebody can be let in
		select {
		case <-h.knowsAgents():
			ready = true
		default:
		}
		if ready != (tc.want != "") {
			t.Errorf("%q, published %t: agents can be known: %t", tc.args, tc.published, ready)
		}
		shared := o.beside.connectCA != ""
		if letsIn(t, ring.clients, own) == shared || letsIn(t, ring.clients, named) != shared || letsIn(t, ring.clients, cluster) {
			t.Errorf("%q: the front end does not go by its own authority, or that of the flag", tc.args)
		}
	}
}

// TestSeveralAuthorities: files of flags have independent authorities, and who was signed by
// any of them counts, whichever was made first.
func TestSeveralAuthorities(t *testing.T) {
	first, second := pkitest.New(t, "first"), pkitest.New(t, "second")
	file := filepath.Join(t.TempDir(), "cas")
	if err := os.WriteFile(file, append(first.PEM(), second.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: []string{"localhost"}, HubOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse(t, "--kubeconfig", "x", "--agent-ca", file, "--connect-client-ca-file", file, "--kubelet-certificate-authority", file)
	if err != nil {
		t.Fatal(err)
	}
	h := &hubBeside{o: o, keys: keys, files: &auth.Files{}}
	ring, err := h.keyring(new(peerTrust))
	if err != nil {
		t.Fatal(err)
	}
	kubelets, err := o.beside.kubelets(h.files)
	if err != nil {
		t.Fatal(err)
	}
	for _, ca := range []*pkitest.Authority{first, second} {
		shown := ca.Issue(t, pkitest.NodeServing("node-1", "node-1")).Leaf
		err := kubelets.VerifyConnection(tls.ConnectionState{ServerName: "node-1", PeerCertificates: []*x509.Certificate{shown}})
		if agents, clients := letsIn(t, ring.agents, ca), letsIn(t, ring.clients, ca); err != nil || !agents || !clients {
			t.Errorf("%s: a kubelet: %v, an agent: %t, a client: %t", ca.Cert.Subject.CommonName, err, agents, clients)
		}
	}
}

// publishClients has c know an authority as if it had read it.
func publishClients(t *testing.T, c *clusterClients, ca *pkitest.Authority) {
	t.Helper()
	api := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: clientsNamespace, Name: clientsName}, Data: map[string]string{clientsKey: string(ca.PEM())},
	})
	fresh, err := newClusterClients(api)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- fresh.run(t.Context()) }()
	<-fresh.known
	c.ConfigMapCAController = fresh.ConfigMapCAController
	c.Enqueue()
}

// letsIn says whether a server of conf takes a node's certificate that ca has signed.
func letsIn(t *testing.T, conf *tls.Config, ca *pkitest.Authority) bool {
	t.Helper()
	node := ca.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	mine, its := net.Pipe()
	defer mine.Close()
	defer its.Close()
	server := make(chan error, 1)
	go func() {
		err := tls.Server(its, conf).HandshakeContext(t.Context())
		_ = its.Close()
		server <- err
	}()
	client := tls.Client(mine, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*node}})
	if client.HandshakeContext(t.Context()) == nil {
		_, _ = client.Read(make([]byte, 1)) // what the server makes of the certificate comes after the handshake
	}
	return <-server == nil
}

// TestHubsPublishTogether: each hub's authority is there beside the others', once, and
// those that have expired are not.
func TestHubsPublishTogether(t *testing.T) {
	a, b, old := pkitest.New(t, "a").Cert, pkitest.New(t, "b").Cert, pkitest.New(t, "old").Cert
	now := time.Now()
	var data map[string]string
	for _, own := range [][]*x509.Certificate{{old}, {a}, {b}, {a}} {
		next, err := withAuthorities(data, own, now)
		if err != nil {
			t.Fatal(err)
		}
		data = next
	}
	if n := strings.Count(data[hubKey], "BEGIN"); n != 3 {
		t.Errorf("there are %d authorities, want 3", n)
	}
	data["other"] = "kept"
	if next, err := withAuthorities(data, []*x509.Certificate{a}, a.NotAfter.Add(time.Second)); err != nil || next[hubKey] != "" || next["other"] != "kept" {
		t.Errorf("after their end there is %q, %v", next, err)
	}
	many := &bytes.Buffer{}
	for range maxHubs {
		many.WriteString(string(pkitest.PEM("CERTIFICATE", pkitest.New(t, "x").Cert.Raw)))
	}
	if _, err := withAuthorities(map[string]string{hubKey: many.String()}, []*x509.Certificate{a}, now); err == nil {
		t.Error("there is no bound")
	}
}
