package nodekeys

// Tests of what a revoked node had: the tokens of its pods, which may live longer than its tenure,
// and its key.

import (
	"errors"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// pods checks whether a token of a pod of a is admitted that was issued then.
func (r *rig) pods(step string, issued time.Time, want bool) {
	r.t.Helper()
	<-time.After(time.Second)
	err := r.keeper.AdmitPods(r.t.Context(), "a", func() time.Time { return issued.Truncate(time.Second) })
	var refused *RefusedError
	if (err == nil) != want || err != nil && !errors.As(err, &refused) {
		r.t.Errorf("%s: %v, want admitted %t", step, err, want)
	}
}

// TestTokensAfterAllow: once another machine has taken a name that was revoked, tokens of
// its pods count, and tokens from before do not, also those that were issued while the
// revocation was on its way.
func TestTokensAfterAllow(t *testing.T) {
	for name, tc := range map[string]struct {
		pause time.Duration // from the revocation to the next machine
		wrong time.Duration // the error of the clock that the revocation is by
	}{
		"after a day": {pause: 24 * time.Hour}, "at once": {}, "by a clock that is fast": {pause: time.Minute, wrong: time.Hour},
		"by a clock that is slow": {pause: time.Minute, wrong: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				ctx := t.Context()
				r.must(r.book.Claim(ctx, "a", number(1), ""))
				r.makeNode("a", "u1")
				old := time.Now()
				r.pods("before", old, true)
				r.book.now = func() time.Time { return time.Now().Add(tc.wrong) }
				_, err := r.book.Revoke(ctx, "a", "root", "stolen")
				r.must(err)
				r.book.now = time.Now
				last := time.Now()
				r.pods("revoked", last, false)
				<-time.After(tc.pause)
				r.must(r.book.Allow(ctx, "a", "root", time.Now().Add(time.Hour)))
				r.pods("allowed", last, false)
				r.must(r.book.Claim(ctx, "a", number(2), ""))
				next := time.Now()
				r.admits("taken", "a", 2)
				r.pods("taken", old, false)
				r.pods("taken", last, false)
				r.pods("of the next machine", next, true)
				two := number(2)
				r.must(r.book.Renew(ctx, "a", &two, number(3)))
				r.must(r.book.Allow(ctx, "a", "root", time.Now().Add(time.Hour)))
				r.must(r.book.Claim(ctx, "a", number(4), ""))
				r.pods("taken over without a revocation", last, false)
				r.pods("of the machine before", next, true)
			})
		})
	}
}

func podOn(node string) runtime.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"}, Spec: corev1.PodSpec{NodeName: node}}
}

// TestTokensAfterDeletion: the deletion of a revoked node frees its name, and tokens of its
// pods stay refused while there are pods. Then the record goes.
func TestTokensAfterDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(podOn("a"))
		r := newRig(t, api)
		ctx, old := t.Context(), time.Now()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.makeNode("a", "u1")
		_, err := r.book.Revoke(ctx, "a", "root", "stolen")
		r.must(err)
		r.deleteNode("a")
		r.pods("deleted", old, false)
		r.pods("deleted", time.Now(), false)
		if err := r.keeper.Barred("a"); err != nil {
			t.Errorf("a name that is free is barred: %v", err)
		}
		if err := r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)); !errors.Is(err, ErrUnknown) {
			t.Errorf("a free name is allowed: %v", err)
		}
		if _, err := r.book.Revoke(ctx, "a", "", ""); !errors.Is(err, ErrUnknown) {
			t.Errorf("a free name is revoked: %v", err)
		}
		r.stop()
		r = newRig(t, api)
		r.admits("after a restart", "a")
		r.pods("after a restart", old, false)
		rec, err := r.book.Get(ctx, "a")
		if err != nil || !strings.HasPrefix(rec.State(time.Now()), "free") {
			t.Fatalf("the record is %+v, %v", rec, err)
		}
		r.must(r.book.Claim(ctx, "a", number(2), ""))
		r.admits("taken", "a", 2)
		r.pods("taken", old, false)
		r.pods("taken", time.Now(), true)
		r.makeNode("a", "u2")
		r.admits("with its Node", "a", 2)
		r.deleteNode("a")
		r.admits("deleted again", "a")
		r.pods("deleted again", old, false)
		r.must(api.CoreV1().Pods("kube-system").Delete(ctx, "agent", metav1.DeleteOptions{}))
		<-time.After(2 * podsAgain)
		if rec, err := r.book.Get(ctx, "a"); !errors.Is(err, ErrUnknown) {
			t.Errorf("the record outlives the pods: %+v, %v", rec, err)
		}
		r.stop()
	})
}

// TestClaimOfDeletedRevoked: a machine may take the name between the deletion of a Node and
// its notice. The record has the time of the revocation, and the name stays the machine's.
func TestClaimOfDeletedRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(podOn("a"))
		r := newRig(t, api)
		ctx, old := t.Context(), time.Now()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.makeNode("a", "u1")
		_, err := r.book.Revoke(ctx, "a", "root", "stolen")
		r.must(err)
		r.stop()
		r.must(api.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
		r.must(r.book.Claim(ctx, "a", number(2), ""))
		r = newRig(t, api)
		r.admits("taken", "a", 2)
		r.pods("taken", old, false)
		r.pods("taken", time.Now(), true)
		r.stop()
	})
}

