package nodekeys

// Tests of the keys that hold a name, and of their changes.

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func isHeld(err error) bool {
	var h *HeldError
	return errors.As(err, &h)
}

// inBubble runs a test with a keeper, in fake time.
func inBubble(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newAPI())
		defer r.stop()
		f(t, r)
	})
}

func TestFirstKeyTakesTheName(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.admits("before", "a")
		r.api.ClearActions()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		if n := len(r.api.Actions()); n != 1 {
			t.Errorf("a new name took %d requests", n)
		}
		r.must(r.book.Claim(ctx, "a", number(1), "")) // again, as after a lost answer
		r.admits("taken", "a", 1)
		r.admits("another name", "b")
		r.makeNode("a", "u1")
		if err := r.book.Claim(ctx, "a", number(2), ""); !isHeld(err) || !strings.Contains(err.Error(), "hawser node allow a") {
			t.Errorf("a second key: %v", err)
		}
		<-time.After(100 * 24 * time.Hour) // also after a long silence of the node
		if err := r.book.Claim(ctx, "a", number(2), ""); !isHeld(err) {
			t.Errorf("a second key much later: %v", err)
		}
		r.admits("still", "a", 1)
		if len(r.ended) > 0 {
			t.Errorf("ended: %q", r.ended)
		}
	})
}

// Of many keys that want a name at once, one gets it.
func TestOneOfManyTakesTheName(t *testing.T) {
	b := NewBook(newAPI())
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		have []Key
	)
	for n := range 20 {
		wg.Go(func() {
			err := b.Claim(context.Background(), "a", number(n), "")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				have = append(have, number(n))
			} else if !isHeld(err) {
				t.Errorf("key %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	r, err := b.Get(t.Context(), "a")
	if err != nil || len(have) != 1 || len(r.Keys) != 1 || !r.Holds(have[0]) {
		t.Errorf("%d keys believe to have the name; it is held by %+v (%v)", len(have), r, err)
	}
}

func TestRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		key := func(n int) *Key { k := number(n); return &k }
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.must(r.book.Renew(ctx, "a", key(1), number(2)))
		r.admits("both", "a", 1, 2)
		r.must(r.book.Renew(ctx, "a", key(1), number(3))) // the second was lost or is delayed
		r.admits("three", "a", 1, 2, 3)
		r.must(r.book.Renew(ctx, "a", key(3), number(4)))
		r.admits("the latest in use", "a", 3, 4)
		if err := r.book.Renew(ctx, "a", key(1), number(9)); !isHeld(err) {
			t.Errorf("by a key that is dropped: %v", err)
		}
		for n := 10; n < 30; n++ {
			r.must(r.book.Renew(ctx, "a", key(4), number(n)))
		}
		rec, err := r.book.Get(ctx, "a")
		r.must(err)
		if len(rec.Keys) != maxKeys || !rec.Holds(number(4)) || !rec.Holds(number(29)) {
			t.Errorf("after many renewals the keys are %v", rec.Keys)
		}
		if len(r.ended) > 0 {
			t.Errorf("a renewal ended what had begun: %q", r.ended)
		}
	})
}

// The deletion of a Node frees the name, and the key loses it, also for certificate requests
// that it had made before.
func TestDeletion(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		one := number(1)
		r.must(r.book.Claim(ctx, "a", one, ""))
		r.makeNode("a", "u1")
		if rec, err := r.book.Get(ctx, "a"); err != nil || rec.NodeUID != "u1" {
			t.Fatalf("the record is %+v, %v", rec, err)
		}
		r.deleteNode("a")
		r.admits("deleted", "a")
		if len(r.ended) != 1 || !strings.Contains(r.ended[0], "a, 1 false") || !strings.Contains(r.ended[0], "deleted") {
			t.Errorf("ended: %q", r.ended)
		}
		if _, err := r.book.Get(ctx, "a"); !errors.Is(err, ErrUnknown) {
			t.Errorf("the record is still there: %v", err)
		}
		if err := r.book.Renew(ctx, "a", &one, number(2)); !isHeld(err) {
			t.Errorf("a renewal: %v", err)
		}
		if err := r.book.Confirm(ctx, "a", one); !isHeld(err) {
			t.Errorf("what was approved before is confirmed: %v", err)
		}
		r.must(r.book.Claim(ctx, "a", number(3), ""))
		if err := r.book.Renew(ctx, "a", &one, number(2)); !isHeld(err) {
			t.Errorf("a renewal by the former holder: %v", err)
		}
		r.admits("another has it", "a", 3)
		r.makeNode("a", "u2")
		r.admits("and its Node", "a", 3)
	})
}

