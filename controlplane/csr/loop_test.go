package csr

// Tests of the controllers as they run: from a request to a certificate.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func testAuthority(t *testing.T, from, to time.Time) *authority {
	t.Helper()
	key := ecKey(t, elliptic.P256())
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: from, NotAfter: to, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// files writes the authority to files.
func (ca *authority) files(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	err = errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// allowByUser answers SubjectAccessReviews as the cluster's rules would.
func allowByUser(client *fake.Clientset) {
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, _ := a.(clienttesting.CreateAction)
		sar, _ := create.GetObject().(*authorizationv1.SubjectAccessReview)
		switch {
		case sar.Spec.User == "system:bootstrap:abcdef":
			sar.Status.Allowed = sar.Spec.ResourceAttributes.Subresource == "nodeclient"
		case strings.HasPrefix(sar.Spec.User, "system:node:"):
			sar.Status.Allowed = sar.Spec.ResourceAttributes.Subresource == "selfnodeclient"
		}
		return true, sar, nil
	})
}

// A bench runs all of this package's controllers against a fake API server.
type bench struct {
	client  *fake.Clientset
	ca      *authority // of clients
	serving *authority
	stop    func()
}

func newBench(t *testing.T, objs ...runtime.Object) *bench {
	t.Helper()
	return newBenchWith(t, func(*fake.Clientset) {}, objs...)
}

// newBenchWith calls prepare before anything uses the client.
func newBenchWith(t *testing.T, prepare func(*fake.Clientset), objs ...runtime.Object) *bench {
	t.Helper()
	b := &bench{client: fake.NewClientset(objs...), ca: testAuthority(t, time.Now().Add(-time.Hour), time.Now().Add(365*24*time.Hour))}
	allowByUser(b.client)
	prepare(b.client)
	f := informers.NewSharedInformerFactory(b.client, 0)
	b.serving = testAuthority(t, time.Now().Add(-time.Hour), time.Now().Add(365*24*time.Hour))
	cert, key := b.ca.files(t)
	servingCert, servingKey := b.serving.files(t)
	server := auth.NewServerNames("hub", "192.0.2.7")
	d := loop.Deps{Client: b.client, Informers: f}
	signer, err := NewSigner(d, SignerConfig{
		CertFile: cert, KeyFile: key, ServingCertFile: servingCert, ServingKeyFile: servingKey, Server: server, Duration: 24 * time.Hour,
	})
	approver, more := NewApprover(d, ApproverConfig{Server: server})
	cleaner, most := NewCleaner(d, CleanerConfig{Period: time.Hour})
	tokens, all := NewTokenCleaner(d, TokenCleanerConfig{})
	if err := errors.Join(err, more, most, all); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- loop.Together(ctx, approver.Run, signer.Run, cleaner.Run, tokens.Run) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the controllers: %v", err)
		}
		f.Shutdown()
	}
	return b
}