// TestTakenWhileGone: the keeper has noticed the deletion, and a machine takes the name
// before the keeper has written that it is free.
func TestTakenWhileGone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.makeNode("a", "u1")
		_, err := r.book.Revoke(ctx, "a", "root", "stolen")
		r.must(err)
		<-time.After(time.Second)
		r.must(r.api.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}))
		r.must(r.book.Claim(ctx, "a", number(2), "")) // at once: no goroutine of the keeper has run
		r.admits("taken", "a", 2)
	})
}

// TestTakenWhileForgotten: a machine takes a name, and its record is removed between the
// read and the write.
func TestTakenWhileForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.must(r.book.Allow(ctx, "a", "root", time.Now().Add(time.Hour)))
		removed := false
		r.react("update", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if !removed {
				removed = true
				r.must(r.api.Tracker().Delete(a.GetResource(), Namespace, "a"))
			}
			return false, nil, nil
		})
		r.must(r.book.Claim(ctx, "a", number(2), ""))
		r.admits("taken", "a", 2)
	})
}

// TestRemovedWhileRead: a record that was read directly, and has been removed before it is
// looked at, admits nobody.
func TestRemovedWhileRead(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		r.makeNode("a", "u1")
		read := false
		r.react("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if read {
				return false, nil, nil
			}
			read = true
			record, err := r.api.Tracker().Get(a.GetResource(), Namespace, "a")
			r.must(err)
			r.must(r.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "a"))
			r.must(r.api.Tracker().Delete(a.GetResource(), Namespace, "a"))
			for r.keeper.holder("a") != nil {
				goruntime.Gosched()
			}
			return true, record, nil
		})
		if err := r.keeper.Admit(t.Context(), "a", number(2)); err == nil {
			t.Error("a key that is in no record is admitted")
		}
		r.admits("removed", "a")
	})
}

// TestRecordFromBefore: a record without the time of a revocation is read, and its own
// revocation counts.
func TestRecordFromBefore(t *testing.T) {
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7", Labels: map[string]string{Label: "key"}},
		Data: map[string]string{recordKey: `{"keys":[{"sha256":"` + number(1).String() + `","since":"2026-01-01T00:00:00Z"}],` +
			`"nodeUID":"u1","revoked":{"at":"2026-02-01T00:00:00Z","by":"root"}}`},
	}
	r, err := decode(m)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	if next := r.taken(number(2), "", at.Add(5*time.Second)); next.TokensAfter == nil || !next.TokensAfter.Time.Equal(at) {
		t.Errorf("taken: %v", next.TokensAfter)
	}
	if free := r.freed("u1"); !free.Freed || free.TokensAfter == nil || !free.TokensAfter.Time.Equal(at) || free.Former != "u1" || len(free.Keys) > 0 {
		t.Errorf("freed: %+v", free)
	}
}

// A key that was revoked does not come back: the next machine has another one. A key that was
// not may go on.
func TestRevokedKeyDoesNotComeBack(t *testing.T) {
	b, ctx := NewBook(newAPI()), t.Context()
	err := b.Claim(ctx, "a", number(1), "")
	err = errors.Join(err, b.Allow(ctx, "a", "root", time.Now().Add(time.Hour)), b.Claim(ctx, "a", number(1), ""))
	_, no := b.Revoke(ctx, "a", "root", "stolen")
	if err = errors.Join(err, no, b.Allow(ctx, "a", "root", time.Now().Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	if err := b.Claim(ctx, "a", number(1), ""); !isHeld(err) || !strings.Contains(err.Error(), "another key") {
		t.Errorf("the key that was revoked: %v", err)
	}
	if err := b.Claim(ctx, "a", number(2), ""); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// TestStateIsOfTheKeyInUse: the time is that of the key that it names.
func TestStateIsOfTheKeyInUse(t *testing.T) {
	old, renewed := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	r := (&Record{Name: "a", Keys: []Held{{number(1), stamp(old)}}}).renewed(number(1), number(2), renewed)
	if want, got := "held by key sha256:"+number(2).String()[:12]+"… since 2026-03-01T00:00:00Z", r.State(renewed); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestEachRecord: all that can be read are told of.
func TestEachRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(nodeObject("old", "u0"))
		r := newRig(t, api)
		defer r.stop()
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		if _, err := r.book.Revoke(t.Context(), "a", "root", ""); err != nil {
			t.Fatal(err)
		}
		var all []string
		r.must(r.book.Each(t.Context(), func(rec *Record) { all = append(all, rec.Name+" "+rec.State(time.Now())) }))
		if len(all) != 2 || !strings.HasPrefix(all[0], "a revoked at ") || !strings.HasPrefix(all[1], "old the first certificate") {
			t.Errorf("%q", all)
		}
		if vouched, err := r.book.Vouched(t.Context()); err != nil || vouched {
			t.Errorf("vouched for: %v, %v", vouched, err)
		}
	})
}
