package kubeauth

// Trials with leases, CSINodes, volume claims, events and certificate requests.

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

// event is one of node-1 about itself, changed.
func event(change func(*corev1.Event)) *corev1.Event {
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "node-1.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "node-1", UID: "n1"},
		Source:         corev1.EventSource{Component: "kubelet", Host: "node-1"}, ReportingInstance: "node-1",
	}
	if change != nil {
		change(e)
	}
	return e
}

func leaseOf(change func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: nodeLeases, Name: "node-1", OwnerReferences: nodeOwned("node-1", false)}}
	l.Spec.HolderIdentity, l.Spec.RenewTime = ptr.To("node-1"), ptr.To(metav1.NowMicro())
	if change != nil {
		change(l)
	}
	return l
}

// expanding is a node's report of a volume that it expands, with a change.
func expanding(change func(*corev1.PersistentVolumeClaim)) submission {
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", Finalizers: []string{"kubernetes.io/pvc-protection"}}}
		c.Spec.VolumeName, c.Status.Phase = "pv-1", corev1.ClaimBound
		if change != nil {
			change(c)
		}
		return c
	}
	return submission{op: admission.Update, gvr: claimsR, sub: "status", ns: "ns", name: "data", obj: claim(change), old: claim(nil)}
}

// expanded is the report of a kubelet that has expanded a volume.
func expanded(c *corev1.PersistentVolumeClaim) {
	c.ResourceVersion = "2"
	c.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("2Gi")}
	c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": corev1.PersistentVolumeClaimNodeResizeInProgress}
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: "False"}}
}

