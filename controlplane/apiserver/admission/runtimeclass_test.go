package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func TestRuntimeClass(t *testing.T) {
	tolerates := corev1.Toleration{Key: "gvisor", Operator: corev1.TolerationOpExists}
	api := fake.NewClientset(
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Handler: "runc"},
		&nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "heavy"}, Handler: "runsc", Overhead: &nodev1.Overhead{PodFixed: amounts("cpu", "250m")},
			Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"kind": "vm"}, Tolerations: []corev1.Toleration{tolerates}},
		},
	)
	p := RuntimeClass().(*runtimeClass)
	p.SetExternalKubeClientSet(api)
	f := informers.NewSharedInformerFactory(api, 0)
	p.SetExternalKubeInformerFactory(f)
	if err := p.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	f.Start(t.Context().Done())
	f.WaitForCacheSync(t.Context().Done())
	t.Cleanup(f.Shutdown)
	heavy := corev1.PodSpec{
		RuntimeClassName: ptr.To("heavy"), Overhead: amounts("cpu", "0.25"),
		NodeSelector: map[string]string{"kind": "vm"}, Tolerations: []corev1.Toleration{tolerates},
	}
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want *corev1.PodSpec // nil: as it was
		text string          // of the refusal
	}{
		"no class":                   {},
		"a class that says nothing":  {spec: corev1.PodSpec{RuntimeClassName: ptr.To("bare")}},
		"a class that is not there":  {spec: corev1.PodSpec{RuntimeClassName: ptr.To("gone")}, text: `RuntimeClass "gone" not found`},
		"overhead without class":     {spec: corev1.PodSpec{Overhead: amounts("cpu", "1")}, text: "without corresponding RuntimeClass"},
		"overhead the class has not": {spec: corev1.PodSpec{RuntimeClassName: ptr.To("bare"), Overhead: amounts("cpu", "1")}, text: "doesn't match"},
		"all from the class":         {spec: corev1.PodSpec{RuntimeClassName: ptr.To("heavy")}, want: &heavy},
		"all there already":          {spec: *heavy.DeepCopy()},
		"another overhead":           {spec: corev1.PodSpec{RuntimeClassName: ptr.To("heavy"), Overhead: amounts("cpu", "1")}, text: "doesn't match"},
		"another node":               {spec: corev1.PodSpec{RuntimeClassName: ptr.To("heavy"), NodeSelector: map[string]string{"kind": "metal"}}, text: "conflict: runtimeClass.scheduling.nodeSelector[kind] = vm"},
	} {
		pod := &corev1.Pod{Spec: *tt.spec.DeepCopy()}
		err := admitPod(t, p, pod, "")
		if tt.text != "" {
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		want := tt.want
		if want == nil {
			want = &tt.spec
		}
		if err != nil || !equality.Semantic.DeepEqual(pod.Spec, *want) {
			t.Errorf("%s: %v, %+v", name, err, pod.Spec)
		}
	}
}
