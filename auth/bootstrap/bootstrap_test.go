package bootstrap

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An authority signs certificates.
type authority struct {
	*pkitest.Authority
	bare bool // signs without addresses
}

// newAuthority makes an authority that is valid for the whole test.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &pkitest.Authority{Key: pkitest.NewKey(t)}
	a.Cert = a.Sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(87600 * time.Hour),
	}, a.Key.Public())
	return &authority{Authority: a}
}

// signRequest does what the approver and the signer do.
func (a *authority) signRequest(t testing.TB, csr *certificates.CertificateSigningRequest, from, until time.Time) []byte {
	req := parsed(t, csr)
	if a.bare {
		req.IPAddresses = nil
	}
	usage := x509.ExtKeyUsageClientAuth
	if csr.Spec.SignerName == certificates.KubeletServingSignerName {
		usage = x509.ExtKeyUsageServerAuth
	}
	return encodeCerts(a.Sign(t, &x509.Certificate{
		Subject: req.Subject, DNSNames: req.DNSNames, IPAddresses: req.IPAddresses, NotBefore: from, NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, req.PublicKey))
}

// parsed is the request in csr.
func parsed(t testing.TB, csr *certificates.CertificateSigningRequest) *x509.CertificateRequest {
	block, _ := pem.Decode(csr.Spec.Request)
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// A server is the part of an API server that joining needs.
type server struct {
	t    *testing.T
	ca   *authority
	http *httptest.Server

	mu      sync.Mutex
	csrs    map[string]*certificates.CertificateSigningRequest
	waiting chan struct{} // closed when a request is watched
	decide  func(csr *certificates.CertificateSigningRequest)
	changed chan struct{}
	creates int
	reads   int
	token   string
	noMap   int                                               // the status for a public ConfigMap that is not there; 404 if zero
	refuse  int                                               // this many requests are answered with 503 first
	busy    func(w http.ResponseWriter, r *http.Request) bool // has answered; called with mu held
}

func newServer(t *testing.T, ca *authority, leaf *x509.Certificate) *server {
	t.Helper()
	s := &server{
		t: t, ca: ca, csrs: map[string]*certificates.CertificateSigningRequest{}, changed: make(chan struct{}),
		waiting: make(chan struct{}), token: "abcdef.0123456789abcdef",
	}
	s.decide = func(csr *certificates.CertificateSigningRequest) {
		csr.Status.Certificate = s.ca.signRequest(t, csr, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	if leaf == nil {
		leaf = &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	}
	leaf = ca.Sign(t, leaf, &key.PublicKey)
	s.http = httptest.NewUnstartedServer(s)
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.http.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw, ca.Cert.Raw}, PrivateKey: key}}}
	s.http.StartTLS()
	t.Cleanup(s.http.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if agent := r.UserAgent(); strings.HasPrefix(r.URL.Path, "/apis/") && agent != "kubelet" {
		s.t.Errorf("%s %s by user agent %q", r.Method, r.URL.Path, agent)
	}
	s.mu.Lock()
	refused := s.refuse > 0
	if refused {
		s.refuse--
	}
	busy := s.busy != nil && s.busy(w, r)
	s.mu.Unlock()
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/certificates.k8s.io/v1/certificatesigningrequests"), "/")
	switch {
	case busy:
	case refused:
		s.answer(w, apierrors.NewServiceUnavailable("starting").Status(), http.StatusServiceUnavailable)
	case r.Header.Get("Authorization") != "Bearer "+s.token:
		s.answer(w, apierrors.NewUnauthorized("Unauthorized").Status(), http.StatusUnauthorized)
	case r.Method == http.MethodPost:
		s.create(w, r)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.mu.Lock()
		s.reads++
		csr := s.csrs[name]
		s.mu.Unlock()
		if csr == nil {
			s.answer(w, apierrors.NewNotFound(schema.GroupResource{Resource: "certificatesigningrequests"}, name).Status(), http.StatusNotFound)
			return
		}
		s.answer(w, csr, http.StatusOK)
	}
}

func (s *server) answer(w http.ResponseWriter, obj any, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(obj); err != nil {
		s.t.Log(err)
	}
}

func (s *server) create(w http.ResponseWriter, r *http.Request) {
	var csr certificates.CertificateSigningRequest
	if err := json.NewDecoder(r.Body).Decode(&csr); err != nil {
		s.t.Error(err)
	}
	csr.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	csr.ResourceVersion = "1"
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creates++
	if s.csrs[csr.Name] != nil {
		s.answer(w, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "certificatesigningrequests"}, csr.Name).Status(), http.StatusConflict)
		return
	}
	s.csrs[csr.Name] = &csr
	s.answer(w, &csr, http.StatusCreated)
}