func otherAttacks(t *testing.T) []trial {
	lease := func(kind string, change func(*coordinationv1.Lease)) trial {
		l := leaseOf(change)
		return trial{kind: kind, w: submission{op: admission.Update, gvr: leasesR, ns: l.Namespace, name: l.Name, obj: l, old: leaseOf(nil)}}
	}
	csi := func(kind string, change func(*storagev1.CSINode)) trial {
		n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		change(n)
		return trial{kind: kind, w: submission{op: admission.Create, gvr: csiR, obj: n}}
	}
	tells := func(kind string, change func(*corev1.Event)) trial {
		return trial{kind: kind, w: submission{op: admission.Create, gvr: eventsR, ns: "default", obj: event(change)}}
	}
	edits := func(kind string, was, is func(*corev1.Event)) trial {
		return trial{kind: kind, w: submission{op: admission.Update, gvr: newEvents.WithVersion("v1"), ns: "default", name: "e", obj: event(is), old: event(was)}}
	}
	grows := func(kind string, change func(*corev1.PersistentVolumeClaim)) trial {
		return trial{kind: kind, w: expanding(change)}
	}
	about := func(kind, ns, name string) func(*corev1.Event) {
		return func(e *corev1.Event) {
			e.InvolvedObject = corev1.ObjectReference{Kind: kind, Namespace: ns, Name: name}
		}
	}
	by := func(host, instance string) func(*corev1.Event) {
		return func(e *corev1.Event) { e.Source.Host, e.ReportingInstance = host, instance }
	}
	asks := func(kind, who, cn string, change func(*certificatesv1.CertificateSigningRequest)) trial {
		r := csrFor(t, cn, "system:nodes", certificatesv1.KubeAPIServerClientKubeletSignerName)
		change(r)
		return trial{kind: kind, who: who, w: submission{op: admission.Create, gvr: requestR, obj: r}}
	}
	finalizers := func(r *certificatesv1.CertificateSigningRequest) { r.Finalizers = []string{"example.com/never"} }
	owners := func(r *certificatesv1.CertificateSigningRequest) { r.OwnerReferences = owned() }
	large := strings.Repeat("x", eventSize)
	annotated := func(r *certificatesv1.CertificateSigningRequest) {
		r.Annotations = map[string]string{"x": large[:requestSize]}
	}
	return []trial{
		lease("lease.name", func(l *coordinationv1.Lease) { l.Name = "node-2" }), lease("lease.name", func(l *coordinationv1.Lease) { l.Namespace = "kube-system" }),
		{kind: "lease.name", w: submission{op: admission.Delete, gvr: leasesR, ns: nodeLeases, name: "node-2"}},
		lease("lease.holder", func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("node-2") }),
		lease("lease.owners", func(l *coordinationv1.Lease) { l.OwnerReferences = owned() }),
		lease("lease.owners", func(l *coordinationv1.Lease) { l.OwnerReferences = nodeOwned("node-2", false) }),
		lease("lease.owners", func(l *coordinationv1.Lease) { l.OwnerReferences = nodeOwned("node-1", true) }),
		lease("lease.finalizers", func(l *coordinationv1.Lease) { l.Finalizers = []string{"example.com/never"} }),
		csi("csinode.name", func(n *storagev1.CSINode) { n.Name = "node-2" }),
		csi("csinode.owners", func(n *storagev1.CSINode) { n.OwnerReferences = owned() }),
		csi("csinode.finalizers", func(n *storagev1.CSINode) { n.Finalizers = []string{"example.com/never"} }),
		{kind: "volumeclaim", w: submission{op: admission.Update, gvr: claimsR, ns: "ns", name: "data", obj: &corev1.PersistentVolumeClaim{}}},
		grows("volumeclaim.status", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} }),
		grows("volumeclaim.status", func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil }),
		grows("volumeclaim.status", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "another" }),
		grows("volumeclaim.status", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }),
		grows("volumeclaim.status", func(c *corev1.PersistentVolumeClaim) {
			c.Status.AllocatedResources = corev1.ResourceList{"storage": resource.MustParse("1Ei")}
		}),
		grows("volumeclaim.size", func(c *corev1.PersistentVolumeClaim) {
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimNodeResizeError, Message: large}}
		}),
		tells("event.about", about("Node", "", "node-2")), tells("event.about", about("Pod", "ns", "db")), tells("event.about", about("Pod", "ns", "pending")),
		tells("event.about", about("Deployment", "ns", "web")), tells("event.about", about("", "", "")), edits("event.about", nil, about("Pod", "ns", "web")),
		tells("event.source", by("node-2", "node-1")), tells("event.source", by("node-1", "node-2")), tells("event.source", by("", "")),
		edits("event.source", by("node-2", "node-2"), nil), edits("event.source", by("", "scheduler-1"), nil),
		tells("event.metadata", func(e *corev1.Event) { e.Finalizers = []string{"example.com/never"} }),
		tells("event.metadata", func(e *corev1.Event) { e.OwnerReferences = owned() }),
		tells("event.size", func(e *corev1.Event) { e.Annotations = map[string]string{"x": large} }),
		tells("event.size", func(e *corev1.Event) { e.Labels = map[string]string{"x": large} }), tells("event.size", func(e *corev1.Event) { e.Message = large }),
		edits("event.size", nil, func(e *corev1.Event) { e.Message = large }),
		asks("request.size", "node-1", "system:node:node-1", annotated), asks("request.size", "boot", "system:node:new", annotated),
		asks("request.subject", "node-1", "system:node:node-2", func(*certificatesv1.CertificateSigningRequest) {}),
		asks("request.metadata", "node-1", "system:node:node-1", finalizers), asks("request.metadata", "node-1", "system:node:node-1", owners),
		asks("request.metadata", "boot", "system:node:new", finalizers), asks("request.metadata", "boot", "system:node:new", owners),
	}
}

// TestEventsAreSigned: an event that a node makes and that names nobody becomes the node's.
// Those that name somebody, changes, and the events of others stay as they are.
func TestEventsAreSigned(t *testing.T) {
	o, _ := objects(t, cluster()...)
	plugin := restrict(t, RestrictionConfig{Objects: o})
	for _, tt := range []struct {
		who, host, instance string
		op                  admission.Operation
		want                string // the host
		refused             bool
	}{
		{"node-1", "", "", admission.Create, "node-1", false},
		{"node-1", "", "node-1", admission.Create, "", false},
		{"node-1", "node-2", "", admission.Create, "node-2", true},
		{"node-1", "", "scheduler-1", admission.Create, "", true},
		{"node-1", "", "", admission.Update, "", true},
		{"admin", "", "", admission.Create, "", false},
	} {
		unsigned := func(e *corev1.Event) { e.Source.Host, e.ReportingInstance = tt.host, tt.instance }
		e := event(unsigned)
		a := submission{op: tt.op, gvr: eventsR, ns: "default", name: e.Name, obj: e, old: event(unsigned)}.attributes(tt.who)
		if err := plugin.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil {
			t.Errorf("%+v: %v", tt, err)
		}
		if e.Source.Host != tt.want {
			t.Errorf("%+v: it is of %q", tt, e.Source.Host)
		}
		if err := plugin.Validate(t.Context(), a, nil); (err != nil) != tt.refused {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
