// Every key, authority and configuration file of a cluster is replaced, one after the
// other, while streams into its nodes carry bytes.

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth/kubeauth/issuers/issuertest"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// A keyring is the files of a cluster that are replaced.
type keyring struct {
	*cluster
	conf string // directory of those that are named by flags
	pids map[string]int
}

func (k *keyring) write(t *testing.T, file string, data ...[]byte) {
	t.Helper()
	// Under its name it appears in one step, as whoever replaces keys should do it.
	must(t, os.WriteFile(file+".new", bytes.Join(data, nil), 0o600))
	must(t, os.Rename(file+".new", file))
}

func (k *keyring) pki(name string) string { return filepath.Join(k.dir, "pki", name) }

// admin is a client by the kubeconfig as it is now.
func (k *keyring) admin(t *testing.T) kubernetes.Interface {
	t.Helper()
	conf, err := clientcmd.BuildConfigFromFlags("", k.kubeconfig())
	must(t, err)
	client, err := kubernetes.NewForConfig(conf)
	must(t, err)
	return client
}

// showing is a client with a certificate, and headers, if any.
func (k *keyring) showing(t *testing.T, cert *tls.Certificate, headers http.Header) kubernetes.Interface {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(k.rest.CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{*cert}}, DisableKeepAlives: true}
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: k.rest.Host, QPS: -1}, &http.Client{Transport: withHeaders{transport, headers}})
	must(t, err)
	return client
}

type withHeaders struct {
	http.RoundTripper
	headers http.Header
}

func (w withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range w.headers {
		r.Header[name] = values
	}
	return w.RoundTripper.RoundTrip(r)
}

// whoami is who the server takes a client for.
func whoami(ctx context.Context, client kubernetes.Interface) (string, error) {
	r, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.UserInfo.Username, nil
}

// becomes waits until a client is somebody, or nobody: then it is refused.
func becomes(t *testing.T, what, want string, client kubernetes.Interface) {
	t.Helper()
	eventually(t, what, func() error {
		got, err := whoami(t.Context(), client)
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			got, err = "", nil
		}
		if err == nil && got != want {
			err = fmt.Errorf("%q, want %q", got, want)
		}
		return err
	})
}

// authority makes another one in the place of old.
func authority(t *testing.T, old *pkitest.Authority) *pkitest.Authority {
	t.Helper()
	return authorityOf(t, old, time.Now())
}

// authorityOf is authority, made at that time.
func authorityOf(t *testing.T, old *pkitest.Authority, made time.Time) *pkitest.Authority {
	t.Helper()
	a := &pkitest.Authority{Key: pkitest.NewKey(t)}
	tmpl := *old.Cert
	tmpl.NotBefore, tmpl.PublicKey, tmpl.SubjectKeyId, tmpl.AuthorityKeyId = made, nil, nil, nil
	tmpl.Subject.CommonName += "-2"
	a.Cert = a.Sign(t, &tmpl, a.Key.Public())
	return a
}

