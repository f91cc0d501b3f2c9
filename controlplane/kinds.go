package controlplane

// Which kinds each controller watches. It waits for those and for no other, so that
// one kind that cannot be listed stops nobody who does not need it.

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/tools/cache"
)

// A kinds is the factory that one controller is given. It notes what it is asked for.
// Only the groups that have a method here are noted (TestEveryKindIsNoted).
type kinds struct {
	informers.SharedInformerFactory
	watched map[string]cache.SharedIndexInformer // by kind; not written to once the controller is made
}

func newKinds(f informers.SharedInformerFactory) *kinds {
	return &kinds{SharedInformerFactory: f, watched: make(map[string]cache.SharedIndexInformer)}
}

// InformerFor is what the methods of all groups come to.
func (k *kinds) InformerFor(obj runtime.Object, f internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	inf := k.SharedInformerFactory.InformerFor(obj, f)
	k.watched[reflect.TypeOf(obj).Elem().Name()] = inf
	return inf
}

func (k *kinds) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(k, metav1.NamespaceAll, nil)
}
func (k *kinds) Apps() apps.Interface   { return apps.New(k, metav1.NamespaceAll, nil) }
func (k *kinds) Batch() batch.Interface { return batch.New(k, metav1.NamespaceAll, nil) }
func (k *kinds) Certificates() certificates.Interface {
	return certificates.New(k, metav1.NamespaceAll, nil)
}

func (k *kinds) Coordination() coordination.Interface {
	return coordination.New(k, metav1.NamespaceAll, nil)
}

func (k *kinds) Discovery() discovery.Interface {
	return discovery.New(k, metav1.NamespaceAll, nil)
}

func (k *kinds) Core() core.Interface     { return core.New(k, metav1.NamespaceAll, nil) }
func (k *kinds) Policy() policy.Interface { return policy.New(k, metav1.NamespaceAll, nil) }
func (k *kinds) Rbac() rbac.Interface     { return rbac.New(k, metav1.NamespaceAll, nil) }

// missing returns the kinds that have not been listed yet, sorted.
func (k *kinds) missing() []string {
	var out []string
	for kind, inf := range k.watched {
		if !inf.HasSynced() {
			out = append(out, kind)
		}
	}
	slices.Sort(out)
	return out
}

// wait returns true once every kind has been listed, and false if ctx is done first.
func (k *kinds) wait(ctx context.Context) bool {
	var listed []cache.DoneChecker
	for _, inf := range k.watched {
		listed = append(listed, inf.HasSyncedChecker())
	}
	return cache.WaitFor(ctx, "", listed...)
}

// A member is a controller with the kinds that it watches.
type member struct {
	Controller
	kinds *kinds
}

// A roster is the controllers that wait for their kinds. The zero value is empty.
type roster struct {
	mu      sync.Mutex
	waiting map[string]*kinds // guarded by mu: by controller
}

func (r *roster) add(m member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = make(map[string]*kinds)
	}
	r.waiting[m.Name()] = m.kinds
}

func (r *roster) remove(m member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, m.Name())
}

// Missing returns, by controller, the kinds that have not been listed yet and for
// which that controller waits. It may be called at any time.
func (p *ControlPlane) Missing() map[string][]string {
	p.roster.mu.Lock()
	waiting := maps.Clone(p.roster.waiting)
	p.roster.mu.Unlock()
	out := make(map[string][]string)
	for name, k := range waiting {
		if missing := k.missing(); len(missing) > 0 {
			out[name] = missing
		}
	}
	return out
}

// settle calls started once all n controllers have left word in running, or when
// ReadyBound has passed, and then tells which kinds are missing. Not if ctx is done
// before.
func (p *ControlPlane) settle(ctx context.Context, n int, running <-chan struct{}, started func()) {
	late := time.NewTimer(p.cfg.ReadyBound)
	defer late.Stop()
	for i := 0; i < n; i++ {
		select {
		case <-running:
		case <-ctx.Done():
			return
		case <-late.C:
			missing := p.Missing()
			for _, name := range slices.Sorted(maps.Keys(missing)) {
				p.log.Warn("the controller waits for kinds that cannot be listed; the others work",
					"controller", name, "missing", strings.Join(missing[name], ","), "after", p.cfg.ReadyBound)
			}
			n = 0
		}
	}
	started()
}
