package loop

// Tests of the queue and of running together.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// advance lets fake time pass and what it sets off settle.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestProtect(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name  string
		f     func() error
		is    error
		text  string
		panic bool
	}{
		{"nil", func() error { return nil }, nil, "", false},
		{"error", func() error { return boom }, boom, "boom", false},
		{"panic with text", func() error { panic("odd object") }, nil, "panic: odd object", true},
		{"panic with error", func() error { panic(boom) }, boom, "panic: boom", true},
		{"out of range", func() error { s := make([]int, len(os.Args)); s[len(os.Args)]++; return nil }, nil, "index out of range", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Protect(tc.f)
			if tc.text == "" {
				if err != nil {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v, want %q", err, tc.text)
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v does not wrap %v", err, tc.is)
			}
			var p *PanicError
			if errors.As(err, &p) != tc.panic {
				t.Errorf("panic: got %v, want %v", !tc.panic, tc.panic)
			}
			if tc.panic && !strings.Contains(string(p.Stack), "loop_test.go") {
				t.Errorf("the stack does not show where:\n%s", p.Stack)
			}
		})
	}
}

func TestTogetherEndsAllWhenOneFails(t *testing.T) {
	var ended atomic.Int32
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		ended.Add(1)
		return nil
	}
	for _, fail := range []func(context.Context) error{
		func(context.Context) error { return errors.New("bad") },
		func(context.Context) error { panic("bad") },
	} {
		ended.Store(0)
		err := Together(t.Context(), wait, fail, wait)
		if err == nil || !strings.Contains(err.Error(), "bad") {
			t.Errorf("got %v", err)
		}
		if ended.Load() != 2 {
			t.Errorf("%d others had ended when Together returned, want 2", ended.Load())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Together(ctx, wait, wait); err != nil {
		t.Errorf("asked to stop: %v", err)
	}
}

// TestQueueBackoff follows one key through failures, with the times of each try.
func TestQueueBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		fail := true
		q := NewQueue(Config[string]{
			Name: "t", MinDelay: 100 * time.Millisecond, MaxDelay: time.Second,
			Do: func(context.Context, string) (time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(start))
				if fail {
					return 0, errors.New("not now")
				}
				return 5 * time.Second, nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		q.Add("k")
		advance(4 * time.Second) // fake time: five tries and two more at the bound
		mu.Lock()
		want := []time.Duration{0, 100, 300, 700, 1500, 2500, 3500}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(at, want) {
			t.Errorf("tries at %v, want %v", at, want)
		}
		fail, at = false, nil
		mu.Unlock()
		advance(6 * time.Second)
		mu.Lock()
		if want := []time.Duration{4500 * time.Millisecond, 9500 * time.Millisecond}; !slices.Equal(at, want) {
			t.Errorf("after success tries at %v, want %v", at, want)
		}
		mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestQueueOneAtATime floods a queue with few keys and checks that no key is
// ever with two workers, and that the last word on each is heard.
func TestQueueOneAtATime(t *testing.T) {
	const keys, rounds = 5, 400
	var mu sync.Mutex
	busy, wanted, seen := map[int]bool{}, map[int]int{}, map[int]int{}
	q := NewQueue(Config[int]{Name: "t", Workers: 8, Do: func(_ context.Context, k int) (time.Duration, error) {
		mu.Lock()
		if busy[k] {
			t.Errorf("key %d is with two workers", k)
		}
		busy[k] = true
		latest := wanted[k]
		mu.Unlock()
		mu.Lock()
		busy[k], seen[k] = false, latest
		mu.Unlock()
		return 0, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	for i := range rounds {
		k := i % keys
		mu.Lock()
		wanted[k] = i
		mu.Unlock()
		q.Add(k)
	}
	for settled := false; !settled; {
		mu.Lock()
		settled = true
		for k := range keys {
			settled = settled && seen[k] == wanted[k]
		}
		mu.Unlock()
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestPanicCostsItsKey: a key whose Reconcile panics is tried again with back-off,
// and the others do not notice; each panic is told with its stack, and counted.
func TestPanicCostsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		before := testutil.ToFloat64(panics)
		began := time.Now()
		var tries []time.Duration
		done := map[string]int{}
		q := NewQueue(Config[string]{Name: "t", Workers: 1, MinDelay: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil)), Do: func(_ context.Context, k string) (time.Duration, error) {
			if k == "odd" && len(tries) < 4 {
				tries = append(tries, time.Since(began))
				panic("cannot handle " + k)
			}
			done[k]++
			return 0, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- q.Run(ctx) }()
		for _, k := range []string{"a", "odd", "b"} {
			q.Add(k)
		}
		advance(time.Minute)
		q.Add("c")
		synctest.Wait()
		if want := []time.Duration{0, 1e9, 3e9, 7e9}; !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		if want := map[string]int{"a": 1, "b": 1, "c": 1, "odd": 1}; !maps.Equal(done, want) {
			t.Errorf("done %v, want %v", done, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := testutil.ToFloat64(panics) - before; n != 4 || strings.Count(log.String(), "cannot handle odd") != 4 || !strings.Contains(log.String(), "loop_test.go") {
			t.Errorf("%v counted, told %s", n, log.String())
		}
	})
}

// TestPanicCostsItsEvent: a handler that panics over one object hears of the next.
func TestPanicCostsItsEvent(t *testing.T) {
	var log bytes.Buffer
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&log, nil)))
	defer klog.ClearLogger()
	var heard []string
	of := func(kind string) func(any) {
		return func(obj any) {
			p := obj.(*corev1.Pod)
			heard = append(heard, kind+" "+p.Name)
			if p.Name == "odd" {
				panic("cannot " + kind)
			}
		}
	}
	update := of("update")
	g := Guard(cache.ResourceEventHandlerFuncs{AddFunc: of("add"), UpdateFunc: func(_, is any) { update(is) }, DeleteFunc: of("delete")})
	for _, name := range []string{"odd", "p"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		g.OnAdd(p, true)
		g.OnUpdate(p, p)
		g.OnDelete(p)
		g.OnDelete(cache.DeletedFinalStateUnknown{Obj: p}) // no pod: another panic
	}
	if want := []string{"add odd", "update odd", "delete odd", "add p", "update p", "delete p"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	for _, want := range []string{"cannot add", "cannot update", "cannot delete", "ns/odd", "loop_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not told: %s", want, log.String())
		}
	}
}

func TestQuietStillRetriesAndUnwraps(t *testing.T) {
	base := errors.New("node is not there yet")
	if err := fmt.Errorf("sync: %w", Quiet(base)); !errors.Is(err, base) {
		t.Error("Quiet hides the error")
	}
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		q := NewQueue(Config[string]{Name: "t", Do: func(context.Context, string) (time.Duration, error) {
			if tries.Add(1) < 3 {
				return 0, Quiet(base)
			}
			return 0, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		q.Add("k")
		advance(time.Minute)
		if n := tries.Load(); n != 3 {
			t.Errorf("%d tries, want 3", n)
		}
		cancel()
		<-done
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old"}})
		f := informers.NewSharedInformerFactory(client, 0)
		inf := f.Core().V1().Pods().Informer()
		var mu sync.Mutex
		var keys []string
		stop, err := Watch(inf, func(k string) { mu.Lock(); defer mu.Unlock(); keys = append(keys, k) })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		pods := client.CoreV1().Pods("ns")
		expect := func(step string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(keys, want) {
				t.Errorf("%s: got %v, want %v", step, keys, want)
			}
			keys = nil
		}
		expect("listed", "ns/old")
		if err := pods.Delete(ctx, "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("deleted", "ns/old")
		stop()
		if _, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "new"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("after stop")
		cancel()
		f.Shutdown()
	})
}

// TestQueueBeforeRun: a queue that is never run leaves no goroutine (TestMain
// looks), and one that is run has what was added before.
func TestQueueBeforeRun(t *testing.T) {
	done := make(chan string, 3)
	q := NewQueue(Config[string]{Name: "t", Do: func(_ context.Context, k string) (time.Duration, error) {
		done <- k
		return 0, nil
	}})
	q.Add("a")
	q.Add("b")
	q.Add("a")
	if len(done) > 0 {
		t.Error("worked on before Run")
	}
	never := NewQueue(Config[string]{Name: "never", Do: func(context.Context, string) (time.Duration, error) { return 0, nil }})
	never.Add("x")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	got := []string{<-done, <-done}
	slices.Sort(got)
	cancel()
	if err := <-ended; err != nil || !slices.Equal(got, []string{"a", "b"}) || len(done) > 0 {
		t.Errorf("worked on %v and %d more, %v", got, len(done), err)
	}
}

// TestDelayBeforeRun: a delay that is asked for before Run counts from its start.
func TestDelayBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, at := time.Now(), make(map[string]time.Duration)
		q := NewQueue(Config[string]{Name: "t", Workers: 1, Do: func(_ context.Context, k string) (time.Duration, error) {
			at[k] = time.Since(start)
			return 0, nil
		}})
		q.AddAfter("a", 2*time.Second)
		q.AddAfter("a", time.Second)
		q.AddAfter("a", 3*time.Second)
		q.AddAfter("b", time.Second)
		q.Add("b")
		q.AddAfter("b", time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- q.Run(ctx) }()
		advance(time.Minute)
		cancel()
		if err := <-ended; err != nil || !maps.Equal(at, map[string]time.Duration{"a": time.Second, "b": 0}) {
			t.Errorf("worked on at %v, %v", at, err)
		}
	})
}

// A conflict and a missing object are expected answers to a write of a status.
func TestStatusError(t *testing.T) {
	gr := schema.GroupResource{Resource: "things"}
	for _, err := range []error{nil, apierrors.NewNotFound(gr, "a")} {
		if got := StatusError("thing a", err); got != nil {
			t.Errorf("%v: %v", err, got)
		}
	}
	if got := StatusError("thing a", apierrors.NewConflict(gr, "a", errors.New("changed"))); !IsQuiet(got) {
		t.Errorf("conflict: %v", got)
	}
	broken := errors.New("broken")
	if got := StatusError("thing a", broken); IsQuiet(got) || !errors.Is(got, broken) || got.Error() != "write the status of thing a: broken" {
		t.Errorf("another error: %v", got)
	}
}