func (b *bench) create(t *testing.T, r *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	if _, err := b.client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hold has a key hold a node's name.
func (b *bench) hold(t *testing.T, node string, k nodekeys.Key) {
	t.Helper()
	if err := nodekeys.NewBook(b.client).Claim(t.Context(), node, k, ""); err != nil {
		t.Fatal(err)
	}
}

// after lets d pass and returns the request as it then is.
func (b *bench) after(t *testing.T, d time.Duration, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	<-time.After(d)
	synctest.Wait()
	r, err := b.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func outcome(r *certificatesv1.CertificateSigningRequest) string {
	approved, denied, failed := decided(r)
	switch {
	case denied:
		return "denied"
	case failed:
		return "failed"
	case approved && len(r.Status.Certificate) > 0:
		return "issued"
	case approved:
		return "approved"
	}
	return "pending"
}

var bootGroups = []string{"system:bootstrappers", "system:authenticated"}

func TestFromRequestToCertificate(t *testing.T) {
	nodeGroups := []string{"system:nodes", "system:authenticated"}
	busy := liveNode(corev1.ConditionTrue)
	busy.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}}
	dns := func(r *x509.CertificateRequest) { r.DNSNames = []string{r.Subject.CommonName[len("system:node:"):]} }
	for _, tc := range []struct {
		name   string
		signer string
		user   string
		groups []string
		usages []certificatesv1.KeyUsage
		req    *x509.CertificateRequest
		want   string
		says   string
	}{
		{"first", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, forNode("node-9", nil), "issued", "Auto approving kubelet client certificate after SubjectAccessReview."},
		{"first of a name in use", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, forNode("node-1", nil), "denied", `node name "node-1" is held by the key of another machine`},
		{"bad name", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, forNode("Bad_Name", nil), "pending", ""},
		{"the server's name", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, forNode("hub", nil), "denied", `node name "hub" is a name of the server (hub): choose another --node-name`},
		{"the server's address", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, forNode("192.0.2.7", nil), "denied", "is a name of the server"},
		{"renewal of the server's name", clientSigner, "system:node:localhost", nodeGroups, clientUsages, forNode("localhost", nil), "denied", "is a name of the server"},
		{"no node's", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, subject("alice", "developers"), "pending", ""},
		{"too many usages", clientSigner, "system:bootstrap:abcdef", bootGroups, append(usages(certificatesv1.UsageServerAuth), clientUsages...), forNode("node-9", nil), "pending", ""},
		{"with names", clientSigner, "system:bootstrap:abcdef", bootGroups, clientUsages, forNode("node-9", dns), "pending", ""},
		{"token without the binding", clientSigner, "system:bootstrap:fedcba", bootGroups, clientUsages, forNode("node-9", nil), "pending", ""},
		{"renewal", clientSigner, "system:node:node-1", nodeGroups, clientUsages, forNode("node-1", nil), "issued", "Auto approving self kubelet client certificate after SubjectAccessReview."},
		{"another node's", clientSigner, "system:node:node-2", nodeGroups, clientUsages, forNode("node-1", nil), "pending", ""},
		{"by a user", clientSigner, "alice", nil, clientUsages, forNode("node-9", nil), "pending", ""},
		{"serving", servingSigner, "system:node:node-1", nodeGroups, servingUsages, forNode("node-1", dns), "issued", "it names exactly the node."},
		{"serving another's address", servingSigner, "system:node:node-1", nodeGroups, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.DNSNames = []string{"node-2"} }), "pending", ""},
		{"serving before the node is there", servingSigner, "system:node:node-7", nodeGroups, servingUsages, forNode("node-7", dns), "issued", ""},
		{"serving its own address", servingSigner, "system:node:node-1", nodeGroups, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { dns(r); r.IPAddresses = []net.IP{{10, 1, 2, 3}} }), "pending", ""},
		{"serving the server's name", servingSigner, "system:node:node-1", nodeGroups, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.DNSNames = []string{"node-1", "hub"} }), "denied", `DNS name "hub" is the server's`},
		{"serving of another", servingSigner, "system:node:node-2", nodeGroups, servingUsages, forNode("node-1", dns), "pending", ""},
		{"a user's", userSigner, "alice", nil, clientUsages, subject("alice"), "pending", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, busy)
				b.hold(t, "node-1", nodekeys.Key{1})
				defer b.stop()
				text := encoded(t, tc.req, nil)
				b.create(t, object("r", tc.signer, tc.user, tc.groups, tc.usages, text))
				r := b.after(t, time.Second, "r")
				if got := outcome(r); got != tc.want {
					t.Fatalf("%s, want %s: %+v", got, tc.want, r.Status.Conditions)
				}
				if tc.says != "" && !strings.Contains(r.Status.Conditions[0].Message, tc.says) {
					t.Errorf("says %q, want %q", r.Status.Conditions[0].Message, tc.says)
				}
				if tc.want == "issued" {
					ca := b.ca
					if tc.signer == servingSigner {
						ca = b.serving
					}
					checkIssued(t, ca, r)
				}
			})
		})
	}
}

