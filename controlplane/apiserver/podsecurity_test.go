package apiserver_test

import (
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// warnings are the Warning headers that a client got.
type warnings struct {
	mu  sync.Mutex
	got []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, text)
}

// take returns what came since it was last called.
func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.got, "\n")
	w.got = nil
	return all
}

// warned is an administrator's client that keeps its warnings.
func warned(t *testing.T, in *instance) (kubernetes.Interface, *warnings) {
	t.Helper()
	w := &warnings{}
	c := rest.CopyConfig(in.config)
	c.WarningHandler = w
	return must(kubernetes.NewForConfig(c))(t), w
}

func TestPodSecurity(t *testing.T) {
	client, got := warned(t, shared)
	ctx := t.Context()
	label := func(ns string, labels map[string]string) {
		t.Helper()
		old := must(client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}))(t)
		old.Labels = labels
		must(client.CoreV1().Namespaces().Update(ctx, old, metav1.UpdateOptions{}))(t)
	}
	root := pod("root")
	root.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	free := namespace(t)
	must(client.CoreV1().Pods(free).Create(ctx, root, metav1.CreateOptions{}))(t)
	if w := got.take(); w != "" {
		t.Errorf("without labels there are warnings: %s", w)
	}
	// A stricter standard is told what is there already.
	label(free, map[string]string{"pod-security.kubernetes.io/enforce": "baseline"})
	if w := got.take(); !strings.Contains(w, `"baseline:latest"`) || !strings.Contains(w, "root: privileged") {
		t.Errorf("warnings: %q", w)
	}
	another := root.DeepCopy()
	another.Name = "another"
	_, err := client.CoreV1().Pods(free).Create(ctx, another, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), `pods "another" is forbidden: violates PodSecurity "baseline:latest": privileged`) {
		t.Errorf("%v", err)
	}
	must(client.CoreV1().Pods(free).Create(ctx, pod("tame"), metav1.CreateOptions{}))(t)
	// What makes pods is not refused, but warned of.
	strict := namespace(t)
	label(strict, map[string]string{"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/warn-version": "v1.37"})
	got.take()
	app := map[string]string{"app": "a"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: app},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: root.Spec},
	}}
	must(client.AppsV1().Deployments(strict).Create(ctx, deployment, metav1.CreateOptions{}))(t)
	if w := got.take(); !strings.Contains(w, `would violate PodSecurity "restricted:v1.37"`) {
		t.Errorf("warnings: %q", w)
	}
	// A label that says nothing is refused.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mislabelled", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "lax"}}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `"lax"`) {
		t.Errorf("%v", err)
	}
}