// watch decides about the request as soon as it is watched.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	s.mu.Lock()
	csr := s.csrs[name]
	decide := s.decide
	s.mu.Unlock()
	if csr == nil || decide == nil {
		s.mu.Lock()
		select {
		case <-s.waiting:
		default:
			close(s.waiting)
		}
		s.mu.Unlock()
		<-r.Context().Done()
		return
	}
	csr = csr.DeepCopy()
	decide(csr)
	s.mu.Lock()
	s.csrs[name] = csr
	s.mu.Unlock()
	if err := json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": csr}); err != nil {
		s.t.Log(err)
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (s *server) config() Config {
	return Config{
		Servers: []string{s.http.URL}, Token: Token{"abcdef", "0123456789abcdef"}, Pins: []Pin{PinOf(s.ca.Cert)},
		NodeName: "node-1", Dir: s.t.TempDir(),
	}
}

func TestJoin(t *testing.T) {
	ca := newAuthority(t)
	s := newServer(t, ca, nil)
	c := s.config()
	other := PinOf(newAuthority(t).Cert)
	c.Pins = append([]Pin{other}, c.Pins...)
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := id.GetClientCertificate(nil)
	if err != nil || cert.Leaf.Subject.CommonName != "system:node:node-1" || cert.Leaf.Subject.Organization[0] != "system:nodes" {
		t.Errorf("certificate %+v, %v", cert.Leaf.Subject, err)
	}
	if s.reads > 0 {
		t.Errorf("the request was read %d times, and is watched from its creation", s.reads)
	}
	if !id.trust.Load().roots[0].Equal(ca.Cert) || id.NodeName() != "node-1" {
		t.Errorf("identity %s of CA %s", id.NodeName(), id.trust.Load().roots[0].Subject)
	}
	for file, mode := range map[string]os.FileMode{clientFile: 0o600, caFile: 0o644} {
		if info, no := os.Stat(c.path(file)); no != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", file, info, no)
		}
	}
	if _, err = os.Stat(c.path(pendingFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pending key is still there: %v", err)
	}
	for _, csr := range s.csrs {
		if csr.Spec.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" || fmt.Sprint(csr.Spec.Usages) != "[digital signature client auth]" {
			t.Errorf("request %+v", csr.Spec)
		}
	}
	// The second time no server and no token are needed.
	s.http.Close()
	c.Token, c.Pins = Token{}, nil
	again, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if a, _ := again.GetClientCertificate(nil); !a.Leaf.Equal(cert.Leaf) {
		t.Error("another certificate than the one kept")
	}
}

