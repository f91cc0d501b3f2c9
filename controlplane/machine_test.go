package controlplane

// The machines of a test's cluster, and the pods on them.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// A machine is a node made by this test.
type machine struct {
	*kubernetes.Clientset
	name string
	key  *ecdsa.PrivateKey
}

// join makes a node out of nothing but a token.
func (c *cluster) join(token kubernetes.Interface, name string) *machine {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	r := c.ask(token, "first-"+name, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:"+name, nil, key)
	if len(r.Status.Certificate) == 0 {
		c.t.Fatalf("%s was refused: %+v", name, r.Status.Conditions)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &machine{name: name, key: key, Clientset: c.client(&rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{
		CAFile: c.ca, CertData: r.Status.Certificate, KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}})}
	ctx := c.t.Context()
	node, err := m.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		c.t.Errorf("a new node has taints %+v", node.Spec.Taints)
	}
	_, err = m.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	m.report(c.t)
	serving := c.ask(m, "serving-"+name, certificatesv1.KubeletServingSignerName, "system:node:"+name, []string{name}, key)
	if len(serving.Status.Certificate) == 0 {
		c.t.Errorf("%s gets no serving certificate: %+v", name, serving.Status.Conditions)
	}
	return m
}

// report posts the status of a healthy node.
func (m *machine) report(t *testing.T) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := m.CoreV1().Nodes().Get(t.Context(), m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
		node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
		node.Status.Allocatable = node.Status.Capacity
		_, err = m.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pod makes a pod that names a secret, and waits until it is bound.
func (c *cluster) pod(name, cpu, node string) *corev1.Pod {
	c.t.Helper()
	ctx, pods := c.t.Context(), c.admin.CoreV1().Pods("work")
	if _, err := c.admin.CoreV1().Secrets("work").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret-" + name}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	_, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"kubernetes.io/hostname": node},
		Containers: []corev1.Container{{
			Name: "c", Image: "none", Command: []string{"true"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
			EnvFrom:   []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "secret-" + name}}}},
		}},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.podUntil(name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
}

func (c *cluster) podUntil(name string, want func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	// From what the server has at hand: a watch from now on is refused while that is three seconds old.
	w, err := c.admin.CoreV1().Pods("work").Watch(c.t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: name, ResourceVersion: "0"}))
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	return until(c.t, w, want)
}