// The deletion of a Node that an administrator made before the node joined frees the name too.
func TestNodeMadeBeforehand(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.makeNode("a", "u1")
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		r.admits("before", "a", 1)
		r.deleteNode("a")
		r.admits("after", "a")
	})
}

// A deletion while the server was down is found when it starts.
func TestDeletedWhileNobodyFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI()
		r := newRig(t, api)
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		r.must(r.book.Claim(t.Context(), "b", number(2), ""))
		r.makeNode("a", "u1")
		r.makeNode("b", "u2")
		r.stop()
		r.must(api.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
		r.must(api.CoreV1().Nodes().Delete(t.Context(), "b", metav1.DeleteOptions{}))
		_, err := api.CoreV1().Nodes().Create(t.Context(), nodeObject("b", "u3"), metav1.CreateOptions{})
		r.must(err)
		again := newRig(t, api)
		defer again.stop()
		again.admits("deleted", "a")
		again.admits("deleted and made by somebody", "b")
	})
}

func TestRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI()
		r := newRig(t, api)
		ctx, one := t.Context(), number(1)
		if _, err := r.book.Revoke(ctx, "a", "root", ""); !errors.Is(err, ErrUnknown) {
			t.Errorf("of an unknown name: %v", err)
		}
		barred := func(step string, want string) {
			t.Helper()
			synctest.Wait()
			var refused *RefusedError
			if err := r.keeper.Barred("a"); (err != nil) != (want != "") || want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: barred by %v, want %q", step, err, want)
			}
		}
		barred("nobody has had it", "")
		r.must(r.book.Claim(ctx, "a", one, ""))
		r.admits("before", "a", 1)
		barred("before", "")
		first, err := r.book.Revoke(ctx, "a", "root", "stolen")
		r.must(err)
		<-time.After(time.Minute)
		if again, err := r.book.Revoke(ctx, "a", "other", "lost"); err != nil || again.Reason != first.Reason || !again.At.Equal(&first.At) {
			t.Errorf("revoked again: %+v, %v", again, err)
		}
		r.admits("revoked", "a")
		barred("revoked", "stolen")
		if len(r.ended) != 1 || !strings.Contains(r.ended[0], "by root: stolen") {
			t.Errorf("ended: %q", r.ended)
		}
		for what, err := range map[string]error{
			"renewal": r.book.Renew(ctx, "a", &one, number(2)), "bootstrap": r.book.Claim(ctx, "a", number(2), ""),
			"bootstrap with the same key": r.book.Claim(ctx, "a", one, ""), "approved before": r.book.Confirm(ctx, "a", one),
		} {
			if !isHeld(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
		r.stop()
		r = newRig(t, api)
		r.admits("after a restart", "a")
		barred("after a restart", "stolen")
		r.must(r.book.Allow(ctx, "a", "root", time.Now().Add(time.Hour)))
		r.admits("allowed, but not taken", "a")
		r.must(r.book.Claim(ctx, "a", number(3), ""))
		r.admits("taken anew", "a", 3)
		barred("taken anew", "")
		if err := r.book.Claim(ctx, "a", number(4), ""); !isHeld(err) {
			t.Errorf("the allowance was used twice: %v", err)
		}
		r.stop()
	})
}

// The deletion of a revoked node frees its name, as that of any node.
func TestRevokedAndDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		r.makeNode("a", "u1")
		_, err := r.book.Revoke(t.Context(), "a", "", "")
		r.must(err)
		r.deleteNode("a")
		r.must(r.book.Claim(t.Context(), "a", number(2), ""))
		r.admits("another", "a", 2)
	})
}

func TestAllow(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		if err := r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)); !errors.Is(err, ErrUnknown) {
			t.Errorf("a free name: %v", err)
		}
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.makeNode("a", "u1")
		r.must(r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)))
		r.admits("until it is used", "a", 1)
		<-time.After(time.Hour)
		if err := r.book.Claim(ctx, "a", number(2), ""); !isHeld(err) {
			t.Errorf("an allowance that has expired: %v", err)
		}
		r.must(r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)))
		r.must(r.book.Claim(ctx, "a", number(2), ""))
		r.admits("used", "a", 2)
		if len(r.ended) != 1 || !strings.Contains(r.ended[0], "a, 1 false, 2 true: node \"a\" is not admitted: its name was taken over") {
			t.Errorf("ended: %q", r.ended)
		}
		r.deleteNode("a")
		r.admits("the Node is the new holder's", "a")
	})
}

