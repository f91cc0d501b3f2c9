package bootstrap

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// memoryRequests is the certificates API in memory; it signs a request after a minute.
type memoryRequests struct {
	t  *testing.T
	ca *authority

	mu      sync.Mutex
	csrs    map[string]*certificates.CertificateSigningRequest
	created []time.Time
	life    time.Duration
	fail    error
	deny    bool
	hold    bool // leaves requests that name addresses unanswered
}

func (m *memoryRequests) dropAddresses(drop bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ca.bare = drop
}

func (m *memoryRequests) holdAddresses(hold bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold = hold
}

func (m *memoryRequests) Create(_ context.Context, r *certificates.CertificateSigningRequest, _ metav1.CreateOptions) (*certificates.CertificateSigningRequest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.created = append(m.created, time.Now())
	if m.fail != nil {
		return nil, m.fail
	}
	if m.csrs[r.Name] != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, r.Name)
	}
	m.csrs[r.Name] = r
	return r, nil
}

func (m *memoryRequests) Get(_ context.Context, name string, _ metav1.GetOptions) (*certificates.CertificateSigningRequest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.csrs[name]
	if r == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	return r, nil
}

func (m *memoryRequests) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewRaceFreeFake()
	name := o.FieldSelector[len("metadata.name="):]
	context.AfterFunc(ctx, w.Stop)
	time.AfterFunc(time.Minute, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		r := m.csrs[name].DeepCopy()
		if r == nil || m.hold && len(parsed(m.t, r).IPAddresses) > 0 { // cleaned away, or left waiting
			return
		}
		if m.deny {
			r.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied, Status: "True", Message: "no"}}
		} else {
			r.Status.Certificate = m.ca.signRequest(m.t, r, time.Now(), time.Now().Add(m.life))
		}
		m.csrs[name] = r
		if !w.IsStopped() {
			w.Modify(r)
		}
	})
	return w, nil
}

// tries lists the times of the requests.
func (m *memoryRequests) tries() []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.created)
}

// of lists the requests to a signer.
func (m *memoryRequests) of(signer string) []*certificates.CertificateSigningRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*certificates.CertificateSigningRequest
	for _, r := range m.csrs {
		if r.Spec.SignerName == signer {
			list = append(list, r)
		}
	}
	return list
}

type rotationWorld struct {
	*memoryRequests
	id      *Identity
	r       *Rotation
	renewed atomic.Int32
	log     bytes.Buffer
}

