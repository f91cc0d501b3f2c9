// What pods get from their service accounts.

package admission

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// accounts is the plugin on a server with the given accounts, which its cache does not
// have.
func accounts(mount bool, have ...runtime.Object) (admission.Interface, *fake.Clientset) {
	p := ServiceAccount(mount).(*serviceAccounts)
	client := fake.NewClientset(have...)
	p.SetExternalKubeClientSet(client)
	p.SetExternalKubeInformerFactory(informers.NewSharedInformerFactory(client, 0))
	return p, client
}

func account(name string, change func(*corev1.ServiceAccount)) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if change != nil {
		change(a)
	}
	return a
}

func mirrorPod(change func(*corev1.PodSpec)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: ""}}}
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func TestServiceAccount(t *testing.T) {
	plugin, _ := accounts(false, account("default", nil), account("own", nil), account("old", nil))
	volume := func(v corev1.VolumeSource) corev1.Pod {
		return mirrorPod(func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} })
	}
	for _, c := range []struct {
		name    string
		pod     corev1.Pod
		want    string
		refused string
	}{
		{"none", corev1.Pod{}, "default", ""},
		{"its own", corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "own"}}, "own", ""},
		{"by the old name", corev1.Pod{Spec: corev1.PodSpec{DeprecatedServiceAccount: "old"}}, "old", ""},
		{"one that does not exist", corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "gone"}}, "gone", `error looking up service account ns/gone: serviceaccounts "gone" not found`},
		{"mirror", mirrorPod(nil), "", ""},
		{"mirror with one", mirrorPod(func(s *corev1.PodSpec) { s.ServiceAccountName = "x" }), "x", "may not reference service accounts"},
		{"mirror with a pull secret", mirrorPod(func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}} }), "", "may not reference secrets"},
		{"mirror with a secret volume", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}), "", "may not reference secrets"},
		{"mirror with a projected secret", volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{}}},
		}}), "", "may not reference secrets"},
		{"mirror with a token", volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}},
		}}), "", "may not use service account token volume projections"},
		{"mirror with a secret variable", mirrorPod(func(s *corev1.PodSpec) {
			s.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}}
		}), "", "may not reference secrets"},
		{"mirror with a secret's variables", mirrorPod(func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
		}), "", "may not reference secrets"},
		{"mirror with a config map", volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), "", ""},
	} {
		err := admitPod(t, plugin, &c.pod, "")
		if apierrors.IsForbidden(err) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) || c.pod.Spec.ServiceAccountName != c.want {
			t.Errorf("%s: %q, %v", c.name, c.pod.Spec.ServiceAccountName, err)
		}
		if err == nil && c.pod.Spec.DeprecatedServiceAccount != c.want {
			t.Errorf("%s: old name %q", c.name, c.pod.Spec.DeprecatedServiceAccount)
		}
	}
	var sub corev1.Pod
	if err := admitPod(t, plugin, &sub, "status"); err != nil || sub.Spec.ServiceAccountName != "" {
		t.Errorf("a subresource was changed: %v", err)
	}
}

// TestDefaultAccountIsAwaited: a pod may come right after its namespace.
func TestDefaultAccountIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin, client := accounts(false)
		made := make(chan error, 1)
		go func() {
			time.Sleep(500 * time.Millisecond)
			_, err := client.CoreV1().ServiceAccounts("ns").Create(t.Context(), account("default", nil), metav1.CreateOptions{})
			made <- err
		}()
		began := time.Now()
		if err := admitPod(t, plugin, &corev1.Pod{}, ""); err != nil || time.Since(began) > 800*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		if err := admitPod(t, plugin, &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "gone"}}, ""); !apierrors.IsForbidden(err) || time.Since(began) > 0 {
			t.Errorf("another account, after %v: %v", time.Since(began), err)
		}
		empty, _ := accounts(false)
		began = time.Now()
		if err := admitPod(t, empty, &corev1.Pod{}, ""); !apierrors.IsForbidden(err) || time.Since(began) > 2*time.Second {
			t.Errorf("none, after %v: %v", time.Since(began), err)
		}
	})
}

