package nodekeys

// Tests of the keeper beside another API server.

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// inVouchedBubble runs a test with a keeper with Config.Vouched.
func inVouchedBubble(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigOf(t, newAPI(nodeObject("old", "u0")), true)
		defer r.stop()
		f(t, r)
	})
}

// TestVouchedKeys: every key that the cluster has admitted is admitted and recorded, and the
// deletion of a Node has no effect.
func TestVouchedKeys(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		if _, err := r.book.Get(ctx, "old"); err == nil {
			t.Error("a Node that never showed a key has a record")
		}
		r.admits("at first", "a", 1, 2, 3, 4)
		if vouched, err := r.book.Vouched(ctx); err != nil || !vouched {
			t.Errorf("vouched for: %v, %v", vouched, err)
		}
		rec, err := r.book.Get(ctx, "a")
		r.must(err)
		if len(rec.Keys) != maxKeys || !rec.Holds(number(4)) {
			t.Errorf("written down are %v", rec.Keys)
		}
		r.makeNode("a", "u1")
		r.deleteNode("a")
		<-time.After(time.Second)
		if _, err := r.book.Get(ctx, "a"); err == nil {
			t.Error("the record outlives the Node")
		}
		r.admits("after the Node", "a", 1, 2, 3, 4)
		synctest.Wait()
		if len(r.ended) > 0 {
			t.Errorf("ended: %q", r.ended)
		}
	})
}

// TestVouchedChangeBeforeRemoval: a record that changes after the deletion of its Node, and
// before its own, bars nobody. If it has become one that bars keys it stays.
func TestVouchedChangeBeforeRemoval(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.admits("at first", "a", 1, 2, 3, 4)
		r.admits("at first", "b", 1, 2, 3, 4)
		var blocked atomic.Bool
		blocked.Store(true)
		r.react("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return blocked.Load(), nil, errors.New("away")
		})
		for _, name := range []string{"a", "b"} {
			r.makeNode(name, "u"+name)
			r.deleteNode(name)
		}
		r.must(r.keeper.Admit(ctx, "a", Key{9, 9}))
		r.admits("after another key", "a", 1, 2, 3, 4)
		synctest.Wait()
		if len(r.ended) > 0 {
			t.Errorf("ended: %q", r.ended)
		}
		_, err := r.book.Revoke(ctx, "b", "ann", "stolen")
		r.must(err)
		r.admits("revoked", "b")
		blocked.Store(false)
		<-time.After(lastRetry)
		if _, err := r.book.Get(ctx, "a"); err == nil {
			t.Error("the record outlives the Node")
		}
		r.admits("after the removal", "a", 1, 2, 3, 4)
		r.admits("revoked, and its Node deleted", "b")
		if h := r.keeper.holder("b"); h == nil || h.gone {
			t.Errorf("the revoked record is about to be deleted: %+v", h)
		}
	})
}

// TestVouchedRevocation: a revoked name stays refused, also after the deletion of the Node,
// until another key takes it.
func TestVouchedRevocation(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.makeNode("a", "u1")
		r.must(r.keeper.Admit(ctx, "a", number(1)))
		<-time.After(time.Second)
		_, err := r.book.Revoke(ctx, "a", "ann", "stolen")
		r.must(err)
		r.admits("revoked", "a")
		synctest.Wait()
		if len(r.ended) != 1 || !strings.Contains(r.ended[0], "revoked at ") {
			t.Errorf("ended: %q", r.ended)
		}
		r.deleteNode("a")
		r.admits("and its Node deleted", "a")
		r.makeNode("a", "u2")
		r.admits("and made anew", "a")
		r.must(r.book.Allow(ctx, "a", "ann", time.Now().Add(time.Hour)))
		<-time.After(time.Second)
		if err = r.keeper.Admit(ctx, "a", number(1)); err == nil {
			t.Error("the key that was revoked takes its name back")
		}
		r.must(r.keeper.Admit(ctx, "a", number(2)))
		r.admits("allowed", "a", 2, 3, 4)
		r.must(r.api.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
		r.admits("and the new Node deleted", "a", 2, 3, 4)
	})
}

