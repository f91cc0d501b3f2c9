package controlplane

// A test of the workload controllers against a real API server: an authority that is
// published, replicas that scale, a budget that refuses and grants evictions, a Job
// that completes.

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

const workNamespace = "default"

// workload is a cluster with objects in workNamespace; it plays their nodes.
type workload struct{ *cluster }

// pods returns the pods with a label that are not being deleted.
func (c workload) pods(label string) []corev1.Pod {
	c.t.Helper()
	list, err := c.admin.CoreV1().Pods(workNamespace).List(c.t.Context(), metav1.ListOptions{LabelSelector: label})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// becomes waits until what f says is want.
func (c workload) becomes(want string, f func() string) {
	c.t.Helper()
	deadline, last := time.After(2*patience), ""
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if last = f(); last == want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("still %q, want %q", last, want)
		}
	}
}

// phase makes a pod say how it is.
func (c workload) phase(name string, phase corev1.PodPhase, ready corev1.ConditionStatus) {
	c.t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := c.admin.CoreV1().Pods(workNamespace).Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Status.Phase = phase
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
		_, err = c.admin.CoreV1().Pods(workNamespace).UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

func podTemplate(labels map[string]string, restart corev1.RestartPolicy) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		// A node of that name keeps the scheduler out of this.
		Spec: corev1.PodSpec{NodeName: "elsewhere", RestartPolicy: restart, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

func TestWorkloads(t *testing.T) {
	c := workload{startCluster(t)}
	// Pods of a node that does not exist would be collected.
	if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Run("authority", c.authority)
	t.Run("replicas", c.replicas)
	t.Run("budget", c.budget)
	t.Run("job", c.job)
	t.Run("services", c.services)
	t.Run("mirror", c.mirror)
	for _, name := range []string{"serviceaccount-controller", "root-ca-certificate-publisher-controller", "replicaset-controller", "disruption-controller", "job-controller", "endpointslice-controller", "endpoints-controller", "endpointslice-mirroring-controller"} {
		if !c.writers.wrote(name) {
			t.Errorf("nothing was written by %s", name)
		}
	}
}

// authority: a namespace says by whom the API server is known.
func (c workload) authority(t *testing.T) {
	want, err := os.ReadFile(c.ca)
	if err != nil {
		t.Fatal(err)
	}
	c.becomes(string(want), func() string {
		m, err := c.admin.CoreV1().ConfigMaps(workNamespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return m.Data["ca.crt"]
	})
}

func (c workload) set() *appsv1.ReplicaSet {
	rs, err := c.admin.AppsV1().ReplicaSets(workNamespace).Get(c.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return rs
}

func (c workload) replicas(t *testing.T) {
	ctx, sets, match := t.Context(), c.admin.AppsV1().ReplicaSets(workNamespace), map[string]string{"app": "web"}
	_, err := sets.Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: match}, Template: podTemplate(match, corev1.RestartPolicyAlways),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := func() string {
		s := c.set().Status
		return fmt.Sprintf("%d pods, %d, %d ready, gen %d", len(c.pods("app=web")), s.Replicas, s.ReadyReplicas, s.ObservedGeneration)
	}
	c.becomes("2 pods, 2, 0 ready, gen 1", has)
	scale, err := sets.GetScale(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 3
	if _, err = sets.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	// Whoever scales what has changed in the meantime is told so.
	scale.ResourceVersion = "1"
	if _, err = sets.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("scaled in an old version: %v", err)
	}
	scale.ResourceVersion = "" // and who does not care, scales
	if _, err = sets.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("3 pods, 3, 0 ready, gen 2", has)
	for _, p := range c.pods("app=web") {
		c.phase(p.Name, corev1.PodRunning, corev1.ConditionTrue)
	}
	c.becomes("3 pods, 3, 3 ready, gen 2", has)
}

// budget evicts until it may not, and again when replacements are ready.
func (c workload) budget(t *testing.T) {
	ctx, budgets := t.Context(), c.admin.PolicyV1().PodDisruptionBudgets(workNamespace)
	_, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sums := func() string {
		b, err := budgets.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d of %d healthy, %d allowed", b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.DisruptionsAllowed)
	}
	c.becomes("3 of 2 healthy, 1 allowed", sums)
	pods := c.pods("app=web")
	evict := func(name string) error {
		return c.admin.CoreV1().Pods(workNamespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if err := evict(pods[0].Name); err != nil {
		t.Fatalf("the first one: %v", err)
	}
	if err := evict(pods[1].Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second one at once: %v", err)
	}
	// The evicted one is on a node that does not answer: it stays and is replaced.
	names := []string{pods[0].Name, pods[1].Name, pods[2].Name}
	c.becomes("3 active", func() string { return fmt.Sprint(len(c.pods("app=web")), " active") })
	for _, p := range c.pods("app=web") {
		if !slices.Contains(names, p.Name) {
			c.phase(p.Name, corev1.PodRunning, corev1.ConditionTrue)
		}
	}
	c.becomes("3 of 2 healthy, 1 allowed", sums)
	if err := evict(pods[1].Name); err != nil {
		t.Errorf("the second one after a while: %v", err)
	}
}

func (c workload) job(t *testing.T) {
	ctx, jobs := t.Context(), c.admin.BatchV1().Jobs(workNamespace)
	_, err := jobs.Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "sum"},
		Spec:       batchv1.JobSpec{Completions: ptr.To[int32](3), Parallelism: ptr.To[int32](2), Template: podTemplate(nil, corev1.RestartPolicyNever)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		c.becomes(fmt.Sprintf("%d active, %d succeeded", min(2, 3-n), n), func() string {
			j, err := jobs.Get(ctx, "sum", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%d active, %d succeeded", j.Status.Active, j.Status.Succeeded)
		})
		pods := slices.DeleteFunc(c.pods("batch.kubernetes.io/job-name=sum"), func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
		if len(pods) != min(2, 3-n) {
			t.Fatalf("%d have succeeded, %d run", n, len(pods))
		}
		c.phase(pods[0].Name, corev1.PodSucceeded, corev1.ConditionFalse)
	}
	c.becomes("SuccessCriteriaMet Complete, 3 succeeded", func() string {
		j, err := jobs.Get(ctx, "sum", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, c := range j.Status.Conditions {
			if out != "" {
				out += " "
			}
			out += string(c.Type)
		}
		return fmt.Sprintf("%s, %d succeeded", out, j.Status.Succeeded)
	})
	for _, p := range c.pods("batch.kubernetes.io/job-name=sum") {
		if len(p.Finalizers) != 0 {
			t.Errorf("%s is held by %v", p.Name, p.Finalizers)
		}
	}
}

// services: where a Service leads follows its pods.
// leads is where a Service leads, if that is one address.
func (c workload) leads(service string) string {
	list, err := c.admin.DiscoveryV1().EndpointSlices(workNamespace).List(c.t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil || len(list.Items) != 1 || len(list.Items[0].Endpoints) != 1 {
		return fmt.Sprint(len(list.Items), " slices, ", err)
	}
	return fmt.Sprintf("%s:%d", list.Items[0].Endpoints[0].Addresses[0], *list.Items[0].Ports[0].Port)
}

// mirror: a Service without a selector leads where its Endpoints say.
func (c workload) mirror(t *testing.T) {
	const name = "outside"
	meta, services, endpoints := metav1.ObjectMeta{Name: name}, c.admin.CoreV1().Services(workNamespace), c.admin.CoreV1().Endpoints(workNamespace)
	if _, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := endpoints.Create(t.Context(), &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // people write it still
		Addresses: []corev1.EndpointAddress{{IP: "192.0.2.7"}}, Ports: []corev1.EndpointPort{{Port: 8443}},
	}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.becomes("192.0.2.7:8443", func() string { return c.leads(name) })
	if err := endpoints.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("0 slices, <nil>", func() string { return c.leads(name) })
}

func (c workload) services(t *testing.T) {
	ctx, match := t.Context(), map[string]string{"app": "served"}
	_, err := c.admin.CoreV1().Services(workNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "served"},
		Spec:       corev1.ServiceSpec{Selector: match, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	template := podTemplate(match, corev1.RestartPolicyAlways)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "served", Labels: match}, Spec: template.Spec}
	if p, err = c.admin.CoreV1().Pods(workNamespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Status.Phase, p.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "10.1.2.3"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if _, err = c.admin.CoreV1().Pods(workNamespace).UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("10.1.2.3:8080", func() string { return c.leads("served") })
	c.becomes("10.1.2.3:8080", func() string {
		e, err := c.admin.CoreV1().Endpoints(workNamespace).Get(ctx, "served", metav1.GetOptions{})
		if err != nil || len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != 1 {
			return fmt.Sprint(e.Subsets, err)
		}
		return fmt.Sprintf("%s:%d", e.Subsets[0].Addresses[0].IP, e.Subsets[0].Ports[0].Port)
	})
	if err := c.admin.CoreV1().Services(workNamespace).Delete(ctx, "served", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("NotFound", func() string {
		_, err := c.admin.CoreV1().Endpoints(workNamespace).Get(ctx, "served", metav1.GetOptions{})
		return string(apierrors.ReasonForError(err))
	})
}
