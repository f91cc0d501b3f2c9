// What kubelets and kube-proxy of Kubernetes ask of an API server.

package e2e

import (
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// askedOf is what a pod on node-1 names, and what it does not.
const askedOf = `
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}
---
{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}}
---
{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "others"}}
---
{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "stage", "namespace": "kube-public"}}
---
{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "expand", "namespace": "kube-public"}}
---
{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "vol"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
 "csi": {"driver": "csi.example", "volumeHandle": "vol", "nodeStageSecretRef": {"namespace": "kube-public", "name": "stage"},
 "controllerExpandSecretRef": {"namespace": "kube-public", "name": "expand"}}, "claimRef": {"namespace": "default", "name": "data"}}}
---
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {"volumeName": "vol", "storageClassName": "",
 "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
---
{"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "here"}, "spec": {"attacher": "csi.example", "nodeName": "node-1",
 "source": {"persistentVolumeName": "vol"}}}
---
{"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "there"}, "spec": {"attacher": "csi.example", "nodeName": "node-2",
 "source": {"persistentVolumeName": "vol"}}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"],
 "envFrom": [{"secretRef": {"name": "mine"}}, {"configMapRef": {"name": "mine"}}]}],
 "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}
`

// An asking is one request.
type asking struct {
	what string
	ask  func() error
}

// listed makes a request of the results of List, Watch or Get.
func listed[T any](_ T, err error) error { return err }

// watched makes a request of a watch.
func watched(w watch.Interface, err error) error {
	if err == nil {
		w.Stop()
	}
	return err
}

func TestWhatKubeletsAsk(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	eventually(t, "there is what a pod needs", func() error {
		if _, stderr, code := c.kubectl(t, askedOf, "apply", "-f", "-"); code != 0 {
			return fmt.Errorf("%s", stderr)
		}
		return nil
	})
	c.hubAndSpoke(t)
	node := c.asNode(t, "node-1")
	conf := rest.CopyConfig(c.rest)
	conf.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-proxy", Groups: []string{"system:authenticated"}}
	proxy, err := kubernetes.NewForConfig(conf)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range append(kubeletAsks(t, node), proxyAsks(t, proxy)...) {
		if err := a.ask(); err != nil {
			t.Errorf("%s: %v", a.what, err)
		}
	}
	for _, a := range notForNodes(t, node, proxy) {
		if err := a.ask(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", a.what, err)
		}
	}
	for _, a := range adminAsks(t, c.client) {
		if err := a.ask(); err != nil {
			t.Errorf("%s: %v", a.what, err)
		}
	}
}

// kubeletAsks are a kubelet's requests, as node-1.
func kubeletAsks(t *testing.T, n kubernetes.Interface) []asking {
	ctx, get, list := t.Context(), metav1.GetOptions{}, metav1.ListOptions{}
	self := metav1.ListOptions{FieldSelector: "metadata.name=node-1"}
	mine := metav1.ListOptions{FieldSelector: "metadata.name=mine"}
	pods := metav1.ListOptions{FieldSelector: "spec.nodeName=node-1"}
	v1, store := n.CoreV1(), n.StorageV1()
	return []asking{
		{"list RuntimeClasses", func() error { return listed(n.NodeV1().RuntimeClasses().List(ctx, list)) }},
		{"watch RuntimeClasses", func() error { return watched(n.NodeV1().RuntimeClasses().Watch(ctx, list)) }},
		{"list CSIDrivers", func() error { return listed(store.CSIDrivers().List(ctx, list)) }},
		{"watch CSIDrivers", func() error { return watched(store.CSIDrivers().Watch(ctx, list)) }},
		{"create its CSINode", func() error {
			return listed(store.CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, metav1.CreateOptions{}))
		}},
		{"get its CSINode", func() error { return listed(store.CSINodes().Get(ctx, "node-1", get)) }},
		{"delete its CSINode", func() error { return store.CSINodes().Delete(ctx, "node-1", metav1.DeleteOptions{}) }},
		{"get a VolumeAttachment", func() error { return listed(store.VolumeAttachments().Get(ctx, "here", get)) }},
		{"get a PersistentVolume", func() error { return listed(v1.PersistentVolumes().Get(ctx, "vol", get)) }},
		{"get a PersistentVolumeClaim", func() error { return listed(v1.PersistentVolumeClaims("default").Get(ctx, "data", get)) }},
		{"report that a PersistentVolumeClaim has grown", func() error {
			return listed(v1.PersistentVolumeClaims("default").Patch(ctx, "data", types.StrategicMergePatchType, []byte(`{"status": {"capacity": {"storage": "2Gi"}}}`), metav1.PatchOptions{}, "status"))
		}},
		{"list Services", func() error { return listed(v1.Services("").List(ctx, list)) }},
		{"watch Services", func() error { return watched(v1.Services("").Watch(ctx, list)) }},
		{"get Endpoints", func() error { return listed(v1.Endpoints("default").Get(ctx, "kubernetes", get)) }},
		{"list its Node", func() error { return listed(v1.Nodes().List(ctx, self)) }},
		{"watch its Node", func() error { return watched(v1.Nodes().Watch(ctx, self)) }},
		{"patch its Node's status", func() error {
			return listed(v1.Nodes().Patch(ctx, "node-1", types.StrategicMergePatchType, []byte(`{"status": {}}`), metav1.PatchOptions{}, "status"))
		}},
		{"list its pods", func() error { return listed(v1.Pods("").List(ctx, pods)) }},
		{"watch its pods", func() error { return watched(v1.Pods("").Watch(ctx, pods)) }},
		{"get a Secret", func() error { return listed(v1.Secrets("default").Get(ctx, "mine", get)) }},
		{"watch a Secret", func() error { return watched(v1.Secrets("default").Watch(ctx, mine)) }},
		{"get the Secret to stage a volume with", func() error { return listed(v1.Secrets("kube-public").Get(ctx, "stage", get)) }},
		{"list a ConfigMap", func() error { return listed(v1.ConfigMaps("default").List(ctx, mine)) }},
		{"watch a ConfigMap", func() error { return watched(v1.ConfigMaps("default").Watch(ctx, mine)) }},
		{"get a ServiceAccount", func() error { return listed(v1.ServiceAccounts("default").Get(ctx, "default", get)) }},
		{"get its lease", func() error {
			return listed(n.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "node-1", get))
		}},
		{"create an Event", func() error {
			return listed(v1.Events("default").Create(ctx, anEvent("of-kubelet", "kubelet"), metav1.CreateOptions{}))
		}},
		{"review a token", func() error {
			return listed(n.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}, metav1.CreateOptions{}))
		}},
		{"review an access", func() error {
			return listed(n.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "ann", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "proxy", Name: "node-1"},
			}}, metav1.CreateOptions{}))
		}},
		{"request a token for a pod", func() error {
			p, err := v1.Pods("default").Get(ctx, "asked", get)
			if err != nil {
				return err
			}
			return listed(v1.ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
			}}, metav1.CreateOptions{}))
		}},
	}
}

