package garbage

// A random walk: owners and dependents come, change and go while the collector works.

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

var walks = flag.Int("garbage.walks", 20, "how many random walks TestWalk makes; the name of each is its seed")

// TestWalk makes, changes and deletes objects at random, in bursts, while requests of the
// collector fail and it is restarted. After each burst what is left is compared with what
// may be left: see check.
func TestWalk(t *testing.T) {
	for seed := range uint64(*walks) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(w *world) {
				k := &walk{world: w, rnd: rand.New(rand.NewPCG(seed, 10))} //nolint:gosec // a test
				k.asked, k.orphaned = make(map[types.UID]bool), make(map[types.UID]bool)
				k.run()
			})
		})
	}
}

// A walk is one random walk and what is known of its objects.
type walk struct {
	*world
	rnd      *rand.Rand
	last     int                     // the last number given to an object
	taken    []metav1.OwnerReference // to objects that the walk deleted
	refuse   atomic.Int64            // how many requests of the collector fail from now on
	asked    map[types.UID]bool      // objects that the walk deleted
	orphaned map[types.UID]bool      // and those that it ever deleted with the policy Orphan

	// Of this burst: what there was and what came, all owners that each had, and what was
	// deleted with the policy Orphan and in no other way.
	known  map[types.UID]*metav1.PartialObjectMetadata
	owners map[types.UID][][]metav1.OwnerReference
	old    map[types.UID]bool // there when the burst began
	letGo  map[types.UID]bool
}

func (k *walk) run() {
	k.objects.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return k.refuse.Add(-1) >= 0, nil, errors.New("not now")
	})
	k.start()
	for i := range 40 {
		k.burst(fmt.Sprintf("burst %d", i), 1+k.rnd.IntN(4), k.act)
	}
	k.burst("all are released", 1, func() {
		for _, o := range k.all() {
			k.unhold(o)
		}
	})
}

// burst calls f n times and checks what comes of it.
func (k *walk) burst(what string, n int, f func()) {
	k.known = make(map[types.UID]*metav1.PartialObjectMetadata)
	k.owners, k.letGo = make(map[types.UID][][]metav1.OwnerReference), make(map[types.UID]bool)
	k.old = make(map[types.UID]bool)
	for _, o := range k.all() {
		k.note(o)
		k.old[o.UID] = true
	}
	k.Log(what)
	for range n {
		f()
	}
	k.settle()
	k.refuse.Store(0)
	<-time.After(2 * time.Minute) // by then what was refused has been tried again
	k.settle()
	k.check(what)
}

func (k *walk) note(o *metav1.PartialObjectMetadata) {
	k.Logf("%s (%s): deleted %v, finalizers %v, owners %v", o.Name, o.UID, o.DeletionTimestamp != nil, o.Finalizers, o.OwnerReferences)
	k.known[o.UID] = o
	k.owners[o.UID] = append(k.owners[o.UID], slices.Clone(o.OwnerReferences))
}

// act does one thing, to an object if there is one.
func (k *walk) act() {
	all := k.all()
	if len(all) == 0 || len(all) < 30 && k.rnd.IntN(3) == 0 {
		k.make(all)
		return
	}
	o := all[k.rnd.IntN(len(all))]
	refs := len(o.OwnerReferences)
	switch n := k.rnd.IntN(10); {
	case n < 4:
		k.take(o)
		if n == 0 && !slices.ContainsFunc(k.all(), func(left *metav1.PartialObjectMetadata) bool { return left.UID == o.UID }) {
			another := *o // by the same name, with the same owners
			another.DeletionTimestamp, another.DeletionGracePeriodSeconds, another.Finalizers = nil, nil, nil
			k.put(&another)
		}
	case n == 4:
		o.OwnerReferences = append(o.OwnerReferences, k.reference(all))
		k.update(o)
	case n == 5 && refs > 0:
		at := k.rnd.IntN(refs)
		o.OwnerReferences = slices.Delete(o.OwnerReferences, at, at+1)
		k.update(o)
	case n == 6 && refs > 0:
		not := false
		o.OwnerReferences[k.rnd.IntN(refs)].BlockOwnerDeletion = &not
		k.update(o)
	case n == 7 && o.DeletionTimestamp == nil:
		held(o)
		k.update(o)
	case n == 7:
		k.unhold(o)
	case n == 8:
		refuse := k.rnd.IntN(20)
		k.Logf("%d requests fail", refuse)
		k.refuse.Store(int64(refuse))
	default:
		k.Log("the collector is restarted")
		k.stop()
		k.start()
	}
}

