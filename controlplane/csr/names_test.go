package csr

// Tests of who may have a certificate for a name: the key that holds it.

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

// named is a request for node-1's client certificate, with a key of its own.
func named(t *testing.T, name, user string, groups []string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return object(name, clientSigner, user, groups, clientUsages, encoded(t, forNode("node-1", nil), nil))
}

func keyIn(t *testing.T, r *certificatesv1.CertificateSigningRequest) nodekeys.Key {
	t.Helper()
	req, err := parse(r)
	if err != nil {
		t.Fatal(err)
	}
	return keyOf(req)
}

const boot = "system:bootstrap:abcdef"

var asNode = []string{"system:nodes", "system:authenticated"}

// settled creates a request and says what becomes of it, and why.
func (b *bench) settled(t *testing.T, r *certificatesv1.CertificateSigningRequest) (string, string) {
	t.Helper()
	b.create(t, r)
	got := b.after(t, time.Minute, r.Name)
	var says []string
	for _, c := range got.Status.Conditions {
		says = append(says, c.Message)
	}
	return outcome(got), strings.Join(says, "; ")
}

func (b *bench) expect(t *testing.T, step string, r *certificatesv1.CertificateSigningRequest, want, says string) {
	t.Helper()
	if got, why := b.settled(t, r); got != want || !strings.Contains(why, says) {
		t.Errorf("%s: %s (%s), want %s (%s)", step, got, why, want, says)
	}
}

// TestNameOfASilentNode: a name is not free because its node has been silent for
// long; it is when an administrator says so.
func TestNameOfASilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, liveNode(corev1.ConditionUnknown))
		defer b.stop()
		book := nodekeys.NewBook(b.client)
		b.expect(t, "first", named(t, "first", boot, bootGroups), "issued", "")
		<-time.After(30 * 24 * time.Hour)
		b.expect(t, "another machine", named(t, "second", boot, bootGroups), "denied", "hawser node allow node-1")
		if err := book.Allow(t.Context(), "node-1", "", time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		b.expect(t, "allowed", named(t, "third", boot, bootGroups), "issued", "")
		b.expect(t, "once", named(t, "fourth", boot, bootGroups), "denied", "held by the key of another machine")
	})
}

// TestSiteOfAToken: it is the token's group that says of which site a node is, and
// nobody else's.
func TestSiteOfAToken(t *testing.T) {
	for name, tt := range map[string]struct {
		user, group, want string
	}{
		"token":              {boot, auth.SiteGroup + "berlin", "berlin"},
		"token without":      {boot, "system:bootstrappers:other", ""},
		"no site":            {boot, auth.SiteGroup, ""},
		"no label":           {boot, auth.SiteGroup + "a/b", ""},
		"somebody's groups":  {"alice", auth.SiteGroup + "berlin", ""},
		"a node's own group": {"system:node:node-1", auth.SiteGroup + "berlin", ""},
	} {
		if got := siteOf(named(t, "r", tt.user, append(slices.Clone(bootGroups), tt.group))); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		b.expect(t, "joins", named(t, "first", boot, append(slices.Clone(bootGroups), auth.SiteGroup+"berlin")), "issued", "")
		r, err := nodekeys.NewBook(b.client).Get(t.Context(), "node-1")
		if err != nil || r.Site != "berlin" {
			t.Errorf("the record says %+v, %v", r, err)
		}
	})
}

// TestTwoAskAtOnce: of two machines that want a name at the same moment one has it.
func TestTwoAskAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		b.create(t, named(t, "one", boot, bootGroups))
		b.create(t, named(t, "two", boot, bootGroups))
		one, two := outcome(b.after(t, time.Minute, "one")), outcome(b.after(t, 0, "two"))
		if one == two || one != "issued" && two != "issued" {
			t.Errorf("one is %s, two is %s", one, two)
		}
	})
}