func TestJoinIsRefused(t *testing.T) {
	ca := newAuthority(t)
	for _, tt := range []struct {
		name   string
		change func(c *Config, s *server)
		leaf   *x509.Certificate
		is     func(err error) bool
		text   string
	}{
		{
			"wrong token", func(c *Config, _ *server) { c.Token.Secret = "ffffffffffffffff" }, nil,
			func(err error) bool { return errors.Is(err, ErrTokenRejected) }, "token id abcdef",
		},
		{
			"wrong hash", func(c *Config, _ *server) { c.Pins = []Pin{{1}} }, nil,
			func(err error) bool { var e *PinError; return errors.As(err, &e) && e.Have[0] == PinOf(ca.Cert) }, "is not the one expected",
		},
		{"no token", func(c *Config, _ *server) { c.Token = Token{} }, nil, nil, "--token"},
		{"no hash", func(c *Config, _ *server) { c.Pins = nil }, nil, nil, "--discovery-token-ca-cert-hash"},
		{"no server", func(c *Config, _ *server) { c.Servers = nil }, nil, nil, "--server"},
		{"bad server", func(c *Config, _ *server) { c.Servers = []string{"http://x"} }, nil, nil, "not https://"},
		{"bad name", func(c *Config, _ *server) { c.NodeName = "A_b" }, nil, nil, "lower case"},
		{"denied", func(_ *Config, s *server) {
			s.decide = func(csr *certificates.CertificateSigningRequest) {
				csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied, Status: "True", Message: "node-1 is held by a live node"}}
			}
		}, nil, func(err error) bool { var e *DeniedError; return errors.As(err, &e) && !e.Failed }, "was denied: node-1 is held by a live node"},
		{"failed", func(_ *Config, s *server) {
			s.decide = func(csr *certificates.CertificateSigningRequest) {
				csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateFailed, Status: "True", Reason: "SignerValidationFailure"}}
			}
		}, nil, func(err error) bool { var e *DeniedError; return errors.As(err, &e) && e.Failed }, "refused by the signer: SignerValidationFailure"},
		{"clock behind", func(_ *Config, s *server) {
			s.decide = func(csr *certificates.CertificateSigningRequest) {
				csr.Status.Certificate = ca.signRequest(t, csr, time.Now().Add(time.Hour), time.Now().Add(2*time.Hour))
			}
		}, nil, func(err error) bool { var e *ClockError; return errors.As(err, &e) }, "is not valid yet"},
		{
			"server's certificate expired", nil, &x509.Certificate{
				IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
				NotBefore:   time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
			},
			func(err error) bool { var e *ClockError; return errors.As(err, &e) }, "set the clock",
		},
		{
			"server's certificate for another", nil, &x509.Certificate{DNSNames: []string{"elsewhere"}},
			func(err error) bool { var e x509.HostnameError; return errors.As(err, &e) }, "127.0.0.1",
		},
		{"another node's certificate", func(_ *Config, s *server) {
			s.decide = func(csr *certificates.CertificateSigningRequest) {
				key, err := newKey()
				if err != nil {
					t.Error(err)
				}
				csr.Status.Certificate = encodeCerts(ca.Sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:node-1"}}, &key.PublicKey))
			}
		}, nil, nil, "for another key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, ca, tt.leaf)
			c := s.config()
			if tt.change != nil {
				tt.change(&c, s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			logged := &notice{text: tt.text, found: func() {}}
			if tt.is == nil {
				logged.found = cancel // it is tried again until then
			}
			c.Log = slog.New(slog.NewTextHandler(logged, nil))
			_, err := Join(ctx, c)
			if err == nil {
				t.Fatal("joined")
			}
			if got := err.Error() + logged.String(); !strings.Contains(got, tt.text) {
				t.Errorf("error %q, want %q", got, tt.text)
			}
			if tt.is != nil && (!tt.is(err) || ctx.Err() != nil) {
				t.Errorf("error %T %v, context %v: want the typed one at once", err, err, ctx.Err())
			}
			if strings.Contains(err.Error()+logged.String(), c.Token.Secret) && c.Token.Secret != "" {
				t.Error("the secret is shown")
			}
		})
	}
}

// TestRestartFindsItsRequest: an agent that is restarted while it waits makes the same
// request again.
func TestRestartFindsItsRequest(t *testing.T) {
	s := newServer(t, newAuthority(t), nil)
	decide := s.decide
	s.decide = nil
	c := s.config()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := Join(ctx, c); done <- err }()
	<-s.waiting
	cancel()
	if err := <-done; err == nil {
		t.Fatal("joined without a decision")
	}
	s.mu.Lock()
	s.decide = decide
	s.mu.Unlock()
	if _, err := Join(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if len(s.csrs) != 1 || s.creates != 2 {
		t.Errorf("%d requests out of %d", len(s.csrs), s.creates)
	}
}

func TestApprovalTakesTooLong(t *testing.T) {
	s := newServer(t, newAuthority(t), nil)
	s.decide = nil
	c := s.config()
	c.ApprovalTimeout = 50 * time.Millisecond
	_, err := Join(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "kubectl certificate approve node-csr-") {
		t.Errorf("error %v", err)
	}
}

