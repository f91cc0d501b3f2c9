package csr

// Tests of the rules, with real requests.

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
	userSigner    = certificatesv1.KubeAPIServerClientSignerName
)

var (
	clientUsages  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	servingUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
)

func ecKey(t testing.TB, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// encoded returns a request for tmpl, in PEM, with a P-256 key if key is nil.
func encoded(t testing.TB, tmpl *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	if key == nil {
		key = ecKey(t, elliptic.P256())
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func subject(cn string, orgs ...string) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: orgs}}
}

func forNode(name string, change func(*x509.CertificateRequest)) *x509.CertificateRequest {
	r := subject("system:node:"+name, "system:nodes")
	if change != nil {
		change(r)
	}
	return r
}

func object(name, signer, user string, groups []string, usages []certificatesv1.KeyUsage, request []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", CreationTimestamp: metav1.Now()},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: signer, Usages: usages, Username: user, Groups: groups,
		},
	}
}

// extension adds one to a request.
func extension(id asn1.ObjectIdentifier, value []byte) func(*x509.CertificateRequest) {
	return func(r *x509.CertificateRequest) {
		r.ExtraExtensions = append(r.ExtraExtensions, pkix.Extension{Id: id, Value: value})
	}
}

// otherName is an alternative name of kind 0: a user principal name, "a".
var otherName = []byte{0x30, 19, 0xa0, 17, 6, 10, 0x2b, 6, 1, 4, 1, 0x82, 0x37, 20, 2, 3, 0xa0, 3, 12, 1, 'a'}

func usages(us ...certificatesv1.KeyUsage) []certificatesv1.KeyUsage { return us }

