package nodekeys

// Tests of the site in a join token.

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/auth"
)

func (r *rig) siteIs(step, name, want string) {
	r.t.Helper()
	<-time.After(time.Second)
	n, err := r.api.CoreV1().Nodes().Get(r.t.Context(), name, metav1.GetOptions{})
	r.must(err)
	if got := n.Labels[auth.SiteLabel]; got != want {
		r.t.Errorf("%s: %s is of site %q, want %q", step, name, got, want)
	}
	rec, err := r.book.Get(r.t.Context(), name)
	r.must(err)
	if rec.Site != "" || rec.NodeUID != string(n.UID) {
		r.t.Errorf("%s: the record still has site %q, and Node %q", step, rec.Site, rec.NodeUID)
	}
}

// A node has the site of the token with which its key took the name, until an administrator
// changes it.
func TestSite(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		one := number(1)
		r.must(r.book.Claim(ctx, "a", one, "berlin"))
		r.makeNode("a", "uid-1")
		r.siteIs("joined", "a", "berlin")
		_, err := r.api.CoreV1().Nodes().Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+auth.SiteLabel+`":"rome"}}}`), metav1.PatchOptions{})
		r.must(err)
		r.must(r.book.Claim(ctx, "a", one, "paris")) // the same key, again
		r.must(r.book.Renew(ctx, "a", &one, number(2)))
		r.siteIs("an administrator's word stands through renewals", "a", "rome")

		r.must(r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)))
		r.must(r.book.Claim(ctx, "a", number(3), ""))
		r.siteIs("another machine, by a token that says nothing", "a", "rome")
		r.must(r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)))
		r.must(r.book.Claim(ctx, "a", number(4), "oslo"))
		r.siteIs("another machine, by a token of another site", "a", "oslo")

		r.deleteNode("a")
		r.must(r.book.Claim(ctx, "a", number(1), "lima"))
		r.makeNode("a", "uid-2")
		r.siteIs("made anew", "a", "lima")
	})
}

// A site that could not be written before the keeper ended is written by the next.
func TestSiteOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newAPI())
		r.makeNode("a", "uid-1")
		r.must(r.book.Claim(t.Context(), "a", number(2), ""))
		r.stop()
		r.must(r.book.Allow(t.Context(), "a", "", time.Now().Add(time.Hour)))
		r.must(r.book.Claim(t.Context(), "a", number(1), "berlin"))
		again := newRig(t, r.api)
		defer again.stop()
		again.siteIs("after a restart", "a", "berlin")
	})
}
