// What thieves get at the ports of the running programs: an HTTP status for each
// certificate, token and request that is not theirs, or is not good any more.

package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

// cutOff stands for a connection that ends without an answer: TLS refuses it.
const cutOff = 0

func TestThieves(t *testing.T) {
	t.Parallel()
	connect := strconv.Itoa(await.FreePort(t))
	c := startUp(t, "--nodes", "2", "--server-arg=--connect-port="+connect)
	c.waitNode(t, "node-1")
	t.Run("certificates", func(t *testing.T) { c.testStolenCertificates(t, connect) })
	t.Run("join tokens", c.testReplayedTokens)
	t.Run("certificate requests", c.testReplayedRequests)
	t.Run("targets", func(t *testing.T) { c.testForbiddenTargets(t, connect) })
	t.Run("names", c.testClaimedNames)
}

// statusOf is what a port of this machine answers to the head of a request.
func statusOf(t *testing.T, port string, conf *tls.Config, head string) (int, string) {
	t.Helper()
	raw, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
	must(t, err)
	must(t, raw.SetDeadline(time.Now().Add(patience)))
	defer raw.Close()
	conn := tls.Client(raw, conf)
	if _, err := fmt.Fprintf(conn, "%s\r\nHost: x\r\n\r\n", head); err != nil {
		return cutOff, err.Error()
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return cutOff, err.Error()
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Proxy-Status")
}

// keyPair reads one that a program has written.
func (c *cluster) keyPair(t *testing.T, cert, key string) *tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, cert), filepath.Join(c.dir, key))
	must(t, err)
	return &pair
}

func (c *cluster) testStolenCertificates(t *testing.T, connect string) {
	clients := pkitest.Load(t, filepath.Join(c.dir, "pki", "client-ca.crt"), filepath.Join(c.dir, "pki", "client-ca.key"))
	kubelets := pkitest.Load(t, filepath.Join(c.dir, "pki", "kubelet-ca.crt"), filepath.Join(c.dir, "pki", "kubelet-ca.key"))
	admin := func(change func(*x509.Certificate)) *x509.Certificate {
		tmpl := &x509.Certificate{
			Subject:     pkix.Name{CommonName: "thief", Organization: []string{"system:masters"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if change != nil {
			change(tmpl)
		}
		return tmpl
	}
	node := func(name string) *x509.Certificate {
		return admin(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
		})
	}
	const pem = "nodes/node-1/pki/kubelet-client-current.pem"
	for _, tc := range []struct {
		name         string
		cert         *tls.Certificate
		api, connect int
	}{
		{"none", new(tls.Certificate), 403, cutOff},
		{"of another authority", pkitest.New(t, "hawser-clients").Issue(t, admin(nil)), 401, cutOff},
		{"of the kubelets' authority", kubelets.Issue(t, admin(nil)), 401, cutOff},
		{"expired", clients.Issue(t, admin(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		})), 401, cutOff},
		{"not good yet", clients.Issue(t, admin(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		})), 401, cutOff},
		{"for servers", clients.Issue(t, admin(func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		})), 401, cutOff},
		{"the server's own", c.keyPair(t, "pki/apiserver.crt", "pki/apiserver.key"), 401, cutOff},
		{"of a node that nobody is", clients.Issue(t, node("node-9")), 401, 403},
		{"of a node, with another key", clients.Issue(t, node("node-1")), 401, 403},
		{"of a node", c.keyPair(t, pem, pem), 403, 403},
		{"of an honest client of the front end", c.keyPair(t, "pki/connect-client.crt", "pki/connect-client.key"), 403, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, _ := statusOf(t, portOf(c), showing(tc.cert), "GET /api/v1/secrets HTTP/1.1"); got != tc.api {
				t.Errorf("the API answers %d, want %d", got, tc.api)
			}
			if got, _ := statusOf(t, connect, showing(tc.cert), "CONNECT node-1:10250 HTTP/1.1"); got != tc.connect {
				t.Errorf("the CONNECT front end answers %d, want %d", got, tc.connect)
			}
		})
	}
}

