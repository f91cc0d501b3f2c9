// A watch cache that is asked for what is newer than its own kind's last change.

package apiserver_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestFreshBesideNewCache asks for the present state of a kind when the last thing that
// happened in the store is that another kind got its cache. That cache's watch begins at a
// revision that is not written yet, and etcd tells no progress of a stream with such a watch
// in it: on one stream for all kinds the answer would wait for the next write.
func TestFreshBesideNewCache(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := must(start(t.TempDir()))(t)
	defer in.stop()
	yes := true
	for _, group := range []string{"one.example.com", "two.example.com", "three.example.com"} {
		gvr := define(t, in, group)
		must(objectsOf(t, in, gvr, "default").List(ctx, metav1.ListOptions{}))(t)
		w := must(in.client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{
			SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		}))(t)
		fresh := false
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				t.Errorf("%s: %v", group, apierrors.FromObject(event.Object))
			}
			if _, ok := event.Object.(*corev1.ConfigMap); !ok || event.Type == watch.Bookmark {
				fresh = event.Type == watch.Bookmark
				break
			}
		}
		if !fresh {
			t.Errorf("%s: the watch ended without a bookmark", group)
		}
		w.Stop()
	}
}
