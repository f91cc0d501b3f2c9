package controlplane

// What the controllers' informers keep, and by whom their events are written.

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/tainteviction"
)

// A pod's time begins when the taint was written, not when a new leader first sees it.
func TestNewLeaderKeepsTolerationTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := metav1.NewTime(time.Now().Add(-50 * time.Minute))
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "e", Effect: corev1.TaintEffectNoExecute}}}}
		n.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kubectl-taint", Operation: metav1.ManagedFieldsOperationUpdate, Time: &written,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`),
		}}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n", Tolerations: seconds(3600)}}
		client := fake.NewSimpleClientset(n, p)
		f := newInformers(client)
		c, err := tainteviction.New(loop.Deps{Client: client, Informers: f}, tainteviction.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		var running sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx) }) // it ends with ctx
		defer func() { cancel(); running.Wait(); f.Shutdown() }()
		gone := func() bool {
			synctest.Wait()
			_, err := client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
		time.Sleep(9 * time.Minute)
		if gone() {
			t.Error("the pod has gone before its hour was over")
		}
		time.Sleep(2 * time.Minute)
		if !gone() {
			t.Error("the pod is there an hour after the taint was written")
		}
	})
}

// Each controller's events are written by its own client, also those that are counted up.
func TestEventsOfOwnClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newEvents()
		defer all.Shutdown()
		clients := map[string]*fake.Clientset{"a": fake.NewSimpleClientset(), "b": fake.NewSimpleClientset()}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		for component, client := range clients {
			r := all.recorder(component, client)
			for range 2 {
				r.Event(n, corev1.EventTypeNormal, "Tested", "for "+component)
			}
		}
		synctest.Wait()
		for component, client := range clients {
			list, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 || list.Items[0].Source.Component != component || list.Items[0].Count != 2 {
				t.Errorf("the client of %s has written %+v, %v", component, list.Items, err)
			}
		}
	})
}
