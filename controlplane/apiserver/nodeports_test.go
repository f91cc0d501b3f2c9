// Node ports of services, the range of their addresses, and conditions that others write.

package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestNodePorts: a port keeps its node port by its name, ports of one number share one, and
// one that is named is taken also by a service that is given none.
func TestNodePorts(t *testing.T) {
	ctx, services := t.Context(), shared.client.CoreV1().Services(namespace(t))
	create := func(name string, spec corev1.ServiceSpec) (*corev1.Service, error) {
		return services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	}
	a := must(create("a", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}))(t)
	had := a.Spec.Ports[0].NodePort
	a.Spec.Ports = []corev1.ServicePort{{Name: "new", Port: 81}, {Name: "http", Port: 8080}}
	a = must(services.Update(ctx, a, metav1.UpdateOptions{}))(t)
	if p := a.Spec.Ports; p[1].NodePort != had || p[0].NodePort == had || p[0].NodePort == 0 {
		t.Errorf("had %d, and now %+v", had, p)
	}
	a.Spec.Ports = []corev1.ServicePort{{Name: "new", Port: 81, NodePort: had}, {Name: "http", Port: 8080}}
	a = must(services.Update(ctx, a, metav1.UpdateOptions{}))(t)
	if p := a.Spec.Ports; p[0].NodePort != had || p[1].NodePort == had || p[1].NodePort == 0 {
		t.Errorf("%d is asked for, and now %+v", had, p)
	}
	dns := must(create("dns", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{
		{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "other", Port: 54},
	}}))(t)
	if p := dns.Spec.Ports; p[0].NodePort != p[1].NodePort || p[0].NodePort == p[2].NodePort || p[0].NodePort == 0 {
		t.Errorf("two protocols: %+v", p)
	}
	balanced := corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
		Ports: []corev1.ServicePort{{Name: "a", Port: 80, NodePort: had}, {Name: "b", Port: 81}},
	}
	if _, err := create("b", balanced); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("a taken port: %v", err)
	}
	if err := services.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := must(create("b", balanced))(t).Spec.Ports; p[0].NodePort != had || p[1].NodePort != 0 {
		t.Errorf("without allocation: %+v", p)
	}
	_, err := create("c", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: had}}})
	if !apierrors.IsInvalid(err) {
		t.Errorf("the port of a service that is given none: %v", err)
	}
}

// TestServiceConditions: conditions of a service need no times.
func TestServiceConditions(t *testing.T) {
	ctx, services := t.Context(), shared.client.CoreV1().Services(namespace(t))
	s := must(services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}))(t)
	s.Status.Conditions = []metav1.Condition{{Type: "StatusUpdate", Status: metav1.ConditionTrue, Reason: "E2E", Message: "Set by a test"}}
	if got := must(services.UpdateStatus(ctx, s, metav1.UpdateOptions{}))(t).Status.Conditions; len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestServiceRange: there is an object that says where services get their addresses from.
func TestServiceRange(t *testing.T) {
	r := must(shared.client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	if strings.Join(r.Spec.CIDRs, " ") != "10.96.0.0/12" || !meta.IsStatusConditionTrue(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		t.Errorf("%+v", r)
	}
}

// TestPodTemplateGeneration: it counts changes of the template.
func TestPodTemplateGeneration(t *testing.T) {
	ctx, templates := t.Context(), shared.client.CoreV1().PodTemplates(namespace(t))
	p := must(templates.Create(ctx, &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}, metav1.CreateOptions{}))(t)
	for want, change := range []func(){1: func() { p.Labels = map[string]string{"a": "b"} }, 2: func() { p.Template.Spec.Containers[0].Image = "j" }} {
		if change == nil {
			continue
		}
		change()
		if p = must(templates.Update(ctx, p, metav1.UpdateOptions{}))(t); p.Generation != int64(want) {
			t.Errorf("generation %d, want %d", p.Generation, want)
		}
	}
}