// checkIssued makes sure that a certificate is what was asked for, and no more.
func checkIssued(t *testing.T, ca *authority, r *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	req, err := parse(r)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(r.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Error(err)
	}
	if cert.Subject.String() != req.Subject.String() || strings.Join(cert.DNSNames, ",") != strings.Join(req.DNSNames, ",") {
		t.Errorf("certificate for %s %v, asked for %s %v", cert.Subject, cert.DNSNames, req.Subject, req.DNSNames)
	}
	if cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign != 0 {
		t.Error("the certificate can sign others")
	}
	if key, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !key.Equal(req.PublicKey) {
		t.Error("the certificate is for another key")
	}
	if since := time.Since(cert.NotBefore); since < auth.Backdate || since > auth.Backdate+time.Minute {
		t.Errorf("not before %s ago, want %s", since, auth.Backdate)
	}
	if left := time.Until(cert.NotAfter); left > 24*time.Hour || left < 23*time.Hour {
		t.Errorf("lasts %s more, want a day", left)
	}
	want := x509.ExtKeyUsageClientAuth
	if r.Spec.SignerName == servingSigner {
		want = x509.ExtKeyUsageServerAuth
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != want {
		t.Errorf("extended usages %v, want [%v]", cert.ExtKeyUsage, want)
	}
}

// TestSignKeepsNothingElse: whatever else a request carries is not in the certificate.
func TestSignKeepsNothingElse(t *testing.T) {
	isCA, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	req := forNode("node-1", func(r *x509.CertificateRequest) {
		r.Subject.OrganizationalUnit, r.Subject.Country = []string{"system:masters"}, []string{"XX"}
		r.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "kubernetes-admin"}}
		r.ExtraExtensions = []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: isCA},
			{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte("x")},
		}
	})
	now := time.Now()
	ca := testAuthority(t, now.Add(-time.Hour), now.Add(time.Hour))
	r := object("r", clientSigner, "x", nil, clientUsages, encoded(t, req, nil))
	got, err := parse(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = kubeletClient(got, clientUsages); err == nil {
		t.Errorf("two common names, %q counts, and it is taken for a node", got.Subject.CommonName)
	}
	got.Subject.CommonName = "system:node:node-1"
	text, err := ca.sign(got, clientUsages, time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if cert.IsCA || cert.Subject.String() != "CN=system:node:node-1,O=system:nodes" || len(cert.Subject.Names) != 2 {
		t.Errorf("subject %s, CA %v", cert.Subject, cert.IsCA)
	}
	for _, e := range cert.Extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}) {
			t.Error("an extension of the request was copied")
		}
	}
}

// TestSignerChecksWhatAPersonApproved: approval is not enough.
func TestSignerChecksWhatAPersonApproved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		approve := func(name string, r *certificatesv1.CertificateSigningRequest) string {
			r.Name = name
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(),
			}}
			b.create(t, r)
			return outcome(b.after(t, time.Second, name))
		}
		if got := approve("good", object("", userSigner, "admin", nil, clientUsages, encoded(t, subject("alice", "developers"), nil))); got != "issued" {
			t.Errorf("a user: %s", got)
		}
		if got := approve("masters", object("", userSigner, "admin", nil, clientUsages, encoded(t, subject("eve", "system:masters"), nil))); got != "failed" {
			t.Errorf("an administrator: %s", got)
		}
		if got := approve("forged", object("", servingSigner, "alice", nil, servingUsages, encoded(t, forNode("node-1", nil), nil))); got != "failed" {
			t.Errorf("a kubelet's, asked for by a user: %s", got)
		}
		if got := approve("foreign", object("", "example.com/other", "admin", nil, clientUsages, encoded(t, subject("x"), nil))); got != "approved" {
			t.Errorf("somebody else's signer: %s", got)
		}
		r := b.after(t, 0, "masters")
		c := r.Status.Conditions[len(r.Status.Conditions)-1]
		if c.Reason != "SignerValidationFailure" || !strings.Contains(c.Message, "system:masters") {
			t.Errorf("says %s: %s", c.Reason, c.Message)
		}
	})
}

func TestDuration(t *testing.T) {
	s := &Signer{cfg: SignerConfig{Duration: 24 * time.Hour}}
	for asked, want := range map[int32]time.Duration{
		600: 10 * time.Minute, 3600: time.Hour, 1: 10 * time.Minute, 24 * 3600: 24 * time.Hour, 1 << 30: 24 * time.Hour,
	} {
		r := &certificatesv1.CertificateSigningRequest{}
		r.Spec.ExpirationSeconds = ptr.To(asked)
		if got := s.duration(r); got != want {
			t.Errorf("%d s: %s, want %s", asked, got, want)
		}
	}
	if got := s.duration(&certificatesv1.CertificateSigningRequest{}); got != 24*time.Hour {
		t.Errorf("nothing asked: %s", got)
	}
}