const (
	policyText = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: %s\n  resources: [{group: \"\", resources: [configmaps]}]\n- level: None\n"
	// keysText has the keys of secrets, 32 bytes each.
	keysText    = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - aescbc: {keys: [%s]}\n  - identity: {}\n"
	firstKey    = "{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}"
	secondKey   = "{name: two, secret: ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=}"
	webhookText = `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`
	manyStreams = 97 // beside the three of startLoads
)

// allowing is an authorization webhook that says yes to one user.
func allowing(t *testing.T, name string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(http.MaxBytesReader(w, r.Body, 1<<20))
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": {"allowed": %t}}`, strings.Contains(body.String(), `"user":"`+name+`"`))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func startKeyring(t *testing.T, proxies *pkitest.Authority, provider *issuertest.Issuer) *keyring {
	t.Helper()
	k := &keyring{conf: shortTempDir(t), pids: map[string]int{}}
	k.write(t, k.file("policy"), fmt.Appendf(nil, policyText, "Metadata"))
	k.write(t, k.file("keys"), fmt.Appendf(nil, keysText, firstKey))
	k.write(t, k.file("webhook"), fmt.Appendf(nil, webhookText, allowing(t, "ann")))
	k.write(t, k.file("proxies"), proxies.PEM())
	k.write(t, k.file("issuers"), []byte(issuertest.File(provider.Entry("corp:"))))
	args := []string{"--nodes=2", "--agent-arg=--authorities-refresh-period=1s"}
	for flag, value := range map[string]string{
		"audit-policy-file": k.file("policy"), "audit-log-path": k.file("audit.log"),
		"encryption-provider-config": k.file("keys"), "encryption-provider-config-automatic-reload": "true",
		"authorization-mode": "Node,RBAC,Webhook", "authorization-webhook-config-file": k.file("webhook"),
		"requestheader-client-ca-file": k.file("proxies"), "requestheader-username-headers": "X-Remote-User",
		"authentication-config": k.file("issuers"),
	} {
		args = append(args, "--server-arg=--"+flag+"="+value)
	}
	k.cluster = startUp(t, args...)
	for _, of := range []string{"server", "node-1", "node-2"} {
		k.pids[of] = k.pid(t, of)
	}
	return k
}

func (k *keyring) file(name string) string { return filepath.Join(k.conf, name) }

// TestEveryKeyIsReplaced: no stream is lost, no process restarts, and what the old keys
// signed is refused once they are taken out.
func TestEveryKeyIsReplaced(t *testing.T) {
	t.Parallel()
	proxies, provider := pkitest.New(t, "proxies"), issuertest.New(t)
	k := startKeyring(t, proxies, provider)
	streams := append(startLoadsOn(t, k.cluster, "node-1"), startCats(t, k.cluster, manyStreams)...)
	streams.goOn(t, "all streams carry bytes")
	for _, step := range []struct {
		name    string
		replace func(t *testing.T)
	}{
		{"the encryption configuration", k.replaceEncryption},
		{"the audit policy", k.replacePolicy},
		{"the webhook's kubeconfig", k.replaceWebhook},
		{"the authority of front proxies", func(t *testing.T) { k.replaceProxies(t, proxies) }},
		{"the keys of an issuer, and the file of issuers", func(t *testing.T) { k.replaceIssuers(t, provider) }},
		{"the keys of service accounts", k.replaceAccountKeys},
		{"the serving certificate", k.replaceServing},
		{"the authority of kubelets", k.replaceKubeletCA},
		{"the authority of clients", k.replaceClientCA},
		{"the authority of the server", k.replaceServerCA},
	} {
		began := time.Now()
		step.replace(t)
		streams.goOn(t, "after "+step.name+" was replaced")
		t.Logf("%s: %v", step.name, time.Since(began).Round(time.Millisecond))
	}
	streams.finish(t)
	for of, pid := range k.pids {
		if k.pid(t, of) != pid || !alive(pid) {
			t.Errorf("%s is another process", of)
		}
	}
	for _, log := range k.logFiles() {
		if text, err := os.ReadFile(log); err != nil || bytes.Contains(text, []byte("stays in use")) {
			t.Errorf("a replacement was not taken at once: %s, %v", log, err)
		}
	}
}

func (k *keyring) replacePolicy(t *testing.T) {
	k.write(t, k.file("policy"), fmt.Appendf(nil, policyText, "Request"))
	eventually(t, "the new policy counts", func() error {
		if _, err := k.admin(t).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
			return err
		}
		log, err := os.ReadFile(k.file("audit.log"))
		if err == nil && !bytes.Contains(log, []byte(`"level":"Request"`)) {
			err = errors.New("nothing is logged at its level")
		}
		return err
	})
}

func (k *keyring) replaceEncryption(t *testing.T) {
	secrets := k.admin(t).CoreV1().Secrets("default")
	_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "old"}, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	must(t, err)
	reloaded := func(status string) func() error {
		return func() error {
			text, err := k.admin(t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "apiserver_encryption_config_controller_automatic_reloads_total{") && strings.Contains(line, `"`+status+`"`) && !strings.HasSuffix(line, " 0\n") {
					return nil
				}
			}
			return errors.New("not reloaded")
		}
	}
	k.write(t, k.file("keys"), []byte("broken"))
	eventually(t, "a broken configuration is looked at", reloaded("failure"))
	k.write(t, k.file("keys"), fmt.Appendf(nil, keysText, secondKey+", "+firstKey))
	eventually(t, "the new key is in use", reloaded("success"))
	// It was tried more than once: the library tries again at once.
	log, err := os.ReadFile(filepath.Join(k.dir, "server.log"))
	if n := bytes.Count(log, []byte("error processing encryption config file")); err != nil || n != 1 {
		t.Errorf("the broken configuration is told %d times, %v", n, err)
	}
	if s, err := secrets.Get(t.Context(), "old", metav1.GetOptions{}); err != nil || string(s.Data["k"]) != "v" {
		t.Errorf("what the old key encrypted: %v", err)
	}
}

func (k *keyring) replaceWebhook(t *testing.T) {
	allowed := func(name string) error {
		r, err := k.admin(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: name, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"},
		}}, metav1.CreateOptions{})
		if err == nil && !r.Status.Allowed {
			err = fmt.Errorf("%s may not: %s", name, r.Status.Reason)
		}
		return err
	}
	must(t, allowed("ann"))
	k.write(t, k.file("webhook"), fmt.Appendf(nil, webhookText, allowing(t, "bob")))
	eventually(t, "the new webhook is asked", func() error { return allowed("bob") })
	if allowed("ann") == nil {
		t.Error("the old webhook's answer counts still")
	}
}

