package nodekeys

// The keeper: who holds which name, from memory.

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
	// readyPatience is how long Admit waits for a keeper that has just started.
	readyPatience = 5 * time.Second
	// askedAgain is how often the API is asked about the same key that, from memory,
	// does not hold its name: the memory may be behind by a moment.
	askedAgain = time.Second
	// maxAsked bounds the keys of which it is remembered when that was.
	maxAsked = 4096
)

// ErrNotReady means that the records have not been read yet: who asks should be asked
// to come back.
var ErrNotReady = errors.New("the server has just started and does not know yet which keys hold the nodes' names")

// A RefusedError says that a key does not hold the name that its certificate says.
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
	// Nodes are followed: with a Node object ends the tenure of its name. Somebody
	// else runs the informer.
	Nodes cache.SharedIndexInformer
	// Vouched says that somebody else decides who is a node, as beside another API
	// server, whose authority signs for nodes without asking here: every key that is
	// shown under a name is admitted and written down, unless the name was revoked.
	// See vouched.go.
	Vouched bool
	// Ended is called when keys have lost a name: whatever was begun under the name
	// with a key for which holds is false has to end, for the reason why. It must
	// not block. May be nil.
	Ended func(name string, holds func(Key) bool, why error)
	// Contain calls f and tells whether it returned; it has logged a panic of f, and
	// what that was about. Nil means that a panic ends the process.
	Contain func(what string, f func()) bool
	Log     *slog.Logger // nil discards
}

// A Keeper knows who holds which name. Run keeps it up to date; the other methods may
// be called at the same time, also before.
type Keeper struct {
	cfg   Config
	book  *Book
	queue workqueue.TypedRateLimitingInterface[string]
	ready chan struct{} // closed once all records are known

	turn sync.Mutex // held while something is learned, from before names is read until it is written

	mu      sync.RWMutex // guards the following
	names   map[string]*holder
	watches map[string]map[*watched]struct{}
	asked   map[question]time.Time
}

// A question is whether a key holds a name.
type question struct {
	name string
	key  Key
}

// A holder is what is known of a name. It is never changed.
type holder struct {
	record *Record // nil if it cannot be read
	node   string  // uid of the Node object; empty while there is none
	gone   bool    // the Node object has been deleted, and the record is about to be
	refuse error   // for keys that do not hold the name: all of them, if closed
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
		names: make(map[string]*holder), watches: make(map[string]map[*watched]struct{}), asked: make(map[question]time.Time),
	}, nil
}

// Admit says whether k holds the name: nil, a *RefusedError, or ErrNotReady while a
// keeper that has just started has not read the records within 5 s. It allocates
// nothing unless it refuses, waits, or adopts.
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
	return k.doubt(ctx, name, key, h)
}

// AdmitPods says whether what shows the credentials of a pod of the name's node is
// admitted: unless the name is barred. It waits as Admit does.
func (k *Keeper) AdmitPods(ctx context.Context, name string) error {
	if err := k.wait(ctx); err != nil {
		return err
	}
	return k.Barred(name)
}

// Barred says whether no key has the name because it was revoked, or because its Node
// was deleted just now: a *RefusedError if so, and ErrNotReady before that is known. A
// name that no key ever had is not barred. It does not block.
func (k *Keeper) Barred(name string) error {
	select {
	case <-k.ready:
	default:
		return ErrNotReady
	}
	if h := k.holder(name); h.barred() {
		return h.refuse
	}
	return nil
}

func (k *Keeper) holder(name string) *holder {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.names[name]
}

// doubt asks the API about a key that does not hold its name as far as is known: a
// node may show its new certificate before word of it has come here.
func (k *Keeper) doubt(ctx context.Context, name string, key Key, h *holder) error {
	if h != nil && h.gone || !k.mayAsk(question{name, key}, time.Now()) {
		return h.verdict(name, key)
	}
	m, _, err := k.book.read(ctx, name)
	if err == nil && h != nil && h.adopts() {
		if err = k.book.Adopt(ctx, name, key); err == nil {
			k.cfg.Log.Info("a node from before the identities were kept shows its key", "node", name, "key", key.String())
			m, _, err = k.book.read(ctx, name)
		}
	}
	var bad *HeldError
	switch {
	case errors.Is(err, ErrUnknown):
		return refusedUnknown(name)
	case errors.As(err, &bad):
		return h.verdict(name, key)
	case err != nil:
		return err
	}
	k.guard(name, func() { k.learn(m) })
	return k.holder(name).verdict(name, key)
}

// mayAsk says whether it is time to ask the API, and notes that it is done.
func (k *Keeper) mayAsk(q question, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at, ok := k.asked[q]; ok && now.Sub(at) < askedAgain {
		return false
	}
	if len(k.asked) >= maxAsked {
		clear(k.asked)
	}
	k.asked[q] = now
	return true
}