// TestRenewalIsForTheHolder: it is the key with which a request was made that counts,
// not the name that its maker had then.
func TestRenewalIsForTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		first := named(t, "first", boot, bootGroups)
		b.expect(t, "first", first, "issued", "")
		by := func(name string, shown ...string) *certificatesv1.CertificateSigningRequest {
			r := named(t, name, "system:node:node-1", asNode)
			r.Spec.Extra = map[string]certificatesv1.ExtraValue{nodekeys.ExtraKey: shown}
			return r
		}
		key := keyIn(t, first)
		renewal := by("renewal", key.String())
		b.expect(t, "by the holder", renewal, "issued", "")
		b.expect(t, "by its new key", by("next", keyIn(t, renewal).String()), "issued", "")
		b.expect(t, "by another", by("stolen", nodekeys.Key{9}.String()), "denied", "does not belong to the key")
		b.expect(t, "by no key", by("garbled", "x"), "denied", "cannot be read")
		forget(t, nodekeys.NewBook(b.client), "node-1")
		b.expect(t, "of a deleted node", by("late", key.String()), "denied", "has been deleted")
		b.expect(t, "by its next holder", named(t, "other", boot, bootGroups), "issued", "")
		b.expect(t, "by its last", by("later", key.String()), "denied", "does not belong to the key")
	})
}

func forget(t *testing.T, book *nodekeys.Book, name string) {
	t.Helper()
	r, err := book.Get(t.Context(), name)
	if err == nil {
		err = book.Forget(t.Context(), r)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestApprovedBeforeRevoked: a request that was approved and not signed yet does not
// outlast a revocation or a deletion.
func TestApprovedBeforeRevoked(t *testing.T) {
	for _, how := range []string{"revoked", "deleted"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.stop()
				r, book := named(t, "r", boot, bootGroups), nodekeys.NewBook(b.client)
				b.hold(t, "node-1", keyIn(t, r))
				if how == "deleted" {
					forget(t, book, "node-1")
				} else if _, err := book.Revoke(t.Context(), "node-1", "root", ""); err != nil {
					t.Fatal(err)
				}
				r.Status.Conditions = approvedFor(autoApproved)
				b.expect(t, how, r, "failed", how)
			})
		})
	}
}

func approvedFor(reason string) []certificatesv1.CertificateSigningRequestCondition {
	return []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: reason, LastUpdateTime: metav1.Now(),
	}}
}

// TestApprovedByAPerson: a certificate that a person has approved is for a key that
// holds the name, too; but a person's approval takes nobody's name away.
func TestApprovedByAPerson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		r := named(t, "r", "alice", nil)
		r.Status.Conditions = approvedFor("KubectlApprove")
		b.expect(t, "a free name", r, "issued", "")
		if err := nodekeys.NewBook(b.client).Confirm(t.Context(), "node-1", keyIn(t, r)); err != nil {
			t.Error(err)
		}
		other := named(t, "other", "alice", nil)
		other.Status.Conditions = approvedFor("KubectlApprove")
		b.expect(t, "another's", other, "failed", "hawser node allow node-1")
	})
}

// TestNamesAreExact: a name in upper case or with a space is no node's at all; such a
// request waits for a person.
func TestNamesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		b.hold(t, "node-1", nodekeys.Key{1})
		for i, name := range []string{"Node-1", "node-1 ", " node-1", "node-1.", "node-1\x00", "NODE-1", ""} {
			r := object(string(rune('a'+i)), clientSigner, boot, bootGroups, clientUsages,
				encoded(t, forNode("node-1", func(q *x509.CertificateRequest) { q.Subject.CommonName = "system:node:" + name }), nil))
			if got, why := b.settled(t, r); got != "pending" {
				t.Errorf("%q: %s (%s)", name, got, why)
			}
		}
	})
}

// TestKeyOfRequestIsThatOfCertificate: what is written down is what is shown later.
func TestKeyOfRequestIsThatOfCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		b.create(t, named(t, "r", boot, bootGroups))
		r := b.after(t, time.Minute, "r")
		block, _ := pem.Decode(r.Status.Certificate)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if nodekeys.KeyOf(cert) != keyIn(t, r) {
			t.Error("they differ")
		}
	})
}
