// Programs written by others: client-go's informers and leader election.

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func portOf(c *cluster) string { return strconv.Itoa(c.port) }

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// waitNode waits until the node is Ready.
func (c *cluster) waitNode(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" is Ready", func() error {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", n.Status.Conditions)
	})
}

func TestClients(t *testing.T) {
	c := startUp(t, "--nodes", "0")
	t.Run("informers", func(t *testing.T) { testInformers(t, c) })
	t.Run("leader election", func(t *testing.T) { testLeaderElection(t, c) })
}

func testInformers(t *testing.T, c *cluster) {
	factory := informers.NewSharedInformerFactory(c.client, 0)
	seen := make(chan string, 1024)
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "add " + o.(*corev1.ConfigMap).Name },
		UpdateFunc: func(_, o any) { seen <- "update " + o.(*corev1.ConfigMap).Name },
		DeleteFunc: func(o any) {
			if m, ok := o.(*corev1.ConfigMap); ok {
				seen <- "delete " + m.Name
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the cache never synced")
	}
	maps := c.client.CoreV1().ConfigMaps("default")
	m, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data = map[string]string{"a": "b"}
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"add watched", "update watched", "delete watched"} {
		for got := ""; got != want; {
			select {
			case got = <-seen:
			case <-time.After(patience):
				t.Fatalf("no %q", want)
			}
		}
	}
}

func testLeaderElection(t *testing.T, c *cluster) {
	elect := func(ctx context.Context, id string, won chan<- string) {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "e2e"}, Client: c.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: id},
			},
			LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { won <- id },
				OnStoppedLeading: func() {},
			},
		})
	}
	won := make(chan string, 2)
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	go func() { elect(first, "first", won); ended <- struct{}{} }()
	if got := <-won; got != "first" {
		t.Fatalf("%s leads", got)
	}
	go func() { elect(second, "second", won); ended <- struct{}{} }()
	stopFirst()
	if got := <-won; got != "second" {
		t.Fatalf("%s leads", got)
	}
	stopSecond()
	<-ended
	<-ended
}
