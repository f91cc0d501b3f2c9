package garbage

// The graph of who depends on whom.

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An identity is where an object is to be found and which one it is.
type identity struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

func (i identity) String() string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", i.apiVersion, i.kind, i.namespace, i.name, i.uid)
}

func (i identity) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: i.apiVersion, Kind: i.kind, Namespace: i.namespace, Name: i.name, UID: i.uid}
}

// A node is an object in the graph.
type node struct {
	identity
	virtual    bool // only known as an owner so far
	deleting   bool
	foreground bool // deleting, and waits for its dependents
	orphaning  bool // deleting, and waits for its dependents to be let go
	// owners are sorted by uid: an object may have ten thousands.
	owners     []metav1.OwnerReference
	dependents map[types.UID]*node
}

// refs are n's references to owner.
func (n *node) refs(owner types.UID) []metav1.OwnerReference {
	from, _ := slices.BinarySearchFunc(n.owners, owner, func(r metav1.OwnerReference, uid types.UID) int { return cmp.Compare(r.UID, uid) })
	to := from
	for to < len(n.owners) && n.owners[to].UID == owner {
		to++
	}
	return n.owners[from:to]
}

// blocks tells whether owner waits for n.
func (n *node) blocks(owner types.UID) bool {
	return slices.ContainsFunc(n.refs(owner), func(r metav1.OwnerReference) bool { return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion })
}

// work is what a change of the graph calls for.
type work struct {
	delete, orphan []types.UID
	invalidOwners  []invalidOwner
}

// An invalidOwner is a dependent that names an owner in another namespace.
type invalidOwner struct{ dependent, owner identity }

// A graph may be used from any goroutine.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node // guarded by mu, as are the nodes
}

func newGraph() *graph { return &graph{nodes: make(map[types.UID]*node)} }

// observe notes an object that was added or changed.
func (g *graph) observe(id identity, m *metav1.PartialObjectMetadata) work {
	g.mu.Lock()
	defer g.mu.Unlock()
	var w work
	n := g.nodes[id.uid]
	fresh := n == nil
	if fresh {
		n = &node{dependents: make(map[types.UID]*node)}
		g.nodes[id.uid] = n
	}
	expected := n.virtual || fresh
	n.identity, n.virtual = id, false // the version in which it is served may have changed
	if expected {
		g.doubt(&w, n)
	}
	g.relink(&w, n, m.OwnerReferences)
	held := func(finalizer string) bool {
		return m.DeletionTimestamp != nil && slices.Contains(m.Finalizers, finalizer)
	}
	was := *n
	n.deleting, n.foreground, n.orphaning = m.DeletionTimestamp != nil, held(metav1.FinalizerDeleteDependents), held(metav1.FinalizerOrphanDependents)
	if n.orphaning && !was.orphaning {
		w.orphan = append(w.orphan, n.uid)
	}
	if n.foreground && !was.foreground {
		w.delete = append(w.delete, n.uid)
		for uid := range n.dependents {
			w.delete = append(w.delete, uid)
		}
	}
	return w
}

// doubt has those dependents of n looked at that expected it elsewhere.
func (g *graph) doubt(w *work, n *node) {
	for uid, d := range n.dependents {
		refs := d.refs(n.uid)
		for i := range refs {
			if !matches(d, &refs[i], n) {
				w.delete = append(w.delete, uid)
				w.noteOtherNamespace(d, n)
			}
		}
	}
}

// matches tells whether n is where d's reference r says.
func matches(d *node, r *metav1.OwnerReference, n *node) bool {
	return r.Kind == n.kind && r.Name == n.name && (n.namespace == "" || n.namespace == d.namespace)
}

func (w *work) noteOtherNamespace(d, owner *node) {
	if !owner.virtual && owner.namespace != "" && owner.namespace != d.namespace {
		w.invalidOwners = append(w.invalidOwners, invalidOwner{d.identity, owner.identity})
	}
}