// proxyAsks are kube-proxy's requests.
func proxyAsks(t *testing.T, n kubernetes.Interface) []asking {
	ctx, list := t.Context(), metav1.ListOptions{}
	self := metav1.ListOptions{FieldSelector: "metadata.name=node-1"}
	v1, net := n.CoreV1(), n.NetworkingV1()
	return []asking{
		{"kube-proxy: list Services", func() error { return listed(v1.Services("").List(ctx, list)) }},
		{"kube-proxy: watch Services", func() error { return watched(v1.Services("").Watch(ctx, list)) }},
		{"kube-proxy: list EndpointSlices", func() error { return listed(n.DiscoveryV1().EndpointSlices("").List(ctx, list)) }},
		{"kube-proxy: watch EndpointSlices", func() error { return watched(n.DiscoveryV1().EndpointSlices("").Watch(ctx, list)) }},
		{"kube-proxy: list ServiceCIDRs", func() error { return listed(net.ServiceCIDRs().List(ctx, list)) }},
		{"kube-proxy: watch ServiceCIDRs", func() error { return watched(net.ServiceCIDRs().Watch(ctx, list)) }},
		{"kube-proxy: get its Node", func() error { return listed(v1.Nodes().Get(ctx, "node-1", metav1.GetOptions{})) }},
		{"kube-proxy: watch its Node", func() error { return watched(v1.Nodes().Watch(ctx, self)) }},
		{"kube-proxy: create an Event", func() error {
			return listed(v1.Events("default").Create(ctx, anEvent("of-proxy", "kube-proxy"), metav1.CreateOptions{}))
		}},
	}
}

// notForNodes are requests that neither makes, and that both are refused.
func notForNodes(t *testing.T, node, proxy kubernetes.Interface) []asking {
	ctx, get, list := t.Context(), metav1.GetOptions{}, metav1.ListOptions{}
	return []asking{
		{"get a Secret that no pod here names", func() error { return listed(node.CoreV1().Secrets("default").Get(ctx, "others", get)) }},
		{"get the Secret to expand a volume with", func() error { return listed(node.CoreV1().Secrets("kube-public").Get(ctx, "expand", get)) }},
		{"change what a quota has of a PersistentVolumeClaim", func() error {
			return listed(node.CoreV1().PersistentVolumeClaims("default").Patch(ctx, "data", types.StrategicMergePatchType, []byte(`{"status": {"allocatedResources": {"storage": "9Gi"}}}`), metav1.PatchOptions{}, "status"))
		}},
		{"list PersistentVolumes", func() error { return listed(node.CoreV1().PersistentVolumes().List(ctx, list)) }},
		{"get another node's VolumeAttachment", func() error { return listed(node.StorageV1().VolumeAttachments().Get(ctx, "there", get)) }},
		{"get another's CSINode", func() error { return listed(node.StorageV1().CSINodes().Get(ctx, "node-2", get)) }},
		{"kube-proxy: list Secrets", func() error { return listed(proxy.CoreV1().Secrets("").List(ctx, list)) }},
	}
}

// adminAsks are about what is there for them.
func adminAsks(t *testing.T, n kubernetes.Interface) []asking {
	ctx, get := t.Context(), metav1.GetOptions{}
	net := n.NetworkingV1()
	return []asking{
		{"the Service kubernetes", func() error { return listed(n.CoreV1().Services("default").Get(ctx, "kubernetes", get)) }},
		{"its EndpointSlice", func() error { return listed(n.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", get)) }},
		{"create a ServiceCIDR", func() error {
			return listed(net.ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.112.0.0/16"}},
			}, metav1.CreateOptions{}))
		}},
		{"create an IPAddress", func() error {
			return listed(net.IPAddresses().Create(ctx, &networkingv1.IPAddress{
				ObjectMeta: metav1.ObjectMeta{Name: "10.112.0.1"},
				Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "web"}},
			}, metav1.CreateOptions{}))
		}},
		{"a StorageClass", func() error {
			return listed(n.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "sc"}, Provisioner: "csi.example"}, metav1.CreateOptions{}))
		}},
	}
}

func anEvent(name, component string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Reason: "Asked", Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: component, Host: "node-1"}, ReportingController: component, ReportingInstance: "node-1",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "asked"},
	}
}
