package pods

// Tests of the objects for pods on disk.

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

// withInputs makes a pod whose containers need objects of every kind.
func withInputs(p *corev1.Pod) {
	p.Spec.ServiceAccountName = "robot"
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: ptr.To(true)}},
	}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "keys", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}},
		{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		}}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "keys", MountPath: "/keys"}, {Name: "token", MountPath: "/token"}}
}

func (w *world) addInputs() {
	w.t.Helper()
	for _, o := range []apiruntime.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "value"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}, Data: map[string][]byte{"key": []byte("hidden")}},
	} {
		if err := w.api.Tracker().Add(o); err != nil {
			w.t.Fatal(err)
		}
	}
	w.api.PrependReactor("create", "serviceaccounts", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.offline {
			return true, nil, errNoConnection
		}
		return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{
			Token: "a token", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
		}}, nil
	})
}

// TestChangedInputsAreReadAnew: the API's objects take precedence over those on disk.
func TestChangedInputsAreReadAnew(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.addInputs()
		w.create(newPod("a", withInputs))
		advance(time.Minute)
		w.stop()
		changed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "other"}}
		if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "default"); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.rt.Exit("a", "main", 1)
		advance(time.Minute)
		specs := w.rt.Specs()
		if env := specs[len(specs)-1].Env; !slices.Contains(env, "KEY=other") {
			t.Errorf("environment %q", env)
		}
	})
}

// TestOwnCopyOfAnInput: after a restart without a server a volume shows what its own pod has
// last seen, also if another pod's file has an older version.
func TestOwnCopyOfAnInput(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.addInputs()
		ref := corev1.LocalObjectReference{Name: "settings"}
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}
		}))
		advance(time.Second)
		w.rt.Exit("a", "main", 0)
		b := newPod("b", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		})
		w.create(b)
		changed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "newer"}}
		if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), changed, "default"); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(w.runner.places.pod(b.UID), "volumes", "v", "KEY")
		want := func(when string) {
			t.Helper()
			if data, err := os.ReadFile(file); err != nil || string(data) != "newer" {
				t.Errorf("%s the file says %q, %v; want newer", when, data, err)
			}
		}
		advance(2 * time.Minute)
		w.wantPhase("a", corev1.PodSucceeded)
		want("before")
		w.stop()
		w.setOffline(true)
		w.start()
		advance(5 * time.Minute)
		want("cut off")
		w.restart()
		advance(5 * time.Minute)
		want("after another restart")
	})
}

// TestLabelsAreKept: after a restart without a server a volume shows the last labels and
// annotations.
func TestLabelsAreKept(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		field := func(name string) corev1.DownwardAPIVolumeFile {
			return corev1.DownwardAPIVolumeFile{Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata." + name}}
		}
		a := newPod("a", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{field("labels"), field("annotations")},
			}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		})
		w.create(a)
		advance(time.Second)
		want := func(name, value string) {
			t.Helper()
			data, err := os.ReadFile(filepath.Join(w.runner.places.pod(a.UID), "volumes", "v", name))
			if got := strings.TrimSpace(string(data)); err != nil || got != value {
				t.Errorf("%s are %q, %v; want %q", name, got, err, value)
			}
		}
		offline := func() {
			advance(2 * time.Minute)
			w.stop()
			w.setOffline(true)
			w.start()
			advance(5 * time.Minute)
			w.wantRunning("cut off", a)
		}
		w.update("a", func(p *corev1.Pod) { p.Labels = map[string]string{"color": "blue"} })
		offline()
		want("labels", `color="blue"`)
		w.setOffline(false)
		advance(time.Minute)
		w.update("a", func(p *corev1.Pod) { p.Annotations = map[string]string{"note": "b"} })
		offline()
		want("annotations", `note="b"`)
	})
}

func TestDamagedFiles(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.addInputs()
		a, b, c := newPod("a", nil), newPod("b", nil), newPod("c", withInputs)
		w.create(a)
		w.create(b)
		w.create(c)
		advance(time.Second)
		w.stop()
		w.setOffline(true)
		for _, path := range []string{w.runner.places.checkpoint(a.UID), w.runner.places.inputs(c.UID)} {
			if err := os.WriteFile(path, []byte("\x00\x00\x00\x00"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.start()
		w.rt.Exit("b", "main", 1)
		advance(time.Minute)
		for _, path := range []string{w.runner.places.checkpoint(a.UID), w.runner.places.inputs(c.UID)} {
			if n := len(w.logged(path)); n != 1 {
				t.Errorf("%d lines name %s, want one", n, path)
			}
		}
		w.wantRunning("cut off", a, b, c)
		w.setOffline(false)
		advance(time.Minute)
		w.wantRunning("healed", a, b, c)
		for _, p := range []string{"a", "c"} {
			if got := w.pod(p).Status.ContainerStatuses[0].RestartCount; got != 0 {
				t.Errorf("pod %s was restarted %d times, want none", p, got)
			}
		}
	})
}
