// A store that was replaced by an older copy of itself.

package apiserver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestored watches from a version that a restored store has not reached, as clients do that
// were there before: they have to learn that it was restored.
func TestRestored(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "etcd")
	with := func(use func(*instance)) {
		t.Helper()
		in := must(start(dir))(t)
		use(in)
		if err := in.stop(); err != nil {
			t.Fatal(err)
		}
	}
	with(func(*instance) {})
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(dir, "etcd"))); err != nil {
		t.Fatal(err)
	}
	var lost string
	with(func(in *instance) {
		for range 20 {
			m := must(in.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "lost-"}}, metav1.CreateOptions{}))(t)
			lost = m.ResourceVersion
		}
		w := must(in.client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: lost}))(t)
		w.Stop() // the latest version of all is no future one
		e := must(in.client.CoreV1().Events("default").Watch(ctx, metav1.ListOptions{ResourceVersion: lost}))(t)
		e.Stop()
	})
	if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(copied)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	with(func(in *instance) {
		from := metav1.ListOptions{ResourceVersion: lost}
		if w, err := in.client.CoreV1().ConfigMaps("default").Watch(ctx, from); !apierrors.IsResourceExpired(err) {
			t.Errorf("config maps: %v, %v", w, err)
		}
		if w, err := in.client.CoreV1().Events("default").Watch(ctx, from); !apierrors.IsResourceExpired(err) {
			t.Errorf("events, which have no cache: %v, %v", w, err)
		}
	})
}
