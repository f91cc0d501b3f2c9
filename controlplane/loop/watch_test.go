package loop

// Tests of what feeds queues.

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// TestWatchIf: of changes, those are told that concern somebody; what comes and
// goes always is.
func TestWatchIf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(bound("p", ""))
		f := informers.NewSharedInformerFactory(client, 0)
		var mu sync.Mutex
		seen := 0
		moved := func(was, is *corev1.Pod) bool { return was.Spec.NodeName != is.Spec.NodeName }
		stop, err := WatchIf(f.Core().V1().Pods().Informer(), moved, func(key string) {
			mu.Lock()
			defer mu.Unlock()
			if seen++; key != "ns/p" {
				t.Errorf("told of %q", key)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		pods := client.CoreV1().Pods("ns")
		update := func(p *corev1.Pod) error {
			_, err := pods.Update(ctx, p, metav1.UpdateOptions{})
			return err
		}
		labelled := bound("p", "a")
		labelled.Labels = map[string]string{"k": "v"}
		for _, step := range []struct {
			name string
			do   func() error
			want int
		}{
			{"there", func() error { return nil }, 1},
			{"moved", func() error { return update(bound("p", "a")) }, 1},
			{"labelled", func() error { return update(labelled) }, 0},
			{"deleted", func() error { return pods.Delete(ctx, "p", metav1.DeleteOptions{}) }, 1},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			mu.Lock()
			if seen != step.want {
				t.Errorf("%s: told %d times, want %d", step.name, seen, step.want)
			}
			seen = 0
			mu.Unlock()
		}
		stop()
		cancel()
		f.Shutdown()
	})
}

func TestHandleOfStoppedInformer(t *testing.T) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	inf.RunWithContext(ctx)
	if _, err := Handle(inf, cache.ResourceEventHandlerFuncs{}); err == nil || !strings.HasPrefix(err.Error(), "watch: ") {
		t.Errorf("got %v", err)
	}
}

// TestWatches: all end together, at once if one of them could not begin.
func TestWatches(t *testing.T) {
	first := errors.New("first")
	for _, tc := range []struct {
		name string
		errs []error // of one watch after the other
		want error
	}{
		{"none", nil, nil},
		{"all well", []error{nil, nil}, nil},
		{"the second fails", []error{nil, first, nil}, first},
		{"two fail", []error{first, errors.New("second"), nil}, first},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w Watches
			running := 0
			for _, err := range tc.errs {
				if err != nil {
					w.Add(nil, err)
					continue
				}
				running++
				w.Add(func() { running-- }, nil)
			}
			stop, err := w.All()
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil {
				stop()
			}
			if running != 0 {
				t.Errorf("%d still run", running)
			}
		})
	}
}