// The first key that is used takes the name of a node from before there were records, once. A
// name that is deleted later cannot be taken in that way.
func TestAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(nodeObject("old", "u1"), nodeObject("idle", "u2"))
		r := newRig(t, api)
		ctx := t.Context()
		if err := r.book.Claim(ctx, "old", number(4), ""); !isHeld(err) {
			t.Errorf("by a join token: %v", err)
		}
		r.must(r.keeper.Admit(ctx, "old", number(1)))
		r.admits("adopted", "old", 1)
		r.makeNode("new", "u3")
		r.admits("a Node that is younger", "new")
		r.must(api.CoreV1().ConfigMaps(Namespace).Delete(ctx, "old", metav1.DeleteOptions{}))
		r.admits("its record was deleted", "old")
		r.deleteNode("idle")
		r.admits("deleted before it was seen", "idle")
		r.stop()
		r = newRig(t, api)
		r.admits("after a restart", "old")
		r.admits("after a restart", "idle")
		r.stop()
	})
}

// A key that was just added is admitted although the watch is delayed.
func TestMemoryIsBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		r.must(r.keeper.Admit(t.Context(), "a", number(1)))
		m, err := r.api.CoreV1().ConfigMaps(Namespace).Get(t.Context(), "a", metav1.GetOptions{})
		r.must(err)
		one := number(1)
		r.must(r.book.Renew(t.Context(), "a", &one, number(2)))
		r.must(r.keeper.Admit(t.Context(), "a", number(2)))
		r.keeper.learn(m) // an older version arrives late
		r.must(r.keeper.Admit(t.Context(), "a", number(2)))
	})
}

// TestFormerRecordArrivesLate: a name was taken anew, and its record was read directly. What
// the watch still delivers of the record before takes nothing from the new holder.
func TestFormerRecordArrivesLate(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		version := func(object string, version, key int) *corev1.ConfigMap {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(object), ResourceVersion: strconv.Itoa(version)}}
			r.must((&Record{Name: "a", Keys: []Held{{Key: number(key)}}}).encode(m))
			return m
		}
		r.keeper.learn(version("o2", 10, 2))
		r.keeper.learn(version("o1", 8, 1))
		broken := version("o1", 9, 1)
		broken.Data[recordKey] = "{"
		r.keeper.learn(broken)
		if err := r.keeper.Admit(ctx, "a", number(2)); err != nil {
			t.Errorf("the holder: %v", err)
		}
		if len(r.ended) > 0 {
			t.Errorf("ended: %q", r.ended)
		}
		r.keeper.onRecord().OnDelete(version("o1", 9, 1))
		r.must(r.keeper.Admit(ctx, "a", number(2)))
		// The store was restored from a backup, and the watch lists anew.
		r.keeper.onRecord().OnUpdate(version("o2", 10, 2), version("o1", 8, 1))
		r.must(r.keeper.Admit(ctx, "a", number(1)))
		if h := r.keeper.holder("a"); h.holds(number(2)) {
			t.Error("a key that the restored store does not have holds the name")
		}
	})
}

func TestUnreadableRecordAdmitsNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		m, err := r.api.CoreV1().ConfigMaps(Namespace).Get(ctx, "a", metav1.GetOptions{})
		r.must(err)
		m.Data[recordKey] = "{"
		_, err = r.api.CoreV1().ConfigMaps(Namespace).Update(ctx, m, metav1.UpdateOptions{})
		r.must(err)
		r.admits("broken", "a")
		if err := r.book.Claim(ctx, "a", number(2), ""); !isHeld(err) {
			t.Errorf("it can be taken: %v", err)
		}
		// The ConfigMap of root certificates in every namespace is no record.
		_, err = r.api.CoreV1().ConfigMaps(Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}}, metav1.CreateOptions{})
		r.must(err)
		if err := r.book.Claim(ctx, "kube-root-ca.crt", number(2), ""); !isHeld(err) {
			t.Errorf("a name in use by something else: %v", err)
		}
	})
}