// make makes an object with up to three owners.
func (k *walk) make(all []*metav1.PartialObjectMetadata) {
	k.last++
	kinds := []string{"Thing ns/o", "Part ns/o", "Part ns/o", "Part other/o", "Host o"}
	o := obj(fmt.Sprintf("%s%d", kinds[k.rnd.IntN(len(kinds))], k.last))
	for range min(k.rnd.IntN(4), len(all)) {
		o.OwnerReferences = append(o.OwnerReferences, k.reference(all))
	}
	if k.rnd.IntN(6) == 0 {
		held(o)
	}
	k.put(o)
}

// put creates o under a uid of its own.
func (k *walk) put(o *metav1.PartialObjectMetadata) {
	k.last++
	o.UID = types.UID(fmt.Sprintf("u%d", k.last))
	k.create(o)
	k.note(o)
}

// reference names one of all, wherever it is, or something that went.
func (k *walk) reference(all []*metav1.PartialObjectMetadata) metav1.OwnerReference {
	if len(k.taken) > 0 && k.rnd.IntN(10) == 0 {
		return k.taken[k.rnd.IntN(len(k.taken))]
	}
	return to(all[k.rnd.IntN(len(all))], k.rnd.IntN(2) == 0)
}

func to(o *metav1.PartialObjectMetadata, block bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID, BlockOwnerDeletion: &block}
}

// take deletes o by one of the policies.
func (k *walk) take(o *metav1.PartialObjectMetadata) {
	policy := []metav1.DeletionPropagation{background, inFront, orphaned}[k.rnd.IntN(3)]
	err := k.server.Delete(gvrs[o.Kind], o.Namespace, o.Name, metav1.DeleteOptions{PropagationPolicy: &policy})
	if apierrors.IsNotFound(err) {
		return // the collector was faster
	}
	if err != nil {
		k.Fatal(err)
	}
	k.Logf("%s (%s) is deleted: %s", o.Name, o.UID, policy)
	k.letGo[o.UID] = policy == orphaned && o.DeletionTimestamp == nil
	k.asked[o.UID] = true
	k.orphaned[o.UID] = k.orphaned[o.UID] || policy == orphaned
	k.taken = append(k.taken, to(o, true))
}

func (k *walk) unhold(o *metav1.PartialObjectMetadata) {
	o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == "example.com/held" })
	k.update(o)
}

func (k *walk) update(o *metav1.PartialObjectMetadata) {
	if err := k.server.Update(gvrs[o.Kind], o, o.Namespace); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		k.Fatal(err)
	}
	k.note(o)
}

// lost says whether what r names may be gone for d: it never was where d looks for it, it
// was deleted, or it may have been collected itself.
func (k *walk) lost(d *metav1.PartialObjectMetadata, r *metav1.OwnerReference, collectable map[types.UID]bool) bool {
	if d.Namespace == "" && r.Kind != "Host" {
		return k.orphaned[r.UID] // nobody can tell which namespace is meant, but that policy goes by UID
	}
	return !owns(d, r, k.known[r.UID]) || k.asked[r.UID] || collectable[r.UID]
}

// owns says whether o is what r says, where d looks for it.
func owns(d *metav1.PartialObjectMetadata, r *metav1.OwnerReference, o *metav1.PartialObjectMetadata) bool {
	return o != nil && o.Kind == r.Kind && o.Name == r.Name && (o.Namespace == "" || o.Namespace == d.Namespace)
}