// serves waits until the node has its serving certificate, a minute after its request.
func (w *rotationWorld) serves(t *testing.T) *tls.Certificate {
	t.Helper()
	advance(2 * time.Minute)
	cert, err := w.r.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func inRotation(t *testing.T, life time.Duration, f func(w *rotationWorld), before ...func(w *rotationWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &rotationWorld{memoryRequests: &memoryRequests{t: t, ca: newAuthority(t), csrs: map[string]*certificates.CertificateSigningRequest{}, life: life}}
		c := Config{NodeName: "node-1", Dir: t.TempDir(), Servers: []string{"https://x"}}
		key, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		cert := w.ca.Sign(t, &x509.Certificate{
			Subject:   pkix.Name{CommonName: "system:node:node-1", Organization: []string{"system:nodes"}},
			NotBefore: time.Now(), NotAfter: time.Now().Add(life),
		}, &key.PublicKey)
		if err = errors.Join(writePair(c.path(clientFile), encodeCerts(cert), key), writeFile(c.path(caFile), encodeCerts(w.ca.Cert), 0o644)); err != nil {
			t.Fatal(err)
		}
		if w.id, err = Join(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		w.r = w.rotation(t)
		for _, prepare := range before {
			prepare(w)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.r.Run(ctx) }()
		f(w)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (w *rotationWorld) rotation(t *testing.T) *Rotation {
	t.Helper()
	r, err := NewRotation(RotationConfig{
		Identity: w.id, Requests: w.memoryRequests,
		Renewed: func() { w.renewed.Add(1) }, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestClientCertificateIsRenewed(t *testing.T) {
	const life = 10 * time.Hour
	inRotation(t, life, func(w *rotationWorld) {
		first, err := w.id.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		client := certificates.KubeAPIServerClientKubeletSignerName
		advance(3*time.Hour - time.Minute)
		if n := len(w.of(client)); n != 0 {
			t.Errorf("renewed within %v, before 30 %% of its life", time.Since(began))
		}
		advance(2*time.Hour + 2*time.Minute)
		if n := len(w.of(client)); n != 1 {
			t.Fatalf("%d requests after half of its life", n)
		}
		advance(2 * time.Minute)
		second, err := w.id.GetClientCertificate(nil)
		if err != nil || second.Leaf.Equal(first.Leaf) || w.renewed.Load() != 1 {
			t.Errorf("certificate not replaced, told %d times, %v", w.renewed.Load(), err)
		}
		kept, err := readPair(w.id.cfg.path(clientFile))
		if err != nil || !kept.Leaf.Equal(second.Leaf) {
			t.Errorf("the file has another certificate: %v", err)
		}
	})
}

// writePair writes a certificate (PEM) and its key as a node keeps them.
func writePair(path string, cert []byte, key *ecdsa.PrivateKey) error {
	data, err := encodePair(cert, key)
	if err != nil {
		return err
	}
	return writeFile(path, data, 0o600)
}

// blocked has a file not be written until the returned function is called: a directory is in its
// place.
func blocked(t *testing.T, path string) func() {
	t.Helper()
	if err := errors.Join(remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// While certificates cannot be written they are used all the same, which is said once for each,
// and they are written later.
func TestCertificatesThatCannotBeWritten(t *testing.T) {
	var free []func()
	inRotation(t, 10*time.Hour, func(w *rotationWorld) {
		first := w.id.expires()
		advance(6 * time.Hour)
		client := certificates.KubeAPIServerClientKubeletSignerName
		if n := len(w.of(client)); n != 1 || !w.id.expires().After(first) || w.renewed.Load() != 1 {
			t.Errorf("%d requests, a certificate until %v, used %d times", n, w.id.expires(), w.renewed.Load())
		}
		if w.r.Serving() == nil {
			t.Error("no serving certificate")
		}
		if n := strings.Count(w.log.String(), "cannot be kept"); n != 2 {
			t.Errorf("%d warnings", n)
		}
		for _, f := range free {
			f()
		}
		advance(time.Minute)
		for file, want := range map[string]*x509.Certificate{clientFile: w.r.Client(), servingFile: w.r.Serving()} {
			if kept, err := readPair(w.id.cfg.path(file)); err != nil || !kept.Leaf.Equal(want) {
				t.Errorf("%s: another certificate, %v", file, err)
			}
		}
	}, func(w *rotationWorld) {
		w.hold = true
		for _, file := range []string{clientFile, servingFile} {
			free = append(free, blocked(t, w.id.cfg.path(file)))
		}
	})
}

func TestServingCertificate(t *testing.T) {
	inRotation(t, 1000*time.Hour, func(w *rotationWorld) {
		if _, err := w.r.GetCertificate(nil); !errors.Is(err, ErrNoServingCertificate) {
			t.Errorf("before there is one: %v", err)
		}
		cert := w.serves(t)
		if got := fmt.Sprint(cert.Leaf.DNSNames, cert.Leaf.IPAddresses); got != "[node-1] []" {
			t.Errorf("names %s, want the node's and nothing else", got)
		}
		for _, r := range w.of(certificates.KubeletServingSignerName) {
			if fmt.Sprint(r.Spec.Usages) != "[digital signature server auth]" {
				t.Errorf("usages %v", r.Spec.Usages)
			}
		}
		// It is stored for the next start.
		again := w.rotation(t)
		if kept, err := again.GetCertificate(nil); err != nil || !kept.Leaf.Equal(cert.Leaf) {
			t.Errorf("kept certificate: %v", err)
		}
		if w.renewed.Load() != 0 {
			t.Error("a new serving certificate closes the client's connections")
		}
		if !w.r.Client().NotAfter.Equal(w.id.expires()) || !w.r.Serving().Equal(cert.Leaf) {
			t.Errorf("said to expire at %v and %v", w.r.Client().NotAfter, w.r.Serving().NotAfter)
		}
	})
}

// TestPendingIsTold: in most clusters an administrator approves serving certificates, so a
// pending request is logged once.
func TestPendingIsTold(t *testing.T) {
	inRotation(t, 1000*time.Hour, func(w *rotationWorld) {
		const told = "kubectl certificate approve node-serving-csr-"
		advance(50 * time.Second)
		if n := strings.Count(w.log.String(), told); n != 1 {
			t.Errorf("told %d times: %s", n, w.log.String())
		}
	})
}

// A serving certificate with addresses, as earlier agents requested it, is replaced, and used
// meanwhile.
func TestServingCertificateWithAddressesIsReplaced(t *testing.T) {
	inRotation(t, 1000*time.Hour, func(w *rotationWorld) {
		w.serves(t)
		key, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		old := w.ca.Sign(t, &x509.Certificate{
			Subject:  pkix.Name{CommonName: "system:node:node-1", Organization: []string{"system:nodes"}},
			DNSNames: []string{"node-1"}, IPAddresses: []net.IP{{10, 0, 0, 1}}, NotBefore: time.Now(), NotAfter: time.Now().Add(1000 * time.Hour),
		}, &key.PublicKey)
		if err = writePair(w.id.cfg.path(servingFile), encodeCerts(old), key); err != nil {
			t.Fatal(err)
		}
		r := w.rotation(t)
		if kept, err := r.GetCertificate(nil); err != nil || !kept.Leaf.Equal(old) {
			t.Errorf("kept certificate: %v", err)
		}
		if !r.serving.due(time.Now()) {
			t.Error("the certificate with an address stays")
		}
	})
}

// TestServingCertificateFollowsAddresses: the first certificate has no addresses. One with
// addresses is requested once they are known, and again when they change. Until it is approved,
// and if it expires without approval, one without addresses is used.
func TestServingCertificateFollowsAddresses(t *testing.T) {
	const life = 1000 * time.Hour
	var addresses atomic.Pointer[[]netip.Addr]
	set := func(list ...netip.Addr) { addresses.Store(&list) }
	set()
	cloud, later := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")
	inRotation(t, life, func(w *rotationWorld) {
		serves := func(when, want string) {
			t.Helper()
			if got := fmt.Sprint(w.serves(t).Leaf.DNSNames, w.r.Serving().IPAddresses); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		serves("before any is known", "[node-1] []")
		set(cloud)
		serves("known", "[node-1] [203.0.113.7]")
		set(later, cloud, cloud)
		serves("others", "[node-1] [203.0.113.7 2001:db8::7]")
		asked := len(w.of(certificates.KubeletServingSignerName))
		set(cloud, later)
		serves("in another order", "[node-1] [203.0.113.7 2001:db8::7]")
		set()
		serves("known no more", "[node-1] [203.0.113.7 2001:db8::7]")
		if got := len(w.of(certificates.KubeletServingSignerName)); got != asked {
			t.Errorf("%d requests for what is there", got-asked)
		}
		w.holdAddresses(true)
		set(cloud)
		serves("not approved", "[node-1] [203.0.113.7 2001:db8::7]")
		advance(life/2 + 2*time.Hour)
		serves("half of its life later", "[node-1] []")
		w.holdAddresses(false)
		advance(time.Hour)
		serves("approved", "[node-1] [203.0.113.7]")
		w.dropAddresses(true)
		set(later)
		asked = len(w.of(certificates.KubeletServingSignerName))
		advance(time.Hour)
		serves("signed without", "[node-1] []")
		if got := len(w.of(certificates.KubeletServingSignerName)) - asked; got > 20 {
			t.Errorf("%d requests in an hour to a signer that names no addresses", got)
		}
	}, func(w *rotationWorld) { w.r.serving.addresses = func() []netip.Addr { return *addresses.Load() } })
}

// TestPendingRequestIsWaitedFor: an unanswered request stays the only one for its content, also
// after it was deleted, and its certificate is used once it is issued.
func TestPendingRequestIsWaitedFor(t *testing.T) {
	var address atomic.Pointer[netip.Addr]
	set := func(a string) { p := netip.MustParseAddr(a); address.Store(&p) }
	set("203.0.113.7")
	inRotation(t, 1000*time.Hour, func(w *rotationWorld) {
		pending := func(want int, when string) {
			t.Helper()
			advance(3 * time.Hour)
			if got := len(w.of(certificates.KubeletServingSignerName)) - 1; got != want {
				t.Errorf("%s: %d requests that wait, want %d", when, got, want)
			}
		}
		pending(1, "nobody approves")
		set("203.0.113.8")
		pending(2, "another address")
		w.mu.Lock()
		for name, r := range w.csrs {
			if len(r.Status.Certificate) == 0 {
				delete(w.csrs, name)
			}
		}
		w.mu.Unlock()
		pending(1, "cleaned away")
		w.holdAddresses(false)
		pending(1, "approved")
		if got := fmt.Sprint(w.r.Serving().IPAddresses); got != "[203.0.113.8]" {
			t.Errorf("names %s", got)
		}
		set("203.0.113.7")
		pending(2, "after the certificate, for the first address")
	}, func(w *rotationWorld) {
		w.hold = true
		w.r.serving.addresses = func() []netip.Addr { return []netip.Addr{*address.Load()} }
	})
}

func TestRenewalIsRetried(t *testing.T) {
	inRotation(t, 1000*time.Hour, func(w *rotationWorld) {
		advance(time.Hour)
		n := len(w.tries())
		if n < 8 || n > 30 {
			t.Errorf("%d tries in an hour", n)
		}
		for i := 6; i < n; i++ {
			if gap := w.tries()[i].Sub(w.tries()[i-1]); gap < time.Minute || gap > 8*time.Minute {
				t.Errorf("%v between tries %d and %d", gap, i, i+1)
			}
		}
		w.mu.Lock()
		w.fail, w.deny = nil, true
		w.mu.Unlock()
		advance(20 * time.Minute)
		if _, err := w.r.GetCertificate(nil); err == nil {
			t.Error("a denied request has given a certificate")
		}
		w.mu.Lock()
		w.deny = false
		w.mu.Unlock()
		advance(20 * time.Minute)
		if _, err := w.r.GetCertificate(nil); err != nil {
			t.Errorf("after all was well again: %v", err)
		}
	}, func(w *rotationWorld) { w.fail = errors.New("connection refused") })
}