// A long request ends when its key loses the name.
func TestWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.must(r.book.Claim(t.Context(), "a", number(1), ""))
		r.admits("before", "a", 1)
		ctx, stop := r.keeper.Watch(t.Context(), "a", number(1))
		defer stop()
		short, stopShort := r.keeper.Watch(t.Context(), "a", number(1))
		stopShort()
		<-short.Done()
		_, err := r.book.Revoke(t.Context(), "a", "", "")
		r.must(err)
		<-ctx.Done()
		var refused *RefusedError
		if err := context.Cause(ctx); !errors.As(err, &refused) {
			t.Errorf("ended because %v", err)
		}
		if err := r.keeper.Admit(t.Context(), "a", number(1)); !errors.As(err, &refused) {
			t.Errorf("one that begins after that is admitted: %v", err)
		}
		stop()
		if n := len(r.keeper.watches); n > 0 {
			t.Errorf("%d names are remembered that nobody watches under", n)
		}
	})
}

// A request with a pod's credentials ends when its node is revoked, and not when another
// machine takes the name: the pods are that machine's then.
func TestWatchPods(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.admits("before", "a", 1)
		pods, stop := r.keeper.WatchPods(ctx, "a")
		defer stop()
		r.must(r.book.Allow(ctx, "a", "", time.Now().Add(time.Hour)))
		r.must(r.book.Claim(ctx, "a", number(2), ""))
		r.admits("taken over", "a", 2)
		if err := errors.Join(pods.Err(), r.keeper.AdmitPods(ctx, "a", time.Now), r.keeper.AdmitPods(ctx, "nobody's", time.Now)); err != nil {
			t.Errorf("taken over: %v", err)
		}
		_, err := r.book.Revoke(ctx, "a", "", "stolen")
		r.must(err)
		<-pods.Done()
		var refused *RefusedError
		if err := context.Cause(pods); !errors.As(err, &refused) {
			t.Errorf("ended because %v", err)
		}
		if err := r.keeper.AdmitPods(ctx, "a", time.Now); !errors.As(err, &refused) {
			t.Errorf("revoked: %v", err)
		}
	})
}

// Until the records have been read no key is admitted, and clients are told to come back.
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Keeper{ready: make(chan struct{})}
		if err := k.Admit(t.Context(), "a", number(1)); !errors.Is(err, ErrNotReady) {
			t.Errorf("got %v", err)
		}
		if err := k.AdmitPods(t.Context(), "a", time.Now); !errors.Is(err, ErrNotReady) {
			t.Errorf("pods: %v", err)
		}
	})
}

// FuzzRecord: every record is refused or bounded.
func FuzzRecord(f *testing.F) {
	f.Add(`{"keys":[{"sha256":"` + number(1).String() + `","since":"2026-01-01T00:00:00Z"}]}`)
	f.Add(`{"revoked":{"at":null},"allowed":{}}`)
	f.Add(`{"keys":[{}],"adopt":true}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID("u"), Labels: map[string]string{Label: "key"}}, Data: map[string]string{recordKey: text}}
		r, err := decode(m)
		if err != nil {
			return
		}
		h := holderOf(r)
		if len(r.Keys) > maxKeys || r.Revoked != nil && h.holds(number(1)) || r.State(time.Now()) == "" {
			t.Errorf("%q became %+v", text, r)
		}
		if err := r.encode(m); err != nil {
			t.Fatal(err)
		}
		if again, err := decode(m); err != nil || len(again.Keys) != len(r.Keys) || (again.Revoked == nil) != (r.Revoked == nil) {
			t.Errorf("%q became %+v, and that %+v (%v)", text, r, again, err)
		}
	})
}

func BenchmarkAdmit(b *testing.B) {
	k := &Keeper{ready: make(chan struct{}), names: map[string]*holder{}}
	close(k.ready)
	k.names["a"] = holderOf(&Record{Name: "a", Keys: []Held{{Key: number(1)}, {Key: number(2)}}})
	b.ReportAllocs()
	for b.Loop() {
		if k.Admit(b.Context(), "a", number(2)) != nil {
			b.Fatal("refused")
		}
	}
}

// An admitted key allocates nothing.
func TestAdmitAllocatesNothing(t *testing.T) {
	k := &Keeper{ready: make(chan struct{}), names: map[string]*holder{}}
	close(k.ready)
	k.names["a"] = holderOf(&Record{Name: "a", Keys: []Held{{Key: number(1)}}})
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { _ = k.Admit(ctx, "a", number(1)) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkWatch is the cost of making a node's request endable.
func BenchmarkWatch(b *testing.B) {
	k := &Keeper{watches: make(map[string]map[*watched]struct{})}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		_, stop := k.Watch(ctx, "a", number(1))
		stop()
	}
}
