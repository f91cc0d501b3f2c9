package nodekeys

// Following: watching the records and the Node objects, and updating records after
// changes of Nodes.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Pauses between tries.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// podsAgain is how often it is looked whether a deleted Node still has pods.
	podsAgain = 30 * time.Second
	// maxReads bounds the reads of a record while records are removed.
	maxReads = 5
)

// Ready is closed once Admit answers without waiting.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Run follows the records until ctx is done, and returns nil then. It may be called
// once, when the API server serves.
func (k *Keeper) Run(ctx context.Context) error {
	if !k.prepare(ctx) {
		return nil
	}
	k.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
	f := informers.NewSharedInformerFactoryWithOptions(k.cfg.Client, 0, informers.WithNamespace(Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = Label }))
	records := f.Core().V1().ConfigMaps().Informer()
	nodes, err := k.cfg.Nodes.AddEventHandler(k.onNode())
	if err != nil {
		return fmt.Errorf("node keys: follow nodes: %w", err)
	}
	defer func() { _ = k.cfg.Nodes.RemoveEventHandler(nodes) }() // its informer may have ended already
	handled, err := records.AddEventHandler(k.onRecord())
	if err != nil {
		return fmt.Errorf("node keys: follow identities: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	f.Start(ctx.Done())
	defer f.Shutdown()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced, handled.HasSynced) {
		return nil
	}
	if !k.persist(ctx, k.catchUp) {
		return nil
	}
	close(k.ready)
	var wg sync.WaitGroup
	wg.Go(func() { k.work(ctx) })
	<-ctx.Done()
	k.queue.ShutDown()
	wg.Wait()
	return nil
}

// prepare calls Book.Prepare until it succeeds. It is false if ctx was done before.
func (k *Keeper) prepare(ctx context.Context) bool {
	if k.cfg.Vouched {
		return k.persist(ctx, func(ctx context.Context) error {
			_, err := k.book.space(ctx)
			return err
		})
	}
	return k.persist(ctx, k.book.Prepare)
}

// persist calls f until it succeeds. It is false if ctx was done before.
func (k *Keeper) persist(ctx context.Context, f func(context.Context) error) bool {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := f(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			k.cfg.Log.Warn("cannot read the nodes' identities yet, will try again", "in", pause, "err", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

func (k *Keeper) onNode() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if n, ok := o.(*corev1.Node); ok {
				k.guard(n.Name, func() { k.appeared(n) })
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok := was.(*corev1.Node)
			now, ok2 := is.(*corev1.Node)
			if ok && ok2 && before.UID != now.UID {
				k.guard(now.Name, func() {
					k.vanished(before.Name, string(before.UID))
					k.appeared(now)
				})
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if n, ok := o.(*corev1.Node); ok {
				k.guard(n.Name, func() { k.vanished(n.Name, string(n.UID)) })
			}
		},
	}
}

func (k *Keeper) onRecord() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if m, ok := o.(*corev1.ConfigMap); ok {
				k.guard(m.Name, func() { k.learn(m) })
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok := was.(*corev1.ConfigMap)
			now, ok2 := is.(*corev1.ConfigMap)
			if ok && ok2 {
				// The versions of one watch increase. A list after a restore has lower ones.
				k.guard(now.Name, func() { k.learnAs(now, versionOf(now) < versionOf(before)) })
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if m, ok := o.(*corev1.ConfigMap); ok {
				k.guard(m.Name, func() { k.removed(m.Name, string(m.UID)) })
			}
		},
	}
}

// read reads the record of a name from the API, and learns it. What was read may be of before
// a removal that the watch has delivered meanwhile. So it is read again after any removal.
func (k *Keeper) read(ctx context.Context, name string) error {
	for range maxReads {
		k.turn.Lock()
		before := k.removals
		k.turn.Unlock()
		m, _, err := k.book.read(ctx, name)
		if err != nil {
			return err
		}
		learned := true
		k.guard(name, func() {
			k.turn.Lock()
			defer k.turn.Unlock()
			if learned = k.removals == before; learned {
				k.learnLocked(m, false)
			}
		})
		if learned {
			return nil
		}
	}
	return fmt.Errorf("read the identity of node %s: identities are being removed, try again", name)
}

// catchUp finds the records whose Node objects were deleted before Run. It reads from the
// API what the informers do not have yet.
func (k *Keeper) catchUp(ctx context.Context) error {
	k.mu.RLock()
	var suspects []*Record
	for name, h := range k.names {
		if h.gone || h.node == "" || h.record.NodeUID == "" {
			continue
		}
		if n := k.node(name); n == nil || string(n.UID) != h.node {
			suspects = append(suspects, h.record)
		}
	}
	k.mu.RUnlock()
	for _, r := range suspects {
		gone, err := k.book.gone(ctx, r)
		if err != nil {
			return err
		}
		if gone {
			k.vanished(r.Name, r.NodeUID)
		}
	}
	return nil
}

// work updates records until the queue is shut down.
func (k *Keeper) work(ctx context.Context) {
	for {
		name, over := k.queue.Get()
		if over {
			return
		}
		var err error
		if !k.contain("identity of node "+name, func() { err = k.write(ctx, name) }) {
			err = errPanicked
		}
		if err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("cannot write down what has become of a node's identity, will try again", "node", name, "err", err)
			k.queue.AddRateLimited(name)
		} else {
			k.queue.Forget(name)
		}
		k.queue.Done(name)
	}
}

func (k *Keeper) write(ctx context.Context, name string) error {
	h := k.holder(name)
	switch {
	case h == nil:
		return nil
	case h.gone:
		return k.release(ctx, h)
	case h.record.Freed && h.node == "":
		return k.forget(ctx, h)
	case h.node != "" && h.unwritten():
		if site := h.record.Site; site != "" {
			if err := k.book.label(ctx, name, h.node, site); err != nil {
				return err
			}
			k.cfg.Log.Info("the node is of the site that its join token says", "node", name, "site", site)
		}
		err := k.book.bind(ctx, name, h.record.object, h.node, h.record.Site)
		if apierrors.IsNotFound(err) || errors.Is(err, ErrUnknown) {
			return nil
		}
		return err
	}
	return nil
}

// release writes that the Node was deleted: the record is deleted, or says so if there was
// a revocation. The watch delivers what another has written meanwhile, and it is tried
// again.
func (k *Keeper) release(ctx context.Context, h *holder) error {
	name, revoked := h.record.Name, h.record.ended() != nil
	if revoked && k.cfg.Vouched {
		return nil
	}
	var err error
	if revoked {
		err = k.book.free(ctx, h.record, h.node)
	} else {
		err = k.book.Forget(ctx, h.record)
	}
	if apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if k.cfg.Vouched {
		k.cfg.Log.Info("the node has been deleted, and who had its name is forgotten", "node", name)
	} else {
		k.cfg.Log.Info("the node has been deleted: its name is free, and its key is not admitted any more", "node", name)
	}
	return nil
}

// forget deletes the record of a name that is free, once there are no pods left whose
// tokens it refuses.
func (k *Keeper) forget(ctx context.Context, h *holder) error {
	name := h.record.Name
	pods, err := k.book.pods(ctx, name)
	if err != nil {
		return err
	}
	if pods {
		k.queue.AddAfter(name, podsAgain)
		return nil
	}
	if err = k.book.Forget(ctx, h.record); apierrors.IsConflict(err) {
		return nil
	}
	return err
}
