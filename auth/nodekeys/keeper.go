package nodekeys

// The keeper: the keys of all names, in memory.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// readyPatience bounds the wait of Admit for a keeper that has just started.
	readyPatience = 5 * time.Second
	// readInterval is the least interval between two reads of the API about the same key that
	// does not hold its name by the memory, which may be behind by a moment.
	readInterval = time.Second
	// maxAsked bounds the keys whose last read is remembered.
	maxAsked = 4096
)

// ErrNotReady means that the records have not been read yet: the client should try again
// later.
var ErrNotReady = errors.New("the server has just started and does not know yet which keys hold the nodes' names")

// A RefusedError means that a key does not hold the name in its certificate.
type RefusedError struct {
	Name, Why string
}

// Error is one line with the remedy.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("node %q is not admitted: %s", e.Name, e.Why)
}

// Config configures a Keeper. Client and Nodes are required.
type Config struct {
	// Client may read and write config maps and namespaces, and read Nodes.
	Client kubernetes.Interface
	// Nodes is the informer of Nodes: the deletion of a Node object frees its name. The
	// caller runs it.
	Nodes cache.SharedIndexInformer
	// Vouched means that another API server decides which machines are nodes, and its
	// authority signs for them: every key that is used for a name is admitted and
	// recorded, unless the name was revoked. See vouched.go.
	Vouched bool
	// Ended is called when keys have lost a name: sessions and requests of the name with a
	// key for which holds is false must end, with the reason why. It must not block. May
	// be nil.
	Ended func(name string, holds func(Key) bool, why error)
	// Contain calls f and reports whether it returned. It logs a panic of f, with what.
	// Nil means that a panic ends the process.
	Contain func(what string, f func()) bool
	Log     *slog.Logger // nil discards
}

// A Keeper has the keys of all names. Run keeps it up to date; the other methods may be
// called at the same time, also before.
type Keeper struct {
	cfg   Config
	book  *Book
	queue workqueue.TypedRateLimitingInterface[string]
	ready chan struct{} // closed once all records are known

	turn     sync.Mutex // held during a change, from before names is read until it is written
	removals uint64     // of records, by the watch; guarded by turn

	mu      sync.RWMutex // guards the following
	names   map[string]*holder
	watches map[string]map[*watched]struct{}
	asked   map[question]*asking
	shown   map[showing]time.Time // when showBurst keys may be recorded again
}

// A question is whether a key holds a name.
type question struct {
	name string
	key  Key
}

// A holder is the state of a name. It is never changed.
type holder struct {
	record *Record // nil if it cannot be read
	node   string  // uid of the Node object; empty while there is none
	gone   bool    // the Node object has been deleted, and the record is about to be deleted
	refuse error   // the error for keys that do not hold the name; for all keys if closed
	closed bool
}

// New makes a Keeper. It starts nothing.
func New(c Config) (*Keeper, error) {
	if c.Client == nil || c.Nodes == nil {
		return nil, errors.New("node keys: Config.Client and Nodes are required")
	}
	if c.Ended == nil {
		c.Ended = func(string, func(Key) bool, error) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		cfg: c, book: NewBook(c.Client), ready: make(chan struct{}),
		names: make(map[string]*holder), watches: make(map[string]map[*watched]struct{}), asked: make(map[question]*asking),
		shown: make(map[showing]time.Time),
	}, nil
}

// Admit returns nil if k holds the name, a *RefusedError if it does not, or ErrNotReady if
// a keeper that has just started has not read the records within 5 s. Any other error means
// that the caller should try again later. It allocates nothing unless it refuses, waits, or
// adopts.
func (k *Keeper) Admit(ctx context.Context, name string, key Key) error {
	if err := k.wait(ctx); err != nil {
		return err
	}
	h := k.holder(name)
	switch {
	case h.holds(key):
		return nil
	case k.cfg.Vouched:
		return k.vouched(ctx, name, key, h)
	}
	return k.recheck(ctx, name, key, h)
}

// AdmitPods returns nil if a credential of the node's pods is admitted: unless no key holds
// the name, because it was revoked or its Node was deleted just now, or the name has been
// revoked since the credential was issued. issued is called only for a name that was
// revoked once. A name that no key ever had is not refused. It waits as Admit does.
func (k *Keeper) AdmitPods(ctx context.Context, name string, issued func() time.Time) error {
	if err := k.wait(ctx); err != nil {
		return err
	}
	h := k.holder(name)
	switch {
	case h.barred():
		return h.refuse
	case h != nil && h.record.TokensAfter != nil && !issued().After(h.record.TokensAfter.Time):
		return &RefusedError{name, "it has been revoked since the token was issued"}
	}
	return nil
}

