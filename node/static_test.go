package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStaticPods: a node runs what its files say before it is registered, shows it when
// it is, and reads the files again in time.
func TestStaticPods(t *testing.T) {
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: none, command: [sleep]}]}\n"
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	inWorld(t, func(w *world) {
		w.cfg.ManifestPath, w.cfg.ManifestPeriod = dir, time.Minute
		w.fail = func(string, string) error { return errors.New("no server") }
	}, func(w *world) {
		if n := len(w.rt.Specs()); n != 1 {
			t.Fatalf("%d containers at the start", n)
		}
		w.setFail(nil)
		advance(time.Minute)
		p, err := w.api.CoreV1().Pods("default").Get(w.t.Context(), "web-node-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if o := metav1.GetControllerOf(p); o == nil || o.UID != w.node().UID || p.Annotations[corev1.MirrorPodAnnotationKey] == "" {
			t.Errorf("%+v", p.ObjectMeta)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		advance(3 * time.Minute)
		if n := len(w.rt.Specs()); n != 0 {
			t.Errorf("%d containers after the file has gone", n)
		}
		if list, err := w.api.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("%v, %v", list.Items, err)
		}
	})
}