// collectable are the objects that the collector may have deleted, in this burst or before:
// those that had owners, and none that was not lost. An owner that was told to let the
// dependents go that it had when the burst began is no owner of theirs. The collector may
// not have heard of those that came since: it watches each kind by itself.
func (k *walk) collectable() map[types.UID]bool {
	collectable := make(map[types.UID]bool)
	for grew := true; grew; {
		grew = false
		for uid, o := range k.known {
			if collectable[uid] {
				continue
			}
			collectable[uid] = o.DeletionTimestamp != nil
			for i, refs := range k.owners[uid] {
				refs = slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool {
					return i == 0 && k.old[uid] && k.letGo[r.UID] && owns(o, &r, k.known[r.UID])
				})
				stays := func(r metav1.OwnerReference) bool { return !k.lost(o, &r, collectable) }
				collectable[uid] = collectable[uid] || len(refs) > 0 && !slices.ContainsFunc(refs, stays)
			}
			grew = grew || collectable[uid]
		}
	}
	return collectable
}

// check compares what there is with what there may be:
//
//   - nothing went that still had an owner, and that the walk did not delete
//   - what stays has owners that are there and do not wait for it, or none
//   - nobody waits to let dependents go
//   - who waits for dependents waits, in the end, for one that something else holds
func (k *walk) check(what string) {
	k.Helper()
	collectable, left := k.collectable(), make(map[types.UID]*metav1.PartialObjectMetadata)
	for _, o := range k.all() {
		left[o.UID] = o
	}
	for uid, o := range k.known {
		if now := left[uid]; (now == nil || now.DeletionTimestamp != nil) && !k.asked[uid] && !collectable[uid] {
			k.Errorf("%s: %s (%s) was collected, its owners were %v", what, o.Name, uid, k.owners[uid])
		}
	}
	for _, o := range left {
		if o.DeletionTimestamp == nil {
			for i := range o.OwnerReferences {
				if r := &o.OwnerReferences[i]; !solid(o, r, left) {
					k.Errorf("%s: %s (%s) still has the owner %s (%s)", what, o.Name, o.UID, r.Name, r.UID)
				}
			}
			continue
		}
		switch {
		case len(o.Finalizers) == 0 || slices.Contains(o.Finalizers, metav1.FinalizerOrphanDependents):
			k.Errorf("%s: %s (%s) is still there, with finalizers %v", what, o.Name, o.UID, o.Finalizers)
		case !k.waits(o, left, make(map[types.UID]bool)):
			k.Errorf("%s: %s (%s) waits for nothing, with finalizers %v", what, o.Name, o.UID, o.Finalizers)
		}
	}
	if k.Failed() {
		k.FailNow()
	}
}

// solid says whether r names an owner of d that is there and does not wait for d.
func solid(d *metav1.PartialObjectMetadata, r *metav1.OwnerReference, left map[types.UID]*metav1.PartialObjectMetadata) bool {
	if d.Namespace == "" && r.Kind != "Host" {
		return true
	}
	o := left[r.UID]
	return owns(d, r, o) && (o.DeletionTimestamp == nil || !slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents))
}

// waits says whether something holds o, or what it waits for. As in Kubernetes, owners that
// wait for each other wait for ever if they came to do so after their deletion, and so does an
// owner in a namespace for a dependent that is in none. path has those that lead to o.
func (k *walk) waits(o *metav1.PartialObjectMetadata, left map[types.UID]*metav1.PartialObjectMetadata, path map[types.UID]bool) bool {
	if slices.Contains(o.Finalizers, "example.com/held") || path[o.UID] {
		return true
	}
	path[o.UID] = true
	defer delete(path, o.UID)
	for _, d := range left {
		for i := range d.OwnerReferences {
			r := &d.OwnerReferences[i]
			if r.UID == o.UID && *r.BlockOwnerDeletion && (d.Namespace == "" && o.Namespace != "" || k.waits(d, left, path)) {
				return true
			}
		}
	}
	return false
}
