// Services and what they are given, and certificate requests.

package apiserver_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

func TestServiceAddresses(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	services := shared.client.CoreV1().Services(ns)
	cidr := netip.MustParsePrefix("10.96.0.0/12")
	make := func(name string, change func(*corev1.ServiceSpec)) (*corev1.Service, error) {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		if change != nil {
			change(&s.Spec)
		}
		return services.Create(ctx, s, metav1.CreateOptions{})
	}
	a := must(make("a", nil))(t)
	ip := netip.MustParseAddr(a.Spec.ClusterIP)
	if !cidr.Contains(ip) || len(a.Spec.ClusterIPs) != 1 || a.Spec.Type != corev1.ServiceTypeClusterIP {
		t.Errorf("a: %+v", a.Spec)
	}
	_, err := make("same", func(s *corev1.ServiceSpec) { s.ClusterIP = a.Spec.ClusterIP })
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
		t.Errorf("a taken address: %v", err)
	}
	_, err = make("outside", func(s *corev1.ServiceSpec) { s.ClusterIP = "192.168.7.7" })
	if !apierrors.IsInvalid(err) {
		t.Errorf("an address outside: %v", err)
	}
	for what, ip := range map[string]string{"network": "10.96.0.0", "broadcast": "10.111.255.255"} {
		_, err = make(what, func(s *corev1.ServiceSpec) { s.ClusterIP = ip })
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the provided network does not match the current range") {
			t.Errorf("the %s address: %v", what, err)
		}
	}
	if h := must(make("headless", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }))(t); h.Spec.ClusterIP != "None" {
		t.Errorf("headless: %+v", h.Spec)
	}
	b := must(make("b", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }))(t)
	port := b.Spec.Ports[0].NodePort
	if port < 30000 || port > 32767 {
		t.Errorf("node port %d", port)
	}
	_, err = make("c", func(s *corev1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
	})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("a taken port: %v", err)
	}
	// Another's address in another way.
	four := ip.As4()
	for what, addrs := range map[string][]string{
		"with a zero in front": {fmt.Sprintf("%d.%d.%d.0%d", four[0], four[1], four[2], four[3])},
		"as a second one":      {ip.Next().Next().Next().String(), ip.String()},
	} {
		if _, err := make("thief", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = addrs[0], addrs }); !apierrors.IsInvalid(err) {
			t.Errorf("a taken address %s, %v: %v", what, addrs, err)
		}
	}
	// An update that leaves out what was given, or who it is, keeps it.
	update := b.DeepCopy()
	update.Spec.ClusterIP, update.Spec.ClusterIPs, update.Spec.Ports[0].NodePort, update.UID = "", nil, 0, ""
	update = must(services.Update(ctx, update, metav1.UpdateOptions{}))(t)
	if update.Spec.ClusterIP != b.Spec.ClusterIP || update.Spec.Ports[0].NodePort != port {
		t.Errorf("after update: %+v", update.Spec)
	}
	// As a ClusterIP service again it gives its port back.
	update.Spec.Type = corev1.ServiceTypeClusterIP
	update = must(services.Update(ctx, update, metav1.UpdateOptions{}))(t)
	if update.Spec.Ports[0].NodePort != 0 {
		t.Errorf("still has port %d", update.Spec.Ports[0].NodePort)
	}
	must(make("c", func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, port }))(t)
	// And a deleted one its address.
	if err := services.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(make("again", func(s *corev1.ServiceSpec) { s.ClusterIP = ip.String() }))(t)
}

// TestBalancedNoMore: a service that stops to be of type LoadBalancer loses the address of its
// load balancer, as no status without it could be written otherwise.
func TestBalancedNoMore(t *testing.T) {
	ctx, services := t.Context(), shared.client.CoreV1().Services(namespace(t))
	s := must(services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{"service.kubernetes.io/load-balancer-cleanup"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))(t)
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	s = must(services.UpdateStatus(ctx, s, metav1.UpdateOptions{}))(t)
	s.Labels = map[string]string{"a": "b"}
	if s = must(services.Update(ctx, s, metav1.UpdateOptions{}))(t); len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("%+v", s.Status)
	}
	s.Spec.Type = corev1.ServiceTypeClusterIP
	if s = must(services.Update(ctx, s, metav1.UpdateOptions{}))(t); len(s.Status.LoadBalancer.Ingress) != 0 {
		t.Errorf("%+v", s.Status)
	}
	// The service controller takes its finalizer away by the status.
	if _, err := services.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Error(err)
	}
}

// TestServiceAddressesAtOnce makes services side by side: no two get the same.
func TestServiceAddressesAtOnce(t *testing.T) {
	ns := namespace(t)
	const n = 24
	got := make(chan string, 2*n)
	t.Run("group", func(t *testing.T) {
		for i := range n {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}, Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}},
				}}
				s = must(shared.client.CoreV1().Services(ns).Create(t.Context(), s, metav1.CreateOptions{}))(t)
				got <- fmt.Sprint(s.Spec.ClusterIP)
				got <- fmt.Sprint(s.Spec.Ports[0].NodePort)
			})
		}
	})
	close(got)
	seen := map[string]bool{}
	for v := range got {
		if seen[v] {
			t.Errorf("%s given twice", v)
		}
		seen[v] = true
	}
}

func TestCertificateRequests(t *testing.T) {
	ctx := t.Context()
	requester := must(kubernetes.NewForConfig(as(shared.config, "joe", "testers")))(t)
	csr := must(requester.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: certificateRequest(t), SignerName: "example.com/signer", Username: "somebody-else", Groups: []string{"system:masters"},
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = shared.client.CertificatesV1().CertificateSigningRequests().Delete(context.WithoutCancel(ctx), csr.Name, metav1.DeleteOptions{})
	})
	if csr.Spec.Username != "joe" || csr.Spec.UID != "uid-of-joe" || strings.Join(csr.Spec.Groups, " ") != "testers system:authenticated" {
		t.Errorf("requester: %+v", csr.Spec)
	}
	approve := func(c *kubernetes.Clientset, kind certificatesv1.RequestConditionType) error {
		change := csr.DeepCopy()
		change.Spec.SignerName = "example.com/other"
		change.Status.Conditions = append(change.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue, Reason: "Because"})
		got, err := c.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, change, metav1.UpdateOptions{})
		if err == nil {
			csr = got
		}
		return err
	}
	if err := approve(requester, certificatesv1.CertificateApproved); !apierrors.IsForbidden(err) {
		t.Errorf("approval by who may not: %v", err)
	}
	if err := approve(shared.client, certificatesv1.CertificateApproved); err != nil {
		t.Fatal(err)
	}
	if c := csr.Status.Conditions[0]; csr.Spec.SignerName != "example.com/signer" || c.LastUpdateTime.IsZero() || c.LastTransitionTime.IsZero() {
		t.Errorf("approved: %+v", csr)
	}
	if err := approve(shared.client, certificatesv1.CertificateDenied); !apierrors.IsInvalid(err) {
		t.Errorf("denial of what is approved: %v", err)
	}
	// The status subresource cannot take the approval back.
	status := csr.DeepCopy()
	status.Status.Conditions = nil
	status = must(shared.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, status, metav1.UpdateOptions{}))(t)
	if len(status.Status.Conditions) != 1 {
		t.Errorf("conditions: %+v", status.Status.Conditions)
	}
	list := must(shared.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=example.com/signer"}))(t)
	if len(list.Items) != 1 {
		t.Errorf("%d by signer", len(list.Items))
	}
}