// verdict is what to say to a key.
func (h *holder) verdict(name string, key Key) error {
	switch {
	case h == nil:
		return refusedUnknown(name)
	case h.holds(key):
		return nil
	}
	return h.refuse
}

// adopts says whether the first key that is shown takes the name.
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

// judge says what a record means.
func judge(r *Record) *holder {
	h := &holder{record: r, node: r.NodeUID}
	remedy := fmt.Sprintf("\"hawser node allow %s\" on the server, and a join token, let this machine join anew", r.Name)
	switch {
	case r.Revoked != nil:
		h.closed, h.refuse = true, &RefusedError{r.Name, "it was " + r.Revoked.text() + "; " + remedy}
	case len(r.Keys) > 0:
		h.refuse = &RefusedError{r.Name, "its name was taken over by another key at " + r.Keys[0].Since.UTC().Format(time.RFC3339) + "; " + remedy}
	default:
		h.closed, h.refuse = !r.Adopt, &RefusedError{r.Name, "no key holds its name; " + remedy}
	}
	return h
}

// unwritten says whether the record does not name the Node, or the Node not the site.
func (h *holder) unwritten() bool { return h.record.NodeUID == "" || h.record.Site != "" }

// deleted is h after its Node object has gone.
func (h *holder) deleted(name string) *holder {
	next := *h
	next.gone, next.closed, next.refuse = true, true, refusedUnknown(name)
	return &next
}

// set puts h in the place of what was known of a name, and ends what has to end.
// A nil h means that the name is free. The caller has the turn.
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

// replace does the first half, and returns whether keys have lost the name and what was
// begun with them.
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

// losing says whether keys of an open record lose the name to what comes after it.
func (k *Keeper) losing(old *Record, h *holder) bool {
	if k.cfg.Vouched {
		return h.barred()
	}
	return lostBy(old, h)
}

// lostBy is losing where the records decide who is a node. A key that was dropped because the node has renewed it since has not: what began
// under it is that node's.
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

// lost says whether the request ends with what has become of its name.
func (w *watched) lost(h *holder) bool {
	if w.pods {
		return h.barred()
	}
	return !h.holds(w.key)
}

// Watch returns a context that is done, with a *RefusedError as its cause, once key has
// lost the name. It does not say whether key holds it now: ask Admit after Watch, and
// no loss is missed. The caller calls stop when it is done with the context.
func (k *Keeper) Watch(ctx context.Context, name string, key Key) (_ context.Context, stop func()) {
	return k.watch(ctx, name, &watched{key: key})
}

// WatchPods is Watch for what shows the credentials of a pod of the name's node: the
// context is done once the name becomes barred.
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

// learn takes a record as the API has it.
func (k *Keeper) learn(m *corev1.ConfigMap) {
	k.turn.Lock()
	defer k.turn.Unlock()
	old := k.holder(m.Name)
	r, err := decode(m)
	if err != nil {
		k.cfg.Log.Error("a node's identity cannot be read, the node is not admitted: delete the config map, and have the node join anew",
			"configmap", Namespace+"/"+m.Name, "err", err)
		r = &Record{Name: m.Name, object: string(m.UID), version: versionOf(m)}
		k.set(m.Name, &holder{record: r, closed: true, refuse: &RefusedError{m.Name, "its identity at the server cannot be read"}})
		return
	}
	if old != nil && old.record.object == r.object && r.version < old.record.version {
		return // asked for and got before it came by itself
	}
	h := judge(r)
	switch {
	case old != nil && old.gone && old.record.object == r.object:
		h = h.deleted(m.Name)
	case h.node != "":
	case old != nil && old.record.object == r.object && old.node != "":
		h.node = old.node
	default:
		if n := k.node(m.Name); n != nil && string(n.UID) != r.Former {
			h.node = string(n.UID)
		}
	}
	k.set(m.Name, h)
	if h.gone || h.node != "" && h.unwritten() {
		k.queue.Add(m.Name)
	}
}

// removed takes note that a record is no more.
func (k *Keeper) removed(name, object string) {
	k.turn.Lock()
	defer k.turn.Unlock()
	if h := k.holder(name); h != nil && (object == "" || h.record.object == object) {
		k.set(name, nil)
	}
}

// node returns the Node object of a name as the informer has it; nil for none.
func (k *Keeper) node(name string) *corev1.Node {
	o, ok, err := k.cfg.Nodes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	n, _ := o.(*corev1.Node)
	return n
}

// appeared notes a Node object.
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

// vanished notes that a Node object has been deleted.
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