func TestCheckSigner(t *testing.T) {
	const node1 = "system:node:node-1"
	enc := certificatesv1.UsageKeyEncipherment
	link, err := url.Parse("spiffe://x")
	if err != nil {
		t.Fatal(err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dns := func(r *x509.CertificateRequest) { r.DNSNames = []string{"node-1"} }
	for _, tc := range []struct {
		name, signer, user string
		usages             []certificatesv1.KeyUsage
		req                *x509.CertificateRequest
		key                crypto.Signer
		says               string
	}{
		{"client", clientSigner, "boot", clientUsages, forNode("node-1", nil), nil, ""},
		{"client with encipherment", clientSigner, "boot", append(usages(enc), clientUsages...), forNode("node-1", nil), nil, ""},
		{"client, ed25519", clientSigner, "boot", clientUsages, forNode("node-1", nil), ed, ""},
		{"client, P-384", clientSigner, "boot", clientUsages, forNode("a.b.c", nil), ecKey(t, elliptic.P384()), ""},
		{"client, P-224", clientSigner, "boot", clientUsages, forNode("node-1", nil), ecKey(t, elliptic.P224()), "at least P-256"},
		{"client, RSA 1024", clientSigner, "boot", clientUsages, forNode("node-1", nil), small, "at least 2048"},
		{"client that serves", clientSigner, "boot", servingUsages, forNode("node-1", nil), nil, `usage "server auth" is not allowed`},
		{"client that serves too", clientSigner, "boot", append(usages(certificatesv1.UsageServerAuth), clientUsages...), forNode("node-1", nil), nil, `usage "server auth" is not allowed`},
		{"client that signs certificates", clientSigner, "boot", append(usages(certificatesv1.UsageCertSign), clientUsages...), forNode("node-1", nil), nil, `usage "cert sign" is not allowed`},
		{"client without client auth", clientSigner, "boot", usages(certificatesv1.UsageDigitalSignature), forNode("node-1", nil), nil, `usage "client auth" is missing`},
		{"client without signature", clientSigner, "boot", usages(certificatesv1.UsageClientAuth), forNode("node-1", nil), nil, `usage "digital signature" is missing`},
		{"client with DNS name", clientSigner, "boot", clientUsages, forNode("node-1", dns), nil, "alternative names are not allowed"},
		{"client with IP", clientSigner, "boot", clientUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} }), nil, "alternative names are not allowed"},
		{"client with e-mail", clientSigner, "boot", clientUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), nil, "alternative names are not allowed"},
		{"client with URI", clientSigner, "boot", clientUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.URIs = []*url.URL{link} }), nil, "alternative names are not allowed"},
		{"client that would be an authority", clientSigner, "boot", clientUsages, forNode("node-1", extension(asn1.ObjectIdentifier{2, 5, 29, 19}, []byte{0x30, 3, 1, 1, 0xff})), nil, "extension 2.5.29.19 is not allowed"},
		{"client with usages of its own", clientSigner, "boot", clientUsages, forNode("node-1", extension(asn1.ObjectIdentifier{2, 5, 29, 37}, []byte{0x30, 6, 6, 4, 0x55, 0x1d, 0x25, 0})), nil, "extension 2.5.29.37 is not allowed"},
		{"client with another name", clientSigner, "boot", clientUsages, forNode("node-1", extension(subjectAltName, otherName)), nil, "names of kind 0 are not allowed"},
		{"serving with another name", servingSigner, node1, servingUsages, forNode("node-1", extension(subjectAltName, append([]byte{0x30, byte(len(otherName) + 6)}, append(otherName[2:len(otherName):len(otherName)], 0x82, 6, 'n', 'o', 'd', 'e', '-', '1')...))), nil, "names of kind 0 are not allowed"},
		{"client in no group", clientSigner, "boot", clientUsages, subject(node1), nil, "organization must be [system:nodes]"},
		{"client in masters", clientSigner, "boot", clientUsages, subject(node1, "system:masters"), nil, "organization must be [system:nodes]"},
		{"client in two groups", clientSigner, "boot", clientUsages, subject(node1, "system:nodes", "system:masters"), nil, "organization must be [system:nodes]"},
		{"client of no node", clientSigner, "boot", clientUsages, subject("alice", "system:nodes"), nil, "must begin with system:node:"},
		{"client without name", clientSigner, "boot", clientUsages, forNode("", nil), nil, "is not a DNS subdomain"},
		{"client with capitals", clientSigner, "boot", clientUsages, forNode("Node", nil), nil, `node name "Node" is not a DNS subdomain`},
		{"client with underscore", clientSigner, "boot", clientUsages, forNode("a_b", nil), nil, "is not a DNS subdomain"},
		{"client with colon", clientSigner, "boot", clientUsages, forNode("a:b", nil), nil, "is not a DNS subdomain"},
		{"client with percent", clientSigner, "boot", clientUsages, forNode("a%b", nil), nil, "is not a DNS subdomain"},
		{"client too long", clientSigner, "boot", clientUsages, forNode(strings.Repeat("a", 254), nil), nil, "no more than 253"},

		{"serving", servingSigner, node1, servingUsages, forNode("node-1", dns), nil, ""},
		{"serving by another node", servingSigner, "system:node:node-2", servingUsages, forNode("node-1", dns), nil, "system:node:node-2 cannot ask for the serving certificate of node node-1"},
		{"serving by a token", servingSigner, "system:bootstrap:abcdef", servingUsages, forNode("node-1", dns), nil, "cannot ask for the serving certificate"},
		{"serving without names", servingSigner, node1, servingUsages, forNode("node-1", nil), nil, "at least one DNS name"},
		{"serving with URI", servingSigner, node1, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { dns(r); r.URIs = []*url.URL{link} }), nil, "URIs are not allowed"},
		{"serving the server's name", servingSigner, node1, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.DNSNames = []string{"node-1", "HUB.example.com."} }), nil, `DNS name "HUB.example.com." is the server's`},
		{"serving a wildcard of it", servingSigner, node1, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.DNSNames = []string{"*.example.com"} }), nil, "is the server's"},
		{"serving the server's address", servingSigner, node1, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.ParseIP("192.0.2.7")} }), nil, "IP address 192.0.2.7 is the server's"},
		{"serving loopback", servingSigner, node1, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv6loopback} }), nil, "IP address ::1 is the server's"},
		{"client called like the server", clientSigner, "boot", clientUsages, forNode("hub.example.com", nil), nil, "choose another --node-name"},
		{"client called like its address", clientSigner, "boot", clientUsages, forNode("192.519", nil), nil, "choose another --node-name"},
		{"serving called like the server", servingSigner, "system:node:kubernetes", servingUsages, forNode("kubernetes", func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes"} }), nil, "choose another --node-name"},
		{"client that signs code", clientSigner, "boot", append(usages(certificatesv1.UsageCodeSigning), clientUsages...), forNode("node-1", nil), nil, `usage "code signing" is not allowed`},
		{"client for any use", clientSigner, "boot", append(usages(certificatesv1.UsageAny), clientUsages...), forNode("node-1", nil), nil, `usage "any" is not allowed`},
		{"serving for any use", servingSigner, node1, append(usages(certificatesv1.UsageAny), servingUsages...), forNode("node-1", dns), nil, `usage "any" is not allowed`},
		{"serving with e-mail", servingSigner, node1, servingUsages, forNode("node-1", func(r *x509.CertificateRequest) { dns(r); r.EmailAddresses = []string{"a@b"} }), nil, "e-mail addresses"},
		{"client with prefix in capitals", clientSigner, "boot", clientUsages, subject("System:Node:node-1", "system:nodes"), nil, "must begin with system:node:"},
		{"client with group in capitals", clientSigner, "boot", clientUsages, subject(node1, "System:Nodes"), nil, "organization must be [system:nodes]"},
		{"serving that is a client", servingSigner, node1, append(usages(certificatesv1.UsageClientAuth), servingUsages...), forNode("node-1", dns), nil, `usage "client auth" is not allowed`},

		{"user", userSigner, "admin", clientUsages, subject("alice", "developers"), nil, ""},
		{"user with client auth only", userSigner, "admin", usages(certificatesv1.UsageClientAuth), subject("alice"), nil, ""},
		{"user in masters", userSigner, "admin", clientUsages, subject("eve", "x", "system:masters"), nil, "must not include system:masters"},
		{"user that serves", userSigner, "admin", servingUsages, subject("alice"), nil, `usage "server auth" is not allowed`},
		{"user without client auth", userSigner, "admin", usages(certificatesv1.UsageDigitalSignature), subject("alice"), nil, `usage "client auth" is missing`},
		{"somebody else's signer", "example.com/x", "admin", clientUsages, subject("alice"), nil, "is not ours"},
		{"legacy signer", certificatesv1.KubeAPIServerClientSignerName + "-x", "admin", clientUsages, subject("alice"), nil, "is not ours"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := object("r", tc.signer, tc.user, nil, tc.usages, encoded(t, tc.req, tc.key))
			req, err := parse(r)
			if err != nil {
				t.Fatal(err)
			}
			checkSays(t, checkSigner(r, req, auth.NewServerNames("hub.example.com", "192.0.2.7")), tc.says)
		})
	}
}

