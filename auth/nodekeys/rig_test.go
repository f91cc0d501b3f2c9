package nodekeys

// The rig of the tests: an API that numbers versions and refuses stale writes.

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// number makes the key that the tests call n.
func number(n int) Key { return Key{byte(n), 1} }

func newAPI(objs ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(objs...)
	var last atomic.Int64
	last.Store(100)
	c.PrependReactor("*", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var o runtime.Object
		switch a := a.(type) {
		case clienttesting.CreateActionImpl: // an update is one of these, too, by its methods
			o = a.GetObject()
		case clienttesting.UpdateActionImpl:
			o = a.GetObject()
			m, _ := meta.Accessor(o)
			now, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), m.GetName())
			if err != nil {
				return true, nil, err
			}
			if is, _ := meta.Accessor(now); is.GetResourceVersion() != m.GetResourceVersion() {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(), errors.New("stale"))
			}
		case clienttesting.DeleteActionImpl:
			now, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), a.GetName())
			p := a.GetDeleteOptions().Preconditions
			if err != nil || p == nil || p.UID == nil {
				return false, nil, nil
			}
			is, _ := meta.Accessor(now)
			if is.GetUID() != *p.UID || p.ResourceVersion != nil && is.GetResourceVersion() != *p.ResourceVersion {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(), errors.New("another object"))
			}
			return false, nil, nil
		default:
			return false, nil, nil
		}
		m, _ := meta.Accessor(o)
		n := last.Add(1)
		m.SetResourceVersion(strconv.FormatInt(n, 10))
		if m.GetUID() == "" {
			m.SetUID(types.UID(fmt.Sprintf("cm-%d", n)))
		}
		return false, nil, nil
	})
	return c
}

func nodeObject(name, uid string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
}

// A rig is a keeper that runs.
type rig struct {
	t      *testing.T
	api    *fake.Clientset
	book   *Book
	keeper *Keeper
	ended  []string // names, with why
	stop   func()
}

// newRig runs a keeper until stop is called. The test is in a bubble.
func newRig(t *testing.T, api *fake.Clientset) *rig {
	t.Helper()
	return newRigOf(t, api, false)
}

// newRigOf is newRig, or one with Config.Vouched.
func newRigOf(t *testing.T, api *fake.Clientset, vouched bool) *rig {
	t.Helper()
	r := &rig{t: t, api: api, book: NewBook(api)}
	f := informers.NewSharedInformerFactory(api, 0)
	var err error
	r.keeper, err = New(Config{Client: api, Vouched: vouched, Nodes: f.Core().V1().Nodes().Informer(), Ended: func(name string, holds func(Key) bool, why error) {
		r.ended = append(r.ended, fmt.Sprintf("%s, 1 %t, 2 %t: %v", name, holds(number(1)), holds(number(2)), why))
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- r.keeper.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.Shutdown()
	}
	<-r.keeper.Ready()
	return r
}

// react has f answer requests, also while the keeper runs.
func (r *rig) react(verb, resource string, f clienttesting.ReactionFunc) {
	r.api.Lock() // which PrependReactor does not
	defer r.api.Unlock()
	r.api.PrependReactor(verb, resource, f)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// admits checks which of the keys 1 to 4 are admitted, once all goroutines are idle.
func (r *rig) admits(step, name string, want ...int) {
	r.t.Helper()
	<-time.After(2 * readInterval)
	for n := 1; n <= 4; n++ {
		wanted := false
		for _, w := range want {
			wanted = wanted || w == n
		}
		err := r.keeper.Admit(r.t.Context(), name, number(n))
		var refused *RefusedError
		if (err == nil) != wanted || err != nil && !errors.As(err, &refused) {
			r.t.Errorf("%s: key %d of %s: %v, want admitted %t", step, n, name, err, wanted)
		}
	}
}

func (r *rig) makeNode(name, uid string) {
	r.t.Helper()
	_, err := r.api.CoreV1().Nodes().Create(r.t.Context(), nodeObject(name, uid), metav1.CreateOptions{})
	r.must(err)
	<-time.After(time.Second)
}

func (r *rig) deleteNode(name string) {
	r.t.Helper()
	r.must(r.api.CoreV1().Nodes().Delete(r.t.Context(), name, metav1.DeleteOptions{}))
	<-time.After(time.Second)
}
