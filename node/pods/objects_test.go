package pods

// Tests of what pods read of the API.

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestNewPodReadsConfigurationAnew: a pod that comes after its ConfigMap has changed has the new one,
// also beside a pod that has the old one.
func TestNewPodReadsConfigurationAnew(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		reads := func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		}
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "old"}}
		if err := w.api.Tracker().Add(cm); err != nil {
			t.Fatal(err)
		}
		w.create(newPod("a", reads))
		advance(time.Second)
		cm.Data = map[string]string{"KEY": "new"}
		gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
		if err := w.api.Tracker().Update(gvr, cm, "default"); err != nil {
			t.Fatal(err)
		}
		w.create(newPod("b", reads))
		advance(time.Second)
		for _, c := range w.rt.Specs() {
			if got, want := strings.Join(c.Env, " "), map[string]string{"a": "KEY=old", "b": "KEY=new"}[c.Pod.Name]; !strings.HasSuffix(got, want) {
				t.Errorf("%s has %q, want %q", c.Pod.Name, got, want)
			}
		}
		if err := w.api.Tracker().Delete(gvr, "default", "settings"); err != nil {
			t.Fatal(err)
		}
		w.create(newPod("c", reads))
		advance(time.Second)
		w.wantState("c", "main", "Waiting CreateContainerConfigError")
	})
}