func checkSays(t *testing.T, err error, says string) {
	t.Helper()
	switch {
	case says == "" && err != nil:
		t.Errorf("refused: %v", err)
	case says != "" && err == nil:
		t.Errorf("accepted, want %q", says)
	case says != "" && !strings.Contains(err.Error(), says):
		t.Errorf("says %q, want %q", err, says)
	}
}

func TestParseRefusesWhatIsNotARequest(t *testing.T) {
	good := encoded(t, forNode("node-1", nil), nil)
	block, _ := pem.Decode(good)
	forged := append([]byte(nil), block.Bytes...)
	forged[len(forged)-1] ^= 1 // the signature's last byte
	for name, tc := range map[string]struct {
		text []byte
		says string
	}{
		"good":      {good, ""},
		"empty":     {nil, "PEM block type"},
		"huge":      {append(good, make([]byte, maxRequest)...), "at most 16384 are read"},
		"huge key":  {hugeKey(t), "RSA key has 16385 bits"},
		"text":      {[]byte("hello"), "PEM block type"},
		"key":       {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: block.Bytes}), "PEM block type"},
		"truncated": {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: block.Bytes[:40]}), "parse request"},
		"forged":    {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: forged}), "signature"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(&certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: tc.text}})
			checkSays(t, err, tc.says)
		})
	}
}

