package job

// Tests of counting when requests fail, caches lag and controllers die.

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// TestCountsOnce ends pods while one request in three fails, some after they
// were carried out, pods vanish, and the controller is replaced now and then.
// Every pod counts once.
func TestCountsOnce(t *testing.T) {
	for seed := range uint64(6) {
		for _, mode := range []batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion} {
			t.Run(fmt.Sprintf("%s/seed %d", mode, seed), func(t *testing.T) {
				run(t, func(w *world) { countsOnce(w, seed) }, newJob(times(15, 5), limit(1000), func(s *batchv1.JobSpec) { s.CompletionMode = &mode }))
			})
		}
	}
}

func countsOnce(w *world, seed uint64) {
	// luck is drawn from one request at a time, as the fake client answers them.
	r, luck := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	var broken atomic.Bool
	fails := func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !broken.Load() || luck.IntN(3) > 0 {
			return false, nil, nil
		}
		if luck.IntN(2) == 0 { // it is carried out and the answer lost
			_, _, _ = clienttesting.ObjectReaction(w.server)(a)
		}
		return true, nil, apierrors.NewInternalError(errors.New("no luck"))
	}
	w.client.PrependReactor("patch", "pods", fails)
	w.client.PrependReactor("update", "jobs", fails)
	failures, ended := 0, make(map[types.UID]bool)
	for round := range 400 {
		active := w.active()
		if finished(w.job()) {
			break
		}
		broken.Store(round < 100)
		if len(active) > 0 {
			p := active[r.IntN(len(active))]
			if ended[p.UID] {
				w.Errorf("%s is active again", p.Name)
			}
			switch ended[p.UID] = true; r.IntN(4) {
			case 0:
				failures++
				w.fail(p)
			case 1: // deleted before it ran: counts as failed
				failures++
				w.remove(p, false)
			default:
				w.succeed(p)
			}
		}
		pause := time.Duration(r.IntN(120)) * time.Second
		if r.IntN(10) == 0 {
			w.stop()
			w.start()
		}
		w.settle(pause)
	}
	w.settle(10 * time.Minute)
	j := w.job()
	if !has(j, batchv1.JobComplete) || j.Status.Succeeded != 15 || int(j.Status.Failed) != failures || j.Status.Active != 0 {
		w.Errorf("%s, want 15 succeeded and %d failed", w.status(), failures)
	}
	if i := slices.IndexFunc(w.pods(), tracked); i >= 0 {
		w.Errorf("%s is still held", w.pods()[i].Name)
	}
}

// TestStaleJob: a look at a Job older than what was written for it makes no pods
// that are not needed.
func TestStaleJob(t *testing.T) {
	client, _, err := apitest.New(newJob(times(3, 3)))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	// The informers are not started: the caches show what this test puts there.
	c, err := New(loop.Deps{Client: client, Informers: informers.NewSharedInformerFactory(client, 0)}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	show := func() {
		t.Helper()
		j, err := client.BatchV1().Jobs("ns").Get(ctx, "j", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.inf.GetStore().Add(j); err != nil {
			t.Fatal(err)
		}
	}
	look := func(step string, want int) {
		t.Helper()
		if _, err := c.sync(ctx, "ns/j"); err != nil {
			t.Fatal(err)
		}
		pods, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) != want {
			t.Fatalf("%s: %d pods, want %d", step, len(pods.Items), want)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			p.Status.Phase = corev1.PodSucceeded
			if _, err := client.CoreV1().Pods("ns").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	show()
	look("at first", 3)
	look("the Job is behind", 3)
	show()
	look("the pods are behind", 3)
	pods, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if err := c.podInf.GetStore().Add(&pods.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	look("all have succeeded and are counted", 3)
	look("and the Job is behind", 3)
	j, err := client.BatchV1().Jobs("ns").Get(ctx, "j", metav1.GetOptions{})
	if err != nil || j.Status.Succeeded != 3 || !has(j, batchv1.JobComplete) {
		t.Errorf("%v; %+v", err, j.Status)
	}
}
