package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime"
)

func TestEnvironment(t *testing.T) {
	api := fake.NewSimpleClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: map[string]string{"k": "v", "A": "from cm", "with-dash": "x", "=": "bad"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"pw": []byte("hush")}},
	)
	objects := newInputs(newObjects(apiclienttest.From(api), time.Minute), "", nil)
	cm := corev1.LocalObjectReference{Name: "cm"}
	none := corev1.LocalObjectReference{Name: "none"}
	pod := newPod("p", nil)
	for _, tt := range []struct {
		name string
		env  []corev1.EnvVar
		from []corev1.EnvFromSource
		want string // sorted
		err  string
	}{
		{"values", []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)2"}, {Name: "C", Value: "$(D)"}, {Name: "D", Value: "x"}}, nil, "A=1 B=12 C=$(D) D=x", ""},
		{"later ones replace", []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "$(A)$(A)"}}, nil, "A=11", ""},
		{"from all of a configMap", nil, []corev1.EnvFromSource{{Prefix: "P_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: cm}}}, "P_A=from cm P_k=v P_with-dash=x", ""},
		{"env replaces envFrom", []corev1.EnvVar{{Name: "A", Value: "1"}}, []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: cm}}}, "A=1 k=v with-dash=x", ""},
		{"from all of a secret", nil, []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}, "pw=hush", ""},
		{"key of a configMap", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: cm, Key: "k"}}}}, nil, "A=v", ""},
		{"missing key", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: cm, Key: "z"}}}}, nil, "", "couldn't find key z in ConfigMap default/cm"},
		{"optional key", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: cm, Key: "z", Optional: ptr.To(true)}}}}, nil, "", ""},
		{"missing secret", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: none, Key: "z"}}}}, nil, "", `secret "none" not found`},
		{"optional secret", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: none, Key: "z", Optional: ptr.To(true)}}}}, nil, "", ""},
		{"missing secret key", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "z"}}}}, nil, "", "couldn't find key z in Secret default/s"},
		{"optional configMap", nil, []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: none, Optional: ptr.To(true)}}}, "", ""},
		{"field", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}, nil, "A=p", ""},
		{"bad field", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "x"}}}}, nil, "", "unsupported field path"},
		{"no source", []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}, nil, "", "names no source"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]string{}
			err := environment(t.Context(), objects, nil, pod, &corev1.Container{Name: "main", Env: tt.env, EnvFrom: tt.from}, downward.Facts{}, newVariables(got))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if s := strings.Join(flat(got), " "); err != nil || s != tt.want {
				t.Errorf("environment %q, %v; want %q", s, err, tt.want)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for _, tt := range []struct {
		name      string
		pod       *corev1.PodSecurityContext
		container *corev1.SecurityContext
		want      string // uid gid groups
		err       string
	}{
		{"nothing", nil, nil, "- - []", ""},
		{"of the pod", &corev1.PodSecurityContext{RunAsUser: id(1), RunAsGroup: id(2), FSGroup: id(3), SupplementalGroups: []int64{4}}, nil, "1 2 [4 3]", ""},
		{"of the container", &corev1.PodSecurityContext{RunAsUser: id(1)}, &corev1.SecurityContext{RunAsUser: id(5), RunAsGroup: id(6)}, "5 6 []", ""},
		{"not root, and is not", nil, &corev1.SecurityContext{RunAsUser: id(5), RunAsNonRoot: ptr.To(true)}, "5 - []", ""},
		{"not root, and is", &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}, &corev1.SecurityContext{RunAsUser: id(0)}, "", "breaks non-root policy"},
		{"the container may be root", &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}, &corev1.SecurityContext{RunAsUser: id(0), RunAsNonRoot: ptr.To(false)}, "0 - []", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out runtime.Container
			pod := newPod("p", func(p *corev1.Pod) { p.Spec.SecurityContext = tt.pod })
			err := identity(pod, &corev1.Container{Name: "c", SecurityContext: tt.container}, &out, 0, 0)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			show := func(n *int64) string {
				if n == nil {
					return "-"
				}
				return fmt.Sprint(*n)
			}
			if got := fmt.Sprintf("%s %s %v", show(out.UID), show(out.GID), out.Groups); err != nil || got != tt.want {
				t.Errorf("identity %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

// TestNotRoot: a container that must not run as root, and names no user, runs as the agent's.
func TestNotRoot(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, tt := range map[string]struct {
		context  corev1.SecurityContext
		uid, gid int64
		euid     int
		err      bool
	}{
		"agent's":       {corev1.SecurityContext{}, 1000, 1001, 1000, false},
		"group":         {corev1.SecurityContext{RunAsGroup: id(7)}, 1000, 7, 1000, false},
		"agent is root": {corev1.SecurityContext{}, 0, 0, 0, true},
		"asks for root": {corev1.SecurityContext{RunAsUser: id(0)}, 0, 0, 1000, true},
	} {
		var out runtime.Container
		tt.context.RunAsNonRoot = ptr.To(true)
		err := identity(newPod("p", nil), &corev1.Container{Name: "c", SecurityContext: &tt.context}, &out, tt.euid, 1001)
		if tt.err != (err != nil) || err == nil && (ptr.Deref(out.UID, -1) != tt.uid || ptr.Deref(out.GID, -1) != tt.gid) {
			t.Errorf("%s: user %v, group %v, %v", name, ptr.Deref(out.UID, -1), ptr.Deref(out.GID, -1), err)
		}
	}
}

func TestResourcesOf(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l["cpu"] = resource.MustParse(cpu)
		}
		if memory != "" {
			l["memory"] = resource.MustParse(memory)
		}
		return l
	}
	for _, tt := range []struct {
		limits, requests corev1.ResourceList
		want             runtime.Resources
	}{
		{nil, nil, runtime.Resources{CPUShares: 2}},
		{list("500m", "1Mi"), nil, runtime.Resources{MemoryBytes: 1 << 20, CPUMilli: 500, CPUShares: 512}},
		{list("2", ""), list("250m", "1Mi"), runtime.Resources{CPUMilli: 2000, CPUShares: 256}},
		{nil, list("1m", ""), runtime.Resources{CPUShares: 2}},
	} {
		c := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: tt.limits, Requests: tt.requests}}
		if got := resourcesOf(c); got != tt.want {
			t.Errorf("resourcesOf(%v): %+v, want %+v", c.Resources, got, tt.want)
		}
	}
}

func TestObjectsCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int32
		var fail atomic.Pointer[error]
		api := fake.NewSimpleClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
		api.PrependReactor("*", "*", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
			gets.Add(1)
			if err := fail.Load(); err != nil {
				return true, nil, *err
			}
			if a.GetSubresource() == "token" {
				return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{
					Token: fmt.Sprint("token ", gets.Load()), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
				}}, nil
			}
			return false, nil, nil
		})
		o := newObjects(apiclienttest.From(api), time.Minute)
		want := func(n int32, what string) {
			t.Helper()
			if got := gets.Load(); got != n {
				t.Errorf("%d calls %s, want %d", got, what, n)
			}
		}
		secret := func() error { _, err := o.Secret(t.Context(), "ns", "s", nil, time.Time{}); return err }
		if err := errors.Join(secret(), secret()); err != nil {
			t.Error(err)
		}
		want(1, "for two reads")
		advance(61 * time.Second)
		if err := secret(); err != nil {
			t.Error(err)
		}
		want(2, "after its time")
		for _, gone := range []error{
			apierrors.NewInternalError(errors.New("etcd")), apierrors.NewServiceUnavailable("starting"), errors.New("connection refused"),
		} {
			fail.Store(&gone)
			advance(time.Hour)
			if err := secret(); err != nil {
				t.Errorf("offline, %v: %v", gone, err)
			}
		}
		forbidden := error(apierrors.NewForbidden(corev1.Resource("secrets"), "s", nil))
		fail.Store(&forbidden)
		advance(time.Hour)
		if err := secret(); !apierrors.IsForbidden(err) {
			t.Errorf("a secret that may not be read: %v", err)
		}
		gone := errors.New("connection refused")
		fail.Store(&gone)
		if err := secret(); err != nil {
			t.Errorf("offline: %v", err)
		}
		if _, err := o.Secret(t.Context(), "ns", "other", nil, time.Time{}); err == nil {
			t.Error("an unknown secret is read offline")
		}
		quiet := gets.Load()
		if err := secret(); err != nil {
			t.Errorf("offline again: %v", err)
		}
		want(quiet, "while the server is known not to answer")
		fail.Store(nil)
		advance(61 * time.Second)
		if err := api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "ns", "s"); err != nil {
			t.Fatal(err)
		}
		if err := secret(); err == nil || err.Error() != `secret "s" not found` {
			t.Errorf("a deleted secret: %v", err)
		}
		pod := newPod("p", nil)
		p := &corev1.ServiceAccountTokenProjection{Audience: "x"}
		first, err := o.Token(t.Context(), pod, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		advance(42*time.Minute - time.Second)
		if again, err := o.Token(t.Context(), pod, p, nil); err != nil || again != first {
			t.Errorf("token %q, %v; want %q for seven tenths of its life", again, err, first)
		}
		advance(6*time.Minute + 2*time.Second)
		if again, err := o.Token(t.Context(), pod, p, nil); err != nil || again == first {
			t.Errorf("token %q, %v; want another", again, err)
		}
		fail.Store(&gone)
		advance(2 * time.Hour)
		if old, err := o.Token(t.Context(), pod, p, nil); err != nil || old == "" {
			t.Errorf("token %q, %v offline; want the one that has expired", old, err)
		}
		fail.Store(nil)
		o.forget(pod.UID, 24*time.Hour)
		for key := range o.cache {
			if key.kind == "token" {
				t.Errorf("%+v is kept after its pod", key)
			}
		}
		o.forget("x", 0)
		if len(o.cache) != 0 {
			t.Errorf("cache has %v", slices.Collect(maps.Keys(o.cache)))
		}
	})
}