// hugeKey is a request for a key that nobody has, whose signature takes long to
// check and does not fit.
func hugeKey(t *testing.T) []byte {
	t.Helper()
	n := new(big.Int).SetBit(big.NewInt(1), 1<<14, 1)
	pub, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 65537})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(encoded(t, forNode("node-1", nil), nil))
	var request struct {
		Info struct {
			Raw           asn1.RawContent
			Version       int
			Subject, Key  asn1.RawValue
			RawAttributes []asn1.RawValue `asn1:"tag:0"`
		}
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	if _, err = asn1.Unmarshal(block.Bytes, &request); err != nil {
		t.Fatal(err)
	}
	request.Info.Raw, request.Info.Key = nil, asn1.RawValue{FullBytes: pub}
	der, err := asn1.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func FuzzParse(f *testing.F) {
	f.Add(encoded(f, forNode("node-1", nil), nil))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := object("r", servingSigner, "system:node:node-1", nil, servingUsages, text)
		req, err := parse(r)
		if err != nil {
			return
		}
		if err := checkSigner(r, req, &auth.ServerNames{}); err == nil && req.Subject.CommonName != "system:node:node-1" {
			t.Errorf("accepted a serving certificate for %q", req.Subject.CommonName)
		}
	})
}

func TestServesNode(t *testing.T) {
	for _, tc := range []struct {
		name string
		dns  []string
		ips  []string
		want bool
	}{
		{"the node", []string{"node-1"}, nil, true},
		{"twice", []string{"node-1", "node-1"}, nil, false},
		{"nothing", nil, nil, false},
		{"another node", []string{"node-2"}, nil, false},
		{"another node, too", []string{"node-1", "node-2"}, nil, false},
		{"in capitals", []string{"Node-1"}, nil, false},
		{"with a dot", []string{"node-1."}, nil, false},
		{"a wildcard", []string{"*"}, nil, false},
		{"a subdomain", []string{"x.node-1"}, nil, false},
		{"with an address", []string{"node-1"}, []string{"192.168.1.5"}, false},
		{"an address only", nil, []string{"192.168.1.5"}, false},
	} {
		req := forNode("node-1", nil)
		req.DNSNames = tc.dns
		for _, ip := range tc.ips {
			req.IPAddresses = append(req.IPAddresses, net.ParseIP(ip))
		}
		if got := servesNode(req, "node-1"); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func liveNode(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
	}}
}

func TestStale(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	cond := func(t certificatesv1.RequestConditionType, age time.Duration) []certificatesv1.CertificateSigningRequestCondition {
		return []certificatesv1.CertificateSigningRequestCondition{{Type: t, Status: corev1.ConditionTrue, LastUpdateTime: at(age)}}
	}
	ca := testAuthority(t, now.Add(-2*time.Hour), now.Add(-time.Minute))
	dead := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	for _, tc := range []struct {
		name       string
		age        time.Duration
		conditions []certificatesv1.CertificateSigningRequestCondition
		cert       []byte
		want       bool
	}{
		{"new", time.Minute, nil, nil, false},
		{"pending for 23 h", 23 * time.Hour, nil, nil, false},
		{"pending for 25 h", 25 * time.Hour, nil, nil, true},
		{"approved just now", 25 * time.Hour, cond(certificatesv1.CertificateApproved, time.Minute), nil, false},
		{"approved 61 min ago", 2 * time.Hour, cond(certificatesv1.CertificateApproved, 61*time.Minute), nil, true},
		{"denied 59 min ago", 2 * time.Hour, cond(certificatesv1.CertificateDenied, 59*time.Minute), nil, false},
		{"denied 61 min ago", 2 * time.Hour, cond(certificatesv1.CertificateDenied, 61*time.Minute), nil, true},
		{"failed 61 min ago", 2 * time.Hour, cond(certificatesv1.CertificateFailed, 61*time.Minute), nil, true},
		{"expired certificate", time.Minute, cond(certificatesv1.CertificateApproved, time.Minute), dead, true},
		{"unreadable certificate", time.Minute, cond(certificatesv1.CertificateApproved, time.Minute), []byte("x"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(tc.age)},
				Status:     certificatesv1.CertificateSigningRequestStatus{Conditions: tc.conditions, Certificate: tc.cert},
			}
			if got := stale(r, now); (got != "") != tc.want {
				t.Errorf("got %q, want stale %v", got, tc.want)
			}
		})
	}
}
