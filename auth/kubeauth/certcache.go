package kubeauth

// A cache of verified client certificates.

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

const (
	// certificateTrust is how long a certificate is cached. Its dates and the trusted
	// authorities are checked with every request; this only bounds how long entries of
	// clients that do not come back are kept.
	certificateTrust = time.Minute
	// certificatesKept bounds each of two generations of entries, which have less than
	// 1 KiB each.
	certificatesKept = 16384
)

// verifiedCertificates authenticates client certificates and caches valid ones. A client
// sends many requests on one connection, and verifying a signature costs a tenth of a
// small request.
//
// Only valid certificates are cached, so that clients without one cannot fill the cache.
//
// Whether a node's key still holds its name is not cached: it is checked with each
// request.
type verifiedCertificates struct {
	ca     *auth.Authorities
	names  Names // nil means no check
	verify authenticator.Request
	limit  int // of each generation

	mu    sync.Mutex
	pool  *x509.CertPool // by which all entries were verified
	turn  time.Time      // when young was made
	young map[certificateKey]verified
	old   map[certificateKey]verified
}

// A certificateKey is the digest of all of a client's certificates.
type certificateKey [sha256.Size]byte

// A verified is the result of a verification.
type verified struct {
	response *authenticator.Response // shared: never changed
	node     string                  // the node of the certificate; empty if it is no node's
	key      nodekeys.Key            // of the certificate, if it is a node's
	from     time.Time               // when it was verified
	until    time.Time               // when it must be verified again
}

// newVerifiedCertificates makes a cache of up to twice limit certificates.
func newVerifiedCertificates(ca *auth.Authorities, names Names, limit int) *verifiedCertificates {
	options := func() (x509.VerifyOptions, bool) {
		o := requestx509.DefaultVerifyOptions()
		o.Roots = ca.Pool()
		return o, true
	}
	user := requestx509.UserConversionFunc(func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		if err := ca.Check([][]*x509.Certificate{chain}); err != nil {
			return nil, false, err
		}
		return datedUser(chain)
	})
	return &verifiedCertificates{ca: ca, names: names, verify: requestx509.NewDynamic(options, user), limit: limit}
}

// AuthenticateRequest implements authenticator.Request.
func (v *verifiedCertificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	// The pool is read before the certificate is verified: if it is replaced in between,
	// the result is stored for the old pool, and not used.
	pool := v.ca.Pool()
	key, now := keyOf(r.TLS.PeerCertificates), time.Now()
	if known, ok := v.recall(key, pool, now); ok {
		return v.admit(r.Context(), known)
	}
	response, ok, err := v.verify.AuthenticateRequest(r)
	if !ok || err != nil {
		return response, ok, err
	}
	dated := response.User.(*datedInfo)
	one := verified{response: response, from: now, until: now.Add(certificateTrust)}
	if dated.until.Before(one.until) {
		one.until = dated.until
	}
	response.User = dated.Info
	if node, is := strings.CutPrefix(response.User.GetName(), nodeUserPrefix); is { // whatever its groups
		one.node, one.key = node, nodekeys.KeyOf(r.TLS.PeerCertificates[0])
		response.User = keyed(response.User, one.key)
	}
	v.remember(key, pool, one)
	return v.admit(r.Context(), one)
}

// admit returns the response for a valid certificate, or an error if it is a node's whose
// key does not hold the name.
func (v *verifiedCertificates) admit(ctx context.Context, known verified) (*authenticator.Response, bool, error) {
	if known.node != "" && v.names != nil {
		if err := v.names.Admit(ctx, known.node, known.key); err != nil {
			return nil, false, err
		}
	}
	return copied(known.response), true, nil
}

// keyed is the user of a node with its key as an extra.
func keyed(u user.Info, key nodekeys.Key) user.Info {
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = make(map[string][]string, 1)
	}
	extra[nodekeys.ExtraKey] = []string{key.String()}
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

// recall returns the cached result for key, if it is still valid.
func (v *verifiedCertificates) recall(key certificateKey, pool *x509.CertPool, now time.Time) (verified, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pool != pool {
		return verified{}, false
	}
	known, ok := v.young[key]
	if !ok {
		known, ok = v.old[key]
	}
	// After the clock was set back, earlier results are not valid either.
	if !ok || now.Before(known.from) || !now.Before(known.until) {
		return verified{}, false
	}
	return known, true
}

// remember adds a result. The young generation becomes the old one when it is full, or
// when all entries of the old one have expired.
func (v *verifiedCertificates) remember(key certificateKey, pool *x509.CertPool, one verified) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.young == nil || v.pool != pool:
		v.pool, v.turn, v.old, v.young = pool, one.from, nil, make(map[certificateKey]verified)
	case len(v.young) >= v.limit || one.from.Sub(v.turn) >= certificateTrust:
		v.turn, v.old, v.young = one.from, v.young, make(map[certificateKey]verified)
	}
	v.young[key] = one
}

func keyOf(shown []*x509.Certificate) certificateKey {
	if len(shown) == 1 {
		return sha256.Sum256(shown[0].Raw)
	}
	h := sha256.New()
	for _, c := range shown {
		sum := sha256.Sum256(c.Raw)
		h.Write(sum[:])
	}
	return certificateKey(h.Sum(nil))
}

// copied is a copy of a response with the same user.
func copied(r *authenticator.Response) *authenticator.Response {
	c := *r
	return &c
}

// datedInfo is a user, with the end of validity of its chain of certificates.
type datedInfo struct {
	user.Info
	until time.Time
}

// datedUser takes the user from the common name, as Kubernetes does.
func datedUser(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
	response, ok, err := requestx509.CommonNameUserConversion(chain)
	if !ok || err != nil {
		return response, ok, err
	}
	until := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	response.User = &datedInfo{Info: response.User, until: until}
	return response, true, nil
}