// TestUnreachableServers: an unreachable server is skipped, one that is not ready is tried
// again, and each reason is logged once.
func TestUnreachableServers(t *testing.T) {
	s := newServer(t, newAuthority(t), nil)
	s.refuse = 2
	c := s.config()
	c.Servers = append([]string{"https://127.0.0.1:1"}, c.Servers...)
	var logged bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&logged, nil))
	if _, err := Join(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(logged.String(), "connection refused"); n < 1 || n > 3 {
		t.Errorf("the reason is logged %d times:\n%s", n, logged.String())
	}
}

func TestKeptCertificate(t *testing.T) {
	ca := newAuthority(t)
	s := newServer(t, ca, nil)
	now := time.Now()
	for _, tt := range []struct {
		name        string
		from, until time.Duration
		change      func(c *Config)
		text        string // of the error, or of the log; empty for none
		asked       bool
		fails       bool
	}{
		{"good", -time.Hour, time.Hour, func(*Config) {}, "", false, false},
		{"expired, with token", -2 * time.Hour, -time.Hour, func(*Config) {}, "has expired", false, false},
		{"expired, without token", -2 * time.Hour, -time.Hour, func(c *Config) { c.Token = Token{} }, "has expired", false, false},
		{"not yet valid", time.Hour, 2 * time.Hour, func(*Config) {}, "set the clock", false, false},
		{"another node", -time.Hour, time.Hour, func(c *Config) { c.NodeName = "node-2" }, `belongs to node "node-1", not "node-2"`, false, true},
		{"another cluster", -time.Hour, time.Hour, func(c *Config) { c.Pins = []Pin{{1}} }, "belongs to another cluster", false, true},
		{"torn", -time.Hour, time.Hour, func(c *Config) { empty(t, c.path(clientFile)) }, "remove the file", false, true},
		{"CA lost, with token", -time.Hour, time.Hour, func(c *Config) { loseCA(t, c) }, "is lost", true, false},
		{"CA lost, without token", -time.Hour, time.Hour, func(c *Config) {
			loseCA(t, c)
			c.Token = Token{}
		}, "join anew with a token", false, true},
		{"CA torn, with token", -time.Hour, time.Hour, func(c *Config) { empty(t, c.path(caFile)) }, "is lost", true, false},
		{"CA torn, without token", -time.Hour, time.Hour, func(c *Config) {
			empty(t, c.path(caFile))
			c.Token = Token{}
		}, "join anew with a token", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := s.config()
			key, err := newKey()
			if err != nil {
				t.Fatal(err)
			}
			cert := ca.Sign(t, &x509.Certificate{
				Subject:   pkix.Name{CommonName: "system:node:node-1", Organization: []string{"system:nodes"}},
				NotBefore: now.Add(tt.from), NotAfter: now.Add(tt.until),
			}, &key.PublicKey)
			if err = errors.Join(writePair(c.path(clientFile), encodeCerts(cert), key), writeFile(c.path(caFile), encodeCerts(ca.Cert), 0o644)); err != nil {
				t.Fatal(err)
			}
			tt.change(&c)
			var logged bytes.Buffer
			c.Log = slog.New(slog.NewTextHandler(&logged, nil))
			before := s.creates
			id, err := Join(t.Context(), c)
			if said := fmt.Sprint(err) + logged.String(); (err != nil) != tt.fails || !strings.Contains(said, tt.text) {
				t.Errorf("error and log: %s, want %q", said, tt.text)
			}
			if err != nil {
				return
			}
			got, err := id.GetClientCertificate(nil)
			if err != nil || (s.creates > before) != tt.asked || got.Leaf.Equal(cert) == tt.asked {
				t.Errorf("asked %v, want %v", s.creates > before, tt.asked)
			}
		})
	}
}

func TestFilesThatCannotBeWritten(t *testing.T) {
	s := newServer(t, newAuthority(t), nil)
	c := s.config()
	c.Dir = filepath.Join(c.Dir, "file")
	if err := os.WriteFile(c.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := Join(ctx, c); err == nil || ctx.Err() != nil {
		t.Errorf("error %v, context %v: want an error at once", err, ctx.Err())
	}
}
