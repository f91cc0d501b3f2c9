// This file has what servers say of the client certificate, and delays requests for another one that
// would be refused as well.

package bootstrap

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// refusedWait is the wait, within a quarter, after a server has refused a certificate and the one
	// that a token got in its place. The signer may be given a new authority some minutes after the
	// server. The wait doubles each time, up to refusedLimit.
	refusedWait  = 5 * time.Minute
	refusedLimit = 8 * time.Hour
)

// Reject records that a server does not admit the node with its client certificate. Then
// another certificate is requested with a join token, until the node is admitted. An attempt
// that began before the certificate was replaced says nothing about the present one. Reject
// does not block.
func (r *Rotation) Reject(began time.Time) { r.record(&r.client.rejected, began) }

// Refused records that a server refuses the client certificate itself, although the node's key
// may hold its name: the authority that signed it had been replaced. Then another certificate is
// requested with a join token and the same key. As with Reject, began is when the attempt began.
// It does not block.
func (r *Rotation) Refused(began time.Time) { r.record(&r.client.refused, began) }

// record stores the client certificate, unless it was replaced after the attempt began.
func (r *Rotation) record(in *atomic.Pointer[tls.Certificate], began time.Time) {
	pair := r.cfg.Identity.cert.Load()
	if at := r.replaced.Load(); at == nil || began.After(*at) {
		in.Store(pair)
	}
}

// Admitted records that a server admits the node, which a server may have rejected before, or
// its certificate. It does not block.
func (r *Rotation) Admitted() {
	r.client.rejected.Store(nil)
	r.client.refused.Store(nil)
}

// refusals are what is known of certificates that are refused one after the other. A server that
// takes those of another authority (--agent-ca) refuses all that this cluster signs. The goroutine
// that renews uses it alone.
type refusals struct {
	next  *tls.Certificate // got with a token in place of a refused one, of the same authority; nil if there is none
	of    *tls.Certificate // the refused one after which requests wait
	until time.Time
	times int
	basis basis // at the beginning of the wait
}

// A basis is what may make a difference to the next request.
type basis struct {
	token     Token
	authority string // of clients, as the cluster publishes it
}

// got records a certificate that a token got in place of a refused one.
func (f *refusals) got(refused, next *tls.Certificate) {
	if a, b := refused.Leaf, next.Leaf; bytes.Equal(a.RawIssuer, b.RawIssuer) && bytes.Equal(a.AuthorityKeyId, b.AuthorityKeyId) {
		f.next = next
	}
}

// refusedAgain reports whether no other certificate is to be requested now: one that was got in place
// of a refused one, by the same authority, is refused too, and none was admitted in between. That is
// over after a while, and with another token or another authority of the cluster.
func (n *renewal) refusedAgain(now time.Time) bool {
	f, pair, refused := &n.refusals, n.cert.Load(), n.refused.Load()
	switch {
	case refused == nil:
		f.next, f.of, f.times = nil, nil, 0
		return false
	case refused != pair:
		return false
	case f.of == pair:
		return now.Before(f.until) && f.basis == n.basisNow()
	case f.next != pair:
		return false
	}
	wait := min(refusedWait<<f.times, refusedLimit)
	wait = wait*3/4 + rand.N(wait/2)
	f.of, f.until, f.basis = pair, now.Add(wait), n.basisNow()
	f.times = min(f.times+1, 8) // the shift has no overflow
	n.rotation.cfg.Log.Error("a server refuses the new client certificate too, and no other is requested for a while: if it runs with --agent-ca, give --client-certificate, --client-key "+
		"and --certificate-authority; else the authority that signs is not the one that it takes",
		slog.String("node", n.rotation.cfg.Identity.NodeName()), slog.Duration("after", wait.Round(time.Minute)))
	return true
}

// basisNow is the present basis.
func (n *renewal) basisNow() (b basis) {
	id := n.rotation.cfg.Identity
	b.token, _ = id.cfg.token() // none is zero
	if ca := first(id.trust.Load().clients); ca != nil {
		b.authority = string(ca.Raw)
	}
	return b
}