func TestSignDoesNotOutlastTheAuthority(t *testing.T) {
	now := time.Now()
	ca := testAuthority(t, now.Add(-time.Hour), now.Add(time.Hour))
	req, err := parse(object("r", clientSigner, "x", nil, clientUsages, encoded(t, forNode("node-1", nil), nil)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := ca.sign(req, clientUsages, 24*time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.NotAfter.Equal(ca.cert.NotAfter) {
		t.Errorf("until %s, the authority until %s", cert.NotAfter, ca.cert.NotAfter)
	}
	if _, err := ca.sign(req, clientUsages, time.Hour, now.Add(2*time.Hour)); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired authority signs: %v", err)
	}
	if _, err := ca.sign(req, usages(certificatesv1.UsageCodeSigning), time.Hour, now); err == nil {
		t.Error("an unknown usage is signed")
	}
}

func TestNewSignerNeedsItsAuthority(t *testing.T) {
	client := fake.NewClientset()
	f := informers.NewSharedInformerFactory(client, 0)
	if _, err := NewSigner(loop.Deps{Client: client, Informers: f}, SignerConfig{CertFile: "/nowhere/ca.crt", KeyFile: "/nowhere/ca.key"}); err == nil || !strings.Contains(err.Error(), "/nowhere/ca.crt") {
		t.Errorf("got %v", err)
	}
}

// TestCleaners lets a day pass over old requests and tokens.
func TestCleaners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := func(id string, expires string) *corev1.Secret {
			s := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
				Type:       "bootstrap.kubernetes.io/token", Data: map[string][]byte{"token-id": []byte(id)},
			}
			if expires != "" {
				s.Data["expiration"] = []byte(expires)
			}
			return s
		}
		in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		other := token("notype", in(-time.Hour))
		other.Type = corev1.SecretTypeOpaque
		b := newBench(t, token("expired", in(-time.Minute)), token("soon", in(time.Hour)), token("never", ""), token("odd", "tomorrow"), other,
			object("alone", userSigner, "alice", nil, clientUsages, encoded(t, subject("alice"), nil)))
		defer b.stop()
		left := func(step, want string) {
			t.Helper()
			synctest.Wait()
			list, err := b.client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range list.Items {
				got = append(got, strings.TrimPrefix(list.Items[i].Name, "bootstrap-token-"))
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("%s: left are %q, want %q", step, s, want)
			}
		}
		<-time.After(time.Second)
		left("at once", "never notype odd soon")
		<-time.After(time.Hour)
		left("after an hour", "never notype odd")
		if r := b.after(t, 22*time.Hour, "alone"); r == nil {
			t.Error("a pending request went before its day was over")
		}
		if r := b.after(t, 3*time.Hour, "alone"); r != nil {
			t.Error("a pending request is still there after a day")
		}
	})
}

// TestPermissionIsRememberedBriefly: nodes that join together with one token cost one review, and
// who has lost the permission gets no certificate two seconds later.
func TestPermissionIsRememberedBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviews, withdrawn := 0, false
		b := newBenchWith(t, func(client *fake.Clientset) {
			client.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				reviews++
				return withdrawn, &authorizationv1.SubjectAccessReview{}, nil
			})
		})
		defer b.stop()
		ask := func(name string) string {
			b.create(t, object(name, clientSigner, boot, bootGroups, clientUsages, encoded(t, forNode(name, nil), nil)))
			return outcome(b.after(t, time.Millisecond, name))
		}
		first := ask("node-1")
		withdrawn = true
		second := ask("node-2")
		if first != "issued" || second != "issued" || reviews != 1 {
			t.Errorf("two at once: %s and %s after %d reviews, want both issued after one", first, second, reviews)
		}
		<-time.After(permitFor)
		if got := ask("node-3"); got != "pending" {
			t.Errorf("after the permission was withdrawn: %s, want pending", got)
		}
	})
}