// relink makes owners the owners of n.
func (g *graph) relink(w *work, n *node, owners []metav1.OwnerReference) {
	before := node{owners: n.owners}
	n.owners = slices.Clone(owners)
	slices.SortStableFunc(n.owners, func(a, b metav1.OwnerReference) int { return cmp.Compare(a.UID, b.UID) })
	for i := range n.owners {
		r := &n.owners[i]
		if len(before.refs(r.UID)) == 0 {
			g.link(w, n, r)
			continue
		}
		owner := g.nodes[r.UID]
		if owner != nil && owner.foreground && before.blocks(r.UID) && !n.blocks(r.UID) {
			w.delete = append(w.delete, r.UID)
		}
	}
	for i := range before.owners {
		if uid := before.owners[i].UID; len(n.refs(uid)) == 0 {
			g.unlink(w, n, uid)
		}
	}
}

// link makes n a dependent of the owner that r names. An owner that is not there
// is put there for now, to be looked up.
func (g *graph) link(w *work, n *node, r *metav1.OwnerReference) {
	owner := g.nodes[r.UID]
	if owner == nil {
		owner = &node{
			identity: identity{r.APIVersion, r.Kind, n.namespace, r.Name, r.UID}, virtual: true, dependents: make(map[types.UID]*node),
		}
		g.nodes[r.UID] = owner
		w.delete = append(w.delete, r.UID)
	} else if !matches(n, r, owner) {
		w.delete = append(w.delete, n.uid)
		w.noteOtherNamespace(n, owner)
	}
	owner.dependents[n.uid] = n
	if owner.foreground {
		w.delete = append(w.delete, n.uid)
	}
}

func (g *graph) unlink(w *work, n *node, uid types.UID) {
	owner := g.nodes[uid]
	if owner == nil {
		return
	}
	delete(owner.dependents, n.uid)
	switch {
	case owner.foreground:
		w.delete = append(w.delete, uid)
	case owner.virtual && len(owner.dependents) == 0:
		delete(g.nodes, uid)
	}
}

// forget notes that an object is gone.
func (g *graph) forget(uid types.UID) work {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return work{}
	}
	return g.forgetLocked(n)
}

func (g *graph) forgetLocked(n *node) work {
	var w work
	delete(g.nodes, n.uid)
	for d := range n.dependents {
		w.delete = append(w.delete, d)
	}
	for i := range n.owners {
		g.unlink(&w, n, n.owners[i].UID)
	}
	return w
}

// missing notes that there is no object id. If it was never seen, some of its
// dependents may have expected it elsewhere: there it is to be looked for next. If it was
// seen elsewhere meanwhile, nothing is missing.
func (g *graph) missing(id identity) work {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[id.uid]
	switch {
	case n == nil || !n.virtual && n.identity != id:
		return work{}
	case !n.virtual:
		return g.forgetLocked(n)
	}
	var w work
	var next *identity
	for uid, d := range n.dependents {
		refs := d.refs(id.uid)
		for i := range refs {
			r := &refs[i]
			if at := (identity{r.APIVersion, r.Kind, d.namespace, r.Name, r.UID}); at != id {
				next = &at
				continue
			}
			w.delete = append(w.delete, uid)
			delete(n.dependents, uid)
		}
	}
	if next == nil {
		delete(g.nodes, id.uid)
		return w
	}
	n.identity = *next
	w.delete = append(w.delete, id.uid)
	return w
}

// A view is a node as it was at one moment.
type view struct {
	node
	blocking []types.UID // dependents that it waits for and that are not on their way out
	waits    bool        // some dependent blocks it
	cyclic   bool        // some dependent itself waits for its dependents
}

// look returns the node with this uid.
func (g *graph) look(uid types.UID) (view, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return view{}, false
	}
	v := view{node: *n}
	v.dependents = make(map[types.UID]*node, len(n.dependents))
	for id, d := range n.dependents {
		v.dependents[id] = &node{identity: d.identity}
		v.cyclic = v.cyclic || d.foreground
		if d.blocks(uid) {
			v.waits = true
			if !d.foreground {
				v.blocking = append(v.blocking, id)
			}
		}
	}
	return v, true
}