// testReplayedTokens: a join token is good for joining, and for nothing once it has
// expired or is deleted, however often it was used.
func (c *cluster) testReplayedTokens(t *testing.T) {
	token := strings.TrimSpace(c.hawser(t, "token", "create"))
	id, _, _ := strings.Cut(token, ".")
	asks := func(token, path string) int {
		got, _ := statusOf(t, portOf(c), stranger(), "GET "+path+" HTTP/1.1\r\nAuthorization: Bearer "+token)
		return got
	}
	for _, tc := range []struct {
		name, token, path string
		want              int
	}{
		{"good", token, "/api", 200},
		{"good, for what it is not for", token, "/api/v1/secrets", 403},
		{"good, for other nodes", token, "/api/v1/nodes", 403},
		{"another secret", id + ".0000000000000000", "/api", 401},
		{"expired", c.expiredToken(t), "/api", 401},
		{"none of ours", "x.y.z", "/api", 401},
	} {
		if got := asks(tc.token, tc.path); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	must(t, c.client.CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-"+id, metav1.DeleteOptions{}))
	eventually(t, "the token is good for nothing", func() error {
		if got := asks(token, "/api"); got != http.StatusUnauthorized {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// testReplayedRequests: whoever sends a node's certificate request again gets nothing of
// use: another node is refused, and a certificate is for the key in the request.
func (c *cluster) testReplayedRequests(t *testing.T) {
	all, err := c.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var old *certificatesv1.CertificateSigningRequest
	for i, r := range all.Items {
		if r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && subjectOf(t, &all.Items[i]) == "system:node:node-1" {
			old = &all.Items[i]
		}
	}
	if old == nil {
		t.Fatal("node-1 has asked for no certificate")
	}
	again := func(name string, change func(*certificatesv1.CertificateSigningRequestSpec)) *certificatesv1.CertificateSigningRequest {
		r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: old.Spec.Request, SignerName: old.Spec.SignerName, Usages: old.Spec.Usages,
		}}
		if change != nil {
			change(&r.Spec)
		}
		return r
	}
	conf := rest.AnonymousClientConfig(c.rest)
	conf.BearerToken = strings.TrimSpace(c.hawser(t, "token", "create"))
	joining, err := kubernetes.NewForConfig(conf)
	must(t, err)
	create := func(by kubernetes.Interface, r *certificatesv1.CertificateSigningRequest) error {
		_, err := by.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{})
		return err
	}
	if err := create(c.asNode(t, "node-2"), again("by-node-2", nil)); !apierrors.IsForbidden(err) {
		t.Errorf("another node gets %v", err)
	}
	if err := create(joining, again(old.Name, nil)); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the same request again: %v", err)
	}
	serving := func(s *certificatesv1.CertificateSigningRequestSpec) {
		s.SignerName = certificatesv1.KubeletServingSignerName
	}
	if err := create(joining, again("serving", serving)); !apierrors.IsForbidden(err) {
		t.Errorf("a token for a serving certificate: %v", err)
	}
	must(t, create(joining, again("by-token", nil)))
	var got *certificatesv1.CertificateSigningRequest
	eventually(t, "the request is answered", func() (err error) {
		got, err = c.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "by-token", metav1.GetOptions{})
		if err == nil && len(got.Status.Conditions) == 0 {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	if got.Status.Conditions[0].Type != certificatesv1.CertificateApproved {
		return // so much the better
	}
	eventually(t, "the certificate is there", func() (err error) {
		got, err = c.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "by-token", metav1.GetOptions{})
		if err == nil && len(got.Status.Certificate) == 0 {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	block, _ := pem.Decode(got.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	const file = "nodes/node-1/pki/kubelet-client-current.pem"
	if own := c.keyPair(t, file, file); !own.Leaf.PublicKey.(*ecdsa.PublicKey).Equal(cert.PublicKey) { //nolint:forcetypeassert // the agent makes no others
		t.Error("the certificate is for a key that the node does not have")
	}
}

func subjectOf(t *testing.T, r *certificatesv1.CertificateSigningRequest) string {
	t.Helper()
	block, _ := pem.Decode(r.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	must(t, err)
	return asked.Subject.CommonName
}

// testForbiddenTargets: neither front end leads to loopbacks, metadata services or ports
// that no pod declares.
func (c *cluster) testForbiddenTargets(t *testing.T, connect string) {
	client := showing(c.keyPair(t, "pki/connect-client.crt", "pki/connect-client.key"))
	for target, want := range map[string]int{
		"169.254.169.254%25node-1:80":      403,
		"[fd00:ec2::254%25node-1]:80":      403,
		"127.0.0.1%25node-1:22":            403,
		"[::ffff:127.0.0.1%25node-1]:22":   403,
		"[64:ff9b::a9fe:a9fe%25node-1]:80": 403,
		"localhost%25node-1:22":            403,
		"0.0.0.0%25node-1:22":              403,
		"node-1:22":                        403,
		"node-2%25node-1:10250":            403,
		"169.254.169.254:80":               503, // no node has it, and the server dials nothing itself
		"127.0.0.1:" + portOf(c):           503,
		"localhost:" + portOf(c):           503,
		"node-9:10250":                     503,
		"node-1:99999":                     400,
	} {
		if got, why := statusOf(t, connect, client, "CONNECT "+target+" HTTP/1.1"); got != want {
			t.Errorf("CONNECT %q: %d (%s), want %d", target, got, why, want)
		}
	}
	for path, want := range map[string]int{
		"/api/v1/nodes/node-1:22/proxy/":              503,
		"/api/v1/nodes/169.254.169.254/proxy/":        404,
		"/api/v1/nodes/127.0.0.1:6443/proxy/":         404,
		"/api/v1/nodes/http:node-1:80/proxy/":         503,
		"/api/v1/namespaces/default/pods/none/proxy/": 404,
	} {
		got := 0
		c.client.CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&got)
		if got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
}

// testClaimedNames: a node that claims another's name or address gets 403, or nobody's
// dials.
func (c *cluster) testClaimedNames(t *testing.T) {
	thief := c.asNode(t, "node-2")
	nodes := thief.CoreV1().Nodes()
	other, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	must(t, err)
	if _, err := nodes.UpdateStatus(t.Context(), other, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another's status: %v", err)
	}
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another's Node: %v", err)
	}
	lease := thief.CoordinationV1().Leases("kube-node-lease")
	if _, err := lease.Get(t.Context(), "node-1", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another's Lease: %v", err)
	}
	for _, ip := range []string{"127.0.0.1", "169.254.169.254", "0.0.0.0"} {
		patch := fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, ip)
		if _, err := nodes.PatchStatus(t.Context(), "node-2", []byte(patch)); !apierrors.IsForbidden(err) {
			t.Errorf("the address %s: %v", ip, err)
		}
	}
}