// TestRootsAreReadSeldom: the ConfigMap that each pod has in a volume is not read each minute,
// except while it is missing.
func TestRootsAreReadSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int32
		api := fake.NewSimpleClientset()
		api.PrependReactor("get", "*", func(k8stesting.Action) (bool, apiruntime.Object, error) { gets.Add(1); return false, nil, nil })
		o := newObjects(apiclienttest.From(api), time.Minute)
		for range 2 {
			if _, err := o.ConfigMap(t.Context(), "ns", rootsName, nil, time.Time{}); !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		if got := gets.Load(); got != 2 {
			t.Errorf("%d reads of what is missing, want 2", got)
		}
		if err := api.Tracker().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: rootsName}}); err != nil {
			t.Fatal(err)
		}
		gets.Store(0)
		for range 24 * 60 {
			if _, err := o.ConfigMap(t.Context(), "ns", rootsName, nil, time.Time{}); err != nil {
				t.Fatal(err)
			}
			advance(time.Minute)
		}
		if got := gets.Load(); got < 24 || got > 48 {
			t.Errorf("%d reads in a day, want one an hour or half an hour", got)
		}
	})
}

// TestUnaskedToken: only the token that admission mounts by itself may be left out.
func TestUnaskedToken(t *testing.T) {
	const place = "/var/run/secrets/kubernetes.io/serviceaccount"
	automounted := func(change func(*corev1.Pod)) *corev1.Pod {
		p := newPod("p", nil)
		p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kube-api-access-abcde", MountPath: place}}
		if change != nil {
			change(p)
		}
		return p
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"by admission": {automounted(nil), true},
		"asked for":    {automounted(func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(true) }), false},
		"elsewhere":    {automounted(func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].MountPath = "/token" }), false},
		"of a secret": {automounted(func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
		}), false},
		"of its own name": {automounted(func(p *corev1.Pod) {
			p.Spec.Volumes[0].Name, p.Spec.Containers[0].VolumeMounts[0].Name = "mine", "mine"
		}), false},
	} {
		if got := unasked(tt.pod, &tt.pod.Spec.Containers[0].VolumeMounts[0]); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestListerCoalesces: a hundred calls at the same time cause two listings, and each call gets
// one that started after it.
func TestListerCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began atomic.Int32
		l := lister{list: func(context.Context) ([]runtime.ContainerStatus, error) {
			n := began.Add(1)
			<-time.After(time.Second)
			return []runtime.ContainerStatus{{Pod: runtime.PodID{UID: "u"}, Name: "c", Attempt: int(n)}}, nil
		}}
		results := make(chan int, 101)
		ask := func() {
			m, err := l.get(t.Context())
			if err != nil {
				t.Error(err)
				results <- 0
				return
			}
			results <- m["u"][0].Attempt
		}
		go ask()
		advance(500 * time.Millisecond)
		for range 100 {
			go ask()
		}
		if first := <-results; first != 1 {
			t.Errorf("first result %d", first)
		}
		for range 100 {
			if n := <-results; n != 2 {
				t.Errorf("result %d, want one of the listing after the question", n)
			}
		}
		if began.Load() != 2 {
			t.Errorf("%d listings", began.Load())
		}
	})
}