// Barred returns a *RefusedError if no key holds the name because it was revoked, or
// because its Node was deleted just now, and ErrNotReady before that is known. A name that
// no key ever had, or that is free again, is not barred. It does not block.
func (k *Keeper) Barred(name string) error {
	select {
	case <-k.ready:
	default:
		return ErrNotReady
	}
	if h := k.holder(name); h.barred() && !h.record.Freed {
		return h.refuse
	}
	return nil
}

func (k *Keeper) holder(name string) *holder {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.names[name]
}

// verdict is the result of Admit for a key.
func (h *holder) verdict(name string, key Key) error {
	switch {
	case h == nil:
		return refusedUnknown(name)
	case h.holds(key):
		return nil
	}
	return h.refuse
}

// adopts reports whether the first key that is used takes the name.
func (h *holder) adopts() bool { return !h.closed && h.record.Adopt && len(h.record.Keys) == 0 }

func refusedUnknown(name string) error {
	return &RefusedError{name, "no key holds its name, as its Node has been deleted; it can join anew with a join token " +
		"(\"hawser token create --print-join-command\" on the server)"}
}

// wait returns nil once the records are known, and an error after 5 s.
func (k *Keeper) wait(ctx context.Context) error {
	select {
	case <-k.ready:
		return nil
	default:
	}
	t := time.NewTimer(readyPatience)
	defer t.Stop()
	select {
	case <-k.ready:
		return nil
	case <-t.C:
		return ErrNotReady
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// holderOf makes the holder of a record.
func holderOf(r *Record) *holder {
	h := &holder{record: r, node: r.NodeUID}
	remedy := fmt.Sprintf("\"hawser node allow %s\" on the server, and a join token, let this machine join anew", r.Name)
	switch {
	case r.Revoked != nil:
		h.closed, h.refuse = true, &RefusedError{r.Name, "it was " + r.Revoked.String() + "; " + remedy}
	case r.Freed:
		h.closed, h.refuse = true, refusedUnknown(r.Name)
	case len(r.Keys) > 0:
		h.refuse = &RefusedError{r.Name, "its name was taken over by another key at " + r.Keys[0].Since.UTC().Format(time.RFC3339) + "; " + remedy}
	default:
		h.closed, h.refuse = !r.Adopt, &RefusedError{r.Name, "no key holds its name; " + remedy}
	}
	return h
}

// unwritten reports whether the record lacks the Node's uid, or the Node its site.
func (h *holder) unwritten() bool { return h.record.NodeUID == "" || h.record.Site != "" }

// deleted is h after its Node object was deleted.
func (h *holder) deleted(name string) *holder {
	next := *h
	next.gone, next.closed, next.refuse = true, true, refusedUnknown(name)
	return &next
}

// set replaces the holder of a name by h, and ends the requests of keys that have lost it.
// A nil h means that the name is free. The caller holds the turn.
func (k *Keeper) set(name string, h *holder) {
	lost, cancel := k.replace(name, h)
	if !lost {
		return
	}
	why := refusedUnknown(name)
	if h != nil && h.refuse != nil {
		why = h.refuse
	}
	for _, w := range cancel {
		w.cancel(why)
	}
	k.cfg.Log.Warn("a node's key has lost its name", "node", name, "why", why)
	k.cfg.Ended(name, h.holds, why)
}

// replace replaces the holder, and returns whether keys have lost the name and the cancel
// funcs of their requests.
func (k *Keeper) replace(name string, h *holder) (lost bool, cancel []*watched) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.names[name]
	if h == nil {
		delete(k.names, name)
	} else {
		k.names[name] = h
	}
	if old == nil || old.closed || !k.losing(old.record, h) {
		return false, nil
	}
	for w := range k.watches[name] {
		if w.lost(h) {
			cancel = append(cancel, w)
		}
	}
	return true, cancel
}

// losing reports whether keys of an open record lose the name by the change to h.
func (k *Keeper) losing(old *Record, h *holder) bool {
	if k.cfg.Vouched {
		return h.barred()
	}
	return lostBy(old, h)
}

// lostBy is losing if the records decide which machines are nodes. A key that was dropped
// after renewals has not lost the name: its requests are those of the same node.
func lostBy(old *Record, h *holder) bool {
	if h == nil || h.closed {
		return true
	}
	for _, held := range old.Keys {
		if h.record.Holds(held.Key) {
			return false
		}
	}
	return len(old.Keys) > 0
}

func (h *holder) holds(key Key) bool { return h != nil && !h.closed && h.record.Holds(key) }

func (h *holder) barred() bool { return h != nil && h.closed }

// A watched is a request of a node, made with a key, or of one of its pods.
type watched struct {
	key    Key
	pods   bool
	cancel context.CancelCauseFunc
}

// lost reports whether the change to h ends the request.
func (w *watched) lost(h *holder) bool {
	if w.pods {
		return h.barred()
	}
	return !h.holds(w.key)
}

// Watch returns a context that is done, with a *RefusedError as its cause, once key has
// lost the name. It does not check whether key holds it now: call Admit after Watch, so
// that no loss is missed. The caller calls stop when it does not need the context any more.
func (k *Keeper) Watch(ctx context.Context, name string, key Key) (_ context.Context, stop func()) {
	return k.watch(ctx, name, &watched{key: key})
}

// WatchPods is Watch for the credentials of the node's pods: the context is done once the
// name is barred.
func (k *Keeper) WatchPods(ctx context.Context, name string) (_ context.Context, stop func()) {
	return k.watch(ctx, name, &watched{pods: true})
}

func (k *Keeper) watch(ctx context.Context, name string, w *watched) (context.Context, func()) {
	ctx, w.cancel = context.WithCancelCause(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[name] == nil {
		k.watches[name] = make(map[*watched]struct{})
	}
	k.watches[name][w] = struct{}{}
	return ctx, func() {
		w.cancel(nil)
		k.mu.Lock()
		defer k.mu.Unlock()
		if delete(k.watches[name], w); len(k.watches[name]) == 0 {
			delete(k.watches, name)
		}
	}
}

// learn handles a version of a record from the API. A version that is older than the one in
// memory is late, and is dropped, also if it is of a former record: what is read directly
// may be ahead of the watch.
func (k *Keeper) learn(m *corev1.ConfigMap) { k.learnAs(m, false) }

// learnAs is learn, or takes any version: that of a store that was restored from a backup.
func (k *Keeper) learnAs(m *corev1.ConfigMap, restored bool) {
	k.turn.Lock()
	defer k.turn.Unlock()
	k.learnLocked(m, restored)
}

func (k *Keeper) learnLocked(m *corev1.ConfigMap, restored bool) {
	old := k.holder(m.Name)
	if v := versionOf(m); !restored && old != nil && v > 0 && v < old.record.version {
		return
	}
	r, err := decode(m)
	if err != nil {
		k.cfg.Log.Error("a node's identity cannot be read, the node is not admitted: delete the config map, and have the node join anew",
			"configmap", Namespace+"/"+m.Name, "err", err)
		r = &Record{Name: m.Name, object: string(m.UID), version: versionOf(m)}
		k.set(m.Name, &holder{record: r, closed: true, refuse: &RefusedError{m.Name, "its identity at the server cannot be read"}})
		return
	}
	h := holderOf(r)
	switch {
	case old != nil && old.gone && old.record.object == r.object && r.Former != old.node:
		if !k.cfg.Vouched {
			h = h.deleted(m.Name)
		} else {
			h.gone = !h.record.bars()
		}
	case h.node != "":
	case old != nil && old.record.object == r.object && old.node != "" && old.node != r.Former:
		h.node = old.node
	default:
		if n := k.node(m.Name); n != nil && string(n.UID) != r.Former {
			h.node = string(n.UID)
		}
	}
	k.set(m.Name, h)
	if h.gone || r.Freed || h.node != "" && h.unwritten() {
		k.queue.Add(m.Name)
	}
}

// removed handles the deletion of a record.
func (k *Keeper) removed(name, object string) {
	k.turn.Lock()
	defer k.turn.Unlock()
	k.removals++
	if h := k.holder(name); h != nil && (object == "" || h.record.object == object) {
		k.set(name, nil)
	}
}

// node returns the Node object of a name from the informer; nil if there is none.
func (k *Keeper) node(name string) *corev1.Node {
	o, ok, err := k.cfg.Nodes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	n, _ := o.(*corev1.Node)
	return n
}

// appeared handles a new Node object.
func (k *Keeper) appeared(n *corev1.Node) {
	k.turn.Lock()
	defer k.turn.Unlock()
	h := k.holder(n.Name)
	if h == nil || h.gone || h.node != "" || string(n.UID) == h.record.Former {
		return
	}
	next := *h
	next.node = string(n.UID)
	k.set(n.Name, &next)
	k.queue.Add(n.Name)
}

// vanished handles the deletion of a Node object.
func (k *Keeper) vanished(name, uid string) {
	k.turn.Lock()
	defer k.turn.Unlock()
	h := k.holder(name)
	if h == nil || h.gone || h.node == "" || h.node != uid {
		return
	}
	if !k.cfg.Vouched {
		k.set(name, h.deleted(name))
	} else if !k.outlived(name, h) {
		return
	}
	k.queue.Add(name)
}