func (k *keyring) replaceProxies(t *testing.T, old *pkitest.Authority) {
	another := authority(t, old)
	by := func(a *pkitest.Authority) kubernetes.Interface {
		cert := a.Issue(t, &x509.Certificate{KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return k.showing(t, cert, http.Header{"X-Remote-User": {"jane"}})
	}
	before, after := by(old), by(another)
	becomes(t, "the old proxy is believed", "jane", before)
	k.write(t, k.file("proxies"), another.PEM(), old.PEM())
	becomes(t, "the new proxy is believed", "jane", after)
	becomes(t, "the old proxy is believed meanwhile", "jane", before)
	k.write(t, k.file("proxies"), another.PEM())
	becomes(t, "the old proxy is refused", "", before)
	becomes(t, "the new proxy is believed", "jane", after)
}

// bearing is a client with a token.
func (k *keyring) bearing(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: k.rest.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: k.rest.CAData}})
	must(t, err)
	return client
}

// replaceIssuers: an issuer signs with another key, and then another issuer counts.
func (k *keyring) replaceIssuers(t *testing.T, provider *issuertest.Issuer) {
	first := k.bearing(t, provider.Token(nil))
	becomes(t, "the issuer's first key counts", "corp:ann", first)
	provider.Rotate("second")
	second := k.bearing(t, provider.Token(nil))
	becomes(t, "the issuer's second key counts", "corp:ann", second)
	becomes(t, "the issuer's first key is refused", "", first)
	another := issuertest.New(t)
	after := k.bearing(t, another.Token(nil))
	becomes(t, "an issuer that the file lacks is refused", "", after)
	k.write(t, k.file("issuers"), []byte(issuertest.File(another.Entry("new:"), provider.Entry("corp:"))))
	becomes(t, "the new issuer counts", "new:ann", after)
	becomes(t, "the old issuer counts meanwhile", "corp:ann", second)
	k.write(t, k.file("issuers"), []byte(issuertest.File(another.Entry("new:"))))
	becomes(t, "the old issuer is refused", "", second)
	becomes(t, "the new issuer counts", "new:ann", after)
}

func (k *keyring) replaceAccountKeys(t *testing.T) {
	token := func() string {
		r, err := k.admin(t).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		must(t, err)
		return r.Status.Token
	}
	const account = "system:serviceaccount:default:default"
	first := token()
	header, _, _ := strings.Cut(first, ".")
	public, err := os.ReadFile(k.pki("service-account.pub"))
	must(t, err)
	key := pkitest.NewKey(t)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	must(t, err)
	k.write(t, k.pki("service-account.pub"), pkitest.PEM("PUBLIC KEY", der), public)
	k.write(t, k.pki("service-account.key"), pkitest.KeyPEM(t, key))
	var second string
	eventually(t, "the new key signs", func() error {
		if second = token(); strings.HasPrefix(second, header+".") {
			return errors.New("the old one does")
		}
		return nil
	})
	becomes(t, "the old token counts", account, k.bearing(t, first))
	k.write(t, k.pki("service-account.pub"), pkitest.PEM("PUBLIC KEY", der))
	becomes(t, "the old token is refused", "", k.bearing(t, first))
	becomes(t, "the new token counts", account, k.bearing(t, second))
}

func (k *keyring) replaceServing(t *testing.T) {
	ca := pkitest.Load(t, k.pki("ca.crt"), k.pki("ca.key"))
	pair, err := tls.LoadX509KeyPair(k.pki("apiserver.crt"), k.pki("apiserver.key"))
	must(t, err)
	tmpl := *pair.Leaf
	tmpl.NotBefore = time.Now().Add(-time.Minute)
	cert := ca.Issue(t, &tmpl)
	k.write(t, k.pki("apiserver.key"), pkitest.KeyPEM(t, cert.PrivateKey))
	k.write(t, k.pki("apiserver.crt"), pkitest.PEM("CERTIFICATE", cert.Certificate[0]), ca.PEM())
	eventually(t, "the new certificate is shown", func() error {
		d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool()}}
		conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(k.rest.Host, "https://"))
		if err != nil {
			return err
		}
		defer conn.Close()
		if !conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Equal(cert.Leaf) {
			return errors.New("the old one is")
		}
		return nil
	})
	k.ends(t, "server", "apiserver", cert.Leaf)
}

// ends waits until a program's gauge says when the certificate ends.
func (k *keyring) ends(t *testing.T, program, name string, cert *x509.Certificate) {
	t.Helper()
	eventually(t, program+" says when "+name+" ends", func() error {
		text, err := k.admin(t).Discovery().RESTClient().Get().AbsPath(metricsOf(program)).DoRaw(t.Context())
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, fmt.Sprintf("hawser_certificate_expiration_timestamp_seconds{name=%q} ", name)); ok {
				got, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err == nil && int64(got) != cert.NotAfter.Unix() {
					err = fmt.Errorf("%s, want %d", value, cert.NotAfter.Unix())
				}
				return err
			}
		}
		return errors.New("it does not")
	})
}

// execs runs a command in a pod of each node.
func (k *keyring) execs(t *testing.T) func() error {
	return func() error {
		for _, pod := range []string{"cats-node-1", "cats-node-2"} {
			if out, said, code := k.kubectl(t, "", "exec", pod, "--", "echo", "here"); code != 0 || out != "here\n" {
				return fmt.Errorf("%s: %s%s", pod, out, said)
			}
		}
		return nil
	}
}