// FuzzLogText: a message has no more than its bound of any log, and nothing that the log has not.
func FuzzLogText(f *testing.F) {
	f.Add("2026-01-01T00:00:00Z stdout F text\n2026-01-01T00:00:00Z stdout P te\n")
	f.Fuzz(func(t *testing.T, s string) {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := lastText(t.Context(), path)
		if err != nil || len(text) > min(len(s), maxTerminationLog) {
			t.Errorf("%d bytes out of %d, %v", len(text), len(s), err)
		}
	})
}

func TestMerged(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	old := metav1.NewTime(time.Unix(10, 0))
	api := &corev1.PodStatus{Phase: corev1.PodSucceeded, QOSClass: corev1.PodQOSBurstable, StartTime: &old, Conditions: []corev1.PodCondition{
		{Type: "example.com/gate", Status: "True"},
		{Type: corev1.PodReady, Status: "False", LastTransitionTime: metav1.NewTime(time.Unix(500, 0))},
		{Type: corev1.PodInitialized, Status: "True", LastTransitionTime: old},
	}}
	ours := &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: "True", LastTransitionTime: old},
		{Type: corev1.PodInitialized, Status: "True", LastTransitionTime: now},
	}}
	got := merged(api, ours, now)
	if got.Phase != corev1.PodSucceeded || got.QOSClass != corev1.PodQOSBurstable || !got.StartTime.Equal(&old) || len(got.Conditions) != 3 {
		t.Errorf("merged %+v", got)
	}
	if c := conditionOf(got.Conditions, corev1.PodReady); c.Status != "True" || !c.LastTransitionTime.Equal(&now) {
		t.Errorf("a condition that changes back: %+v", c)
	}
	if c := conditionOf(got.Conditions, corev1.PodInitialized); !c.LastTransitionTime.Equal(&old) {
		t.Errorf("a condition that stays: %+v", c)
	}
}

func TestReadinessGates(t *testing.T) {
	pod := newPod("p", func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/a"}, {ConditionType: "example.com/b"}}
	})
	for _, tt := range []struct {
		conditions []corev1.PodCondition
		want       string
	}{
		{nil, `corresponding condition of pod readiness gate "example.com/a" does not exist.`},
		{[]corev1.PodCondition{{Type: "example.com/a", Status: "True"}, {Type: "example.com/b", Status: "False"}}, `the status of pod readiness gate "example.com/b" is not "True", but False`},
		{[]corev1.PodCondition{{Type: "example.com/a", Status: "True"}, {Type: "example.com/b", Status: "True"}}, ""},
	} {
		if got := closedGates(pod, tt.conditions); !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("closed gates %q, want %q", got, tt.want)
		}
	}
}
