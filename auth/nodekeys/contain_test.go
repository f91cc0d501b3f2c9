package nodekeys

// Tests that a panic over one name costs that name only.

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
)

// TestPanicCostsItsName: if the keeper panics over a change of one name, or over the write of
// its record, that node is refused, and others are handled as before.
func TestPanicCostsItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI()
		var contained, wrote atomic.Int32
		api.PrependReactor("update", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			m, _ := a.(clienttesting.UpdateAction).GetObject().(interface{ GetName() string })
			if m.GetName() == "unwritable" && wrote.Add(1) <= 2 {
				panic("cannot write")
			}
			return false, nil, nil
		})
		book := NewBook(api)
		f := informers.NewSharedInformerFactory(api, 0)
		k, err := New(Config{
			Client: api, Nodes: f.Core().V1().Nodes().Informer(),
			Ended: func(name string, _ func(Key) bool, _ error) {
				if name == "bad" {
					panic("odd identity")
				}
			},
			Contain: func(_ string, f func()) (ok bool) {
				defer func() {
					if recover() != nil {
						contained.Add(1)
						ok = false
					}
				}()
				f()
				return true
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			f.Shutdown()
		}()
		<-k.Ready()
		r := &rig{t: t, api: api, book: book, keeper: k}
		for _, name := range []string{"bad", "good", "unwritable"} {
			r.must(book.Claim(ctx, name, number(1), ""))
		}
		r.makeNode("bad", "u-1")
		r.makeNode("good", "u-2")
		r.admits("at first", "bad", 1)
		watched, stop := k.Watch(ctx, "bad", number(1))
		defer stop()
		_, err = book.Revoke(ctx, "bad", "admin", "stolen")
		r.must(err)
		r.admits("revoked, and the keeper panics", "bad")
		var refused *RefusedError
		if !errors.As(context.Cause(watched), &refused) {
			t.Errorf("what it had begun goes on: %v", context.Cause(watched))
		}
		r.admits("meanwhile", "good", 1)
		r.must(api.CoreV1().Nodes().Delete(ctx, "good", metav1.DeleteOptions{}))
		r.admits("its node is deleted", "good")

		r.makeNode("unwritable", "u-3")
		<-time.After(time.Minute)
		if n := wrote.Load(); n < 3 || contained.Load() < 3 {
			t.Errorf("tried to write %d times, %d panics", n, contained.Load())
		}
		r.admits("in the end", "unwritable", 1)
	})
}