// TestVouchedUnreadable: a record that cannot be read admits no key.
func TestVouchedUnreadable(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.must(r.keeper.Admit(ctx, "a", number(1)))
		m, err := r.api.CoreV1().ConfigMaps(Namespace).Get(ctx, "a", metav1.GetOptions{})
		r.must(err)
		m.Data[recordKey] = "{"
		_, err = r.api.CoreV1().ConfigMaps(Namespace).Update(ctx, m, metav1.UpdateOptions{})
		r.must(err)
		r.admits("broken", "a")
	})
}

// TestVouchedOften: a node with more keys than are kept, which it uses in turn, has the record
// written now and then, and keeps no other node from being recorded.
func TestVouchedOften(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		writes := func() (n int) {
			for _, a := range r.api.Actions() {
				if a.GetResource().Resource == "configmaps" && (a.GetVerb() == "update" || a.GetVerb() == "create") {
					n++
				}
			}
			return n
		}
		for i := range 500 {
			if err := r.keeper.Admit(ctx, "a", number(i%(maxKeys+1))); err != nil && !errors.Is(err, errOften) {
				t.Fatal(err)
			}
		}
		if n := writes(); n != showBurst {
			t.Errorf("500 sessions made %d writes", n)
		}
		if n := len(r.api.Actions()); n > 3*showBurst+10 {
			t.Errorf("and %d requests", n)
		}
		rec, err := r.book.Get(ctx, "a")
		r.must(err)
		r.must(r.keeper.Admit(ctx, "a", rec.Keys[0].Key))
		r.must(r.keeper.Admit(ctx, "b", number(1)))
		if err = r.keeper.Admit(ctx, "a", number(20)); !errors.Is(err, errOften) {
			t.Errorf("one more key: %v", err)
		}
		<-time.After(showInterval)
		r.must(r.keeper.Admit(ctx, "a", number(20)))
		r.must(r.keeper.Admit(ctx, "a", number(20)))
		if err = r.keeper.Admit(ctx, "a", number(21)); !errors.Is(err, errOften) {
			t.Errorf("and one more: %v", err)
		}
		<-time.After(showBurst * showInterval)
		for n := range showBurst {
			r.must(r.keeper.Admit(ctx, "a", number(30+n)))
		}
	})
}

// TestVouchedCannotBeWritten: while the API takes no record, a node with one key is told the reason each
// time, and it is admitted as soon as the API does.
func TestVouchedCannotBeWritten(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		var down atomic.Bool
		away := errors.New("away")
		r.react("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, away
		})
		down.Store(true)
		for range 4 * showBurst {
			if err := r.keeper.Admit(t.Context(), "a", number(1)); !errors.Is(err, away) {
				t.Fatalf("it is told %v", err)
			}
		}
		down.Store(false)
		r.must(r.keeper.Admit(t.Context(), "a", number(1)))
	})
}

// TestVouchedSuccessor: a revoked machine that tries again and again keeps no successor out.
func TestVouchedSuccessor(t *testing.T) {
	inVouchedBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		var refused *RefusedError
		spam := func(step string) {
			t.Helper()
			for range 10 * showBurst {
				if err := r.keeper.Admit(ctx, "a", number(1)); !errors.As(err, &refused) && !errors.Is(err, errOften) {
					t.Fatalf("%s: the revoked key: %v", step, err)
				}
			}
		}
		r.must(r.keeper.Admit(ctx, "a", number(1)))
		<-time.After(time.Second)
		_, err := r.book.Revoke(ctx, "a", "ann", "stolen")
		r.must(err)
		r.must(r.book.Allow(ctx, "a", "ann", time.Now().Add(time.Hour)))
		<-time.After(time.Second)
		spam("allowed")
		r.must(r.keeper.Admit(ctx, "a", number(2)))
		<-time.After(time.Second)
		spam("taken")
		r.must(r.keeper.Admit(ctx, "a", number(3)))
	})
}