func TestAutomount(t *testing.T) {
	no := func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = ptr.To(false) }
	for _, c := range []struct {
		name    string
		mount   bool
		account func(*corev1.ServiceAccount)
		pod     *bool
		want    bool
	}{
		{"by default", true, nil, nil, true},
		{"no tokens here", false, nil, nil, false},
		{"the account declines", true, no, nil, false},
		{"the pod declines", true, nil, ptr.To(false), false},
		{"the pod overrules", true, no, ptr.To(true), true},
	} {
		plugin, _ := accounts(c.mount, account("default", c.account))
		pod := corev1.Pod{Spec: corev1.PodSpec{AutomountServiceAccountToken: c.pod, Containers: []corev1.Container{{Name: "c"}}}}
		if err := admitPod(t, plugin, &pod, ""); err != nil || len(pod.Spec.Volumes) == 1 != c.want || len(pod.Spec.Containers[0].VolumeMounts) == 1 != c.want {
			t.Errorf("%s: %v, %+v", c.name, err, pod.Spec)
		}
	}
}

func TestTokenVolume(t *testing.T) {
	plugin, _ := accounts(true, account("default", func(a *corev1.ServiceAccount) {
		a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	}))
	own := corev1.VolumeMount{Name: "own", MountPath: tokenPath}
	pod := corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}},
		Containers:     []corev1.Container{{Name: "a"}, {Name: "b", VolumeMounts: []corev1.VolumeMount{own}}},
	}}
	if err := admitPod(t, plugin, &pod, ""); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.Volumes) != 1 || !strings.HasPrefix(pod.Spec.Volumes[0].Name, "kube-api-access-") || len(pod.Spec.Volumes[0].Name) != len("kube-api-access-")+5 {
		t.Fatalf("volumes %+v", pod.Spec.Volumes)
	}
	v := pod.Spec.Volumes[0].Projected
	if *v.DefaultMode != 0o644 || len(v.Sources) != 3 || *v.Sources[0].ServiceAccountToken != (corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: v.Sources[0].ServiceAccountToken.ExpirationSeconds}) ||
		*v.Sources[0].ServiceAccountToken.ExpirationSeconds != 3607 || v.Sources[1].ConfigMap.Name != "kube-root-ca.crt" || v.Sources[2].DownwardAPI.Items[0].FieldRef.FieldPath != "metadata.namespace" {
		t.Errorf("got %+v", v)
	}
	want := []corev1.VolumeMount{{Name: pod.Spec.Volumes[0].Name, ReadOnly: true, MountPath: tokenPath}}
	if !sameMounts(pod.Spec.InitContainers[0].VolumeMounts, want) || !sameMounts(pod.Spec.Containers[0].VolumeMounts, want) {
		t.Errorf("mounts %+v, %+v", pod.Spec.InitContainers[0].VolumeMounts, pod.Spec.Containers[0].VolumeMounts)
	}
	if !sameMounts(pod.Spec.Containers[1].VolumeMounts, []corev1.VolumeMount{own}) {
		t.Errorf("a mount of its own was not respected: %+v", pod.Spec.Containers[1].VolumeMounts)
	}
	if len(pod.Spec.ImagePullSecrets) != 1 || pod.Spec.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("pull secrets %v", pod.Spec.ImagePullSecrets)
	}

	// A pod that comes again, as of a copy, has its volume already.
	again := pod.DeepCopy()
	again.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
	again.Spec.Containers = append(again.Spec.Containers, corev1.Container{Name: "new"})
	if err := admitPod(t, plugin, again, ""); err != nil || len(again.Spec.Volumes) != 1 || !sameMounts(again.Spec.Containers[2].VolumeMounts, want) {
		t.Errorf("again: %v, %+v", err, again.Spec)
	}
	if again.Spec.ImagePullSecrets[0].Name != "mine" {
		t.Errorf("pull secrets of the pod were replaced: %v", again.Spec.ImagePullSecrets)
	}
	// One whose containers all bring their own needs none.
	full := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "b", VolumeMounts: []corev1.VolumeMount{own}}}}}
	if err := admitPod(t, plugin, &full, ""); err != nil || len(full.Spec.Volumes) != 0 {
		t.Errorf("needless volume: %v, %+v", err, full.Spec.Volumes)
	}
}

func sameMounts(a, b []corev1.VolumeMount) bool { return equality.Semantic.DeepEqual(a, b) }
