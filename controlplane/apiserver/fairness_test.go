package apiserver_test

// Who waits behind whom, and the objects that say so.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// stuck is an admission plugin that keeps the creation of ConfigMaps whose name
// begins with stuck- until it is let go.
type stuck struct{ release chan struct{} }

func (stuck) Handles(op admission.Operation) bool { return op == admission.Create }

func (s stuck) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Resource != "configmaps" || !strings.HasPrefix(a.GetName(), "stuck-") {
		return nil
	}
	select {
	case <-s.release:
	case <-ctx.Done():
	}
	return nil
}

// until asks check again and again until it returns true.
func until(t *testing.T, what string, check func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !check() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("still not: %s", what)
		}
	}
}

// queued is how many requests wait for a priority level.
func (i *instance) queued(t *testing.T, level string) int {
	t.Helper()
	body := must(i.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	sum := 0
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "apiserver_flowcontrol_current_inqueue_requests{") || !strings.Contains(line, fmt.Sprintf("priority_level=%q", level)) {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):]))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += n
	}
	return sum
}

// However many slow requests of all others there are, heartbeats of nodes, leader
// elections and the administrator do not wait for them.
func TestHeartbeatsDoNotWait(t *testing.T) {
	t.Parallel()
	gate := stuck{make(chan struct{})}
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = 4, 4
		c.Admission = []admission.Interface{gate}
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	client := func(name string, groups ...string) *kubernetes.Clientset {
		return must(kubernetes.NewForConfig(as(in.config, name, append(groups, "testers")...)))(t)
	}
	node, scheduler := client("system:node:n", "system:nodes"), client("system:kube-scheduler")
	renew := func(c *kubernetes.Clientset, ns, name string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lease := must(c.CoordinationV1().Leases(ns).Get(ctx, name, metav1.GetOptions{}))(t)
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		must(c.CoordinationV1().Leases(ns).Update(ctx, lease, metav1.UpdateOptions{}))(t)
	}
	for ns, c := range map[string]*kubernetes.Clientset{corev1.NamespaceNodeLease: node, metav1.NamespaceSystem: scheduler} {
		must(c.CoordinationV1().Leases(ns).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}, metav1.CreateOptions{}))(t)
	}
	var others sync.WaitGroup
	defer others.Wait()
	letGo := sync.OnceFunc(func() { close(gate.release) })
	defer letGo()
	for level, c := range map[string]*kubernetes.Clientset{
		"global-default": client("somebody"), "node-bootstrap": client("system:bootstrap:abcdef", "system:bootstrappers"), "system": client("system:node:m", "system:nodes"),
		"workload-high": client("system:kube-controller-manager"),
		"workload-low":  client("system:serviceaccount:default:default", "system:serviceaccounts"),
	} {
		for i := range 16 {
			others.Go(func() {
				name := fmt.Sprintf("stuck-%s-%d", level, i)
				_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err != nil && !apierrors.IsTimeout(err) && !apierrors.IsTooManyRequests(err) { // it is kept for long on a busy machine
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		until(t, "requests of "+level+" wait", func() bool { return in.queued(t, level) > 0 })
	}
	for range 10 {
		renew(node, corev1.NamespaceNodeLease, "l")
		renew(scheduler, metav1.NamespaceSystem, "l")
	}
	if _, err := in.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the administrator: %v", err)
	}
	letGo()
	others.Wait()
}

// What every cluster has of flow control comes back when it is deleted or bent,
// unless a user has taken it over.
func TestFlowControlIsKept(t *testing.T) {
	flow := shared.client.FlowcontrolV1()
	schema := func(name string) *flowcontrolv1.FlowSchema {
		t.Helper()
		return must(flow.FlowSchemas().Get(t.Context(), name, metav1.GetOptions{}))(t)
	}
	for _, name := range []string{"catch-all", "system-node-high", "system-bootstrappers"} {
		if err := flow.FlowSchemas().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, name+" is back", func() bool {
			_, err := flow.FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	patch := func(name, text string) error {
		_, err := flow.FlowSchemas().Patch(t.Context(), name, "application/merge-patch+json", []byte(text), metav1.PatchOptions{})
		return err
	}
	if err := patch("catch-all", `{"spec":{"matchingPrecedence":9999}}`); !apierrors.IsInvalid(err) {
		t.Errorf("change of a mandatory one: %v", err)
	}
	if err := patch("service-accounts", `{"spec":{"matchingPrecedence":7000}}`); err != nil {
		t.Fatal(err)
	}
	until(t, "the suggested one is as suggested", func() bool { return schema("service-accounts").Spec.MatchingPrecedence == 9000 })
	taken := `{"metadata":{"annotations":{"` + flowcontrolv1.AutoUpdateAnnotationKey + `":"false"}},"spec":{"matchingPrecedence":7000}}`
	if err := patch("service-accounts", taken); err != nil {
		t.Fatal(err)
	}
	// Another deletion makes the server look at all of them.
	if err := flow.PriorityLevelConfigurations().Delete(t.Context(), "workload-low", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the level is back", func() bool {
		_, err := flow.PriorityLevelConfigurations().Get(t.Context(), "workload-low", metav1.GetOptions{})
		return err == nil
	})
	if got := schema("service-accounts").Spec.MatchingPrecedence; got != 7000 {
		t.Errorf("the one that was taken over has precedence %d", got)
	}
	if err := patch("service-accounts", `{"metadata":{"annotations":{"`+flowcontrolv1.AutoUpdateAnnotationKey+`":"true"}}}`); err != nil {
		t.Fatal(err)
	}
	until(t, "given back", func() bool { return schema("service-accounts").Spec.MatchingPrecedence == 9000 })
	until(t, "its status is written", func() bool {
		c := schema("service-accounts").Status.Conditions
		return len(c) == 1 && c[0].Type == flowcontrolv1.FlowSchemaConditionDangling && c[0].Status == flowcontrolv1.ConditionFalse
	})
}
