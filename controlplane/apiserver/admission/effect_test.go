package admission

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"
)

// A heard is the warnings of one request.
type heard []string

func (h *heard) AddWarning(_, text string) { *h = append(*h, text) }

func TestEffect(t *testing.T) {
	apps, core, storage := appsv1.SchemeGroupVersion, corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	plain := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}}
	balanced := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	classed := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To("example.com/other")}}
	external := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ExternalIPs: []string{"192.0.2.7"}}}
	atNodes := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
	claiming := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{}}}}
	for _, tt := range []struct {
		gv             schema.GroupVersion
		kind, resource string
		sub            string
		old, obj       runtime.Object // old is nil for what is made
		want           string
	}{
		{apps, "StatefulSet", "statefulsets", "", nil, &appsv1.StatefulSet{}, ""},
		{apps, "StatefulSet", "statefulsets", "", nil, claiming, "StatefulSet with volumeClaimTemplates gets its claims here and no volumes"},
		{apps, "StatefulSet", "statefulsets", "", claiming, claiming, ""},
		{core, "ReplicationController", "replicationcontrollers", "", nil, &corev1.ReplicationController{}, "ReplicationController is stored and has no effect here: no controller of this server acts on replicationcontrollers, so no pods are made"},
		{apps, "StatefulSet", "statefulsets", "scale", nil, &appsv1.StatefulSet{}, ""},
		{apps, "Deployment", "deployments", "", nil, &appsv1.Deployment{}, ""},
		{apps, "ReplicaSet", "replicasets", "", nil, &appsv1.ReplicaSet{}, ""},
		{apps, "DaemonSet", "daemonsets", "", nil, &appsv1.DaemonSet{}, ""},
		{batchv1.SchemeGroupVersion, "CronJob", "cronjobs", "", nil, &batchv1.CronJob{}, ""},
		{batchv1.SchemeGroupVersion, "Job", "jobs", "", nil, &batchv1.Job{}, "Job is stored and has no effect here: this server runs no job-controller (--controllers), so no pods are made"},
		{batchv1.SchemeGroupVersion, "Job", "jobs", "", &batchv1.Job{}, &batchv1.Job{}, ""},
		{core, "Pod", "pods", "", nil, &corev1.Pod{}, ""},
		{core, "Service", "services", "", nil, plain, ""},
		{core, "Service", "services", "", nil, balanced, "--load-balancer-addresses"},
		{core, "Service", "services", "", nil, classed, "the class is another implementation's"},
		{core, "Service", "services", "", plain, external, "Service with externalIPs: nothing listens at them here"},
		{core, "Service", "services", "", plain, balanced, "--load-balancer-addresses"},
		{core, "Service", "services", "", balanced, balanced, ""},
		{core, "Service", "services", "", balanced, plain, ""},
		{core, "Service", "services", "status", plain, balanced, ""},
		{core, "Service", "services", "", nil, atNodes, "Service of type NodePort: only nodes with kube-proxy listen"},
		{core, "Service", "services", "", plain, atNodes, "Service of type NodePort: only nodes with kube-proxy listen"},
		{core, "Service", "services", "", atNodes, atNodes, ""},
		{core, "ResourceQuota", "resourcequotas", "", nil, &corev1.ResourceQuota{}, ""},
		{core, "Secret", "secrets", "", nil, &corev1.Secret{}, ""},
		{core, "PersistentVolume", "persistentvolumes", "", nil, &corev1.PersistentVolume{}, "acts on persistentvolumes, so no claim is bound to it"},
		{core, "PersistentVolume", "persistentvolumes", "", &corev1.PersistentVolume{}, &corev1.PersistentVolume{}, ""},
		{storage, "CSIDriver", "csidrivers", "", nil, &storagev1.CSIDriver{}, "no volume is attached"},
		{storage, "CSIStorageCapacity", "csistoragecapacities", "", nil, &storagev1.CSIStorageCapacity{}, "no pod is placed by it"},
		{storage, "CSINode", "csinodes", "", nil, &storagev1.CSINode{}, ""},
		{networkingv1.SchemeGroupVersion, "IngressClass", "ingressclasses", "", nil, &networkingv1.IngressClass{}, "no ingress is given to it"},
		{networkingv1.SchemeGroupVersion, "ServiceCIDR", "servicecidrs", "", nil, &networkingv1.ServiceCIDR{}, "no service gets an address of it"},
		{nodev1.SchemeGroupVersion, "RuntimeClass", "runtimeclasses", "", nil, &nodev1.RuntimeClass{}, "no pod runs otherwise"},
	} {
		var said heard
		ctx := warning.WithWarningRecorder(context.Background(), &said)
		op := admission.Create
		if tt.old != nil {
			op = admission.Update
		}
		a := admission.NewAttributesRecord(tt.obj, tt.old, tt.gv.WithKind(tt.kind), "ns", "x", tt.gv.WithResource(tt.resource), tt.sub, op, nil, false, nil)
		plugin := Effect(false, func(name string) bool { return name != "job-controller" })
		if plugin.Handles(op) {
			if err := plugin.(admission.ValidationInterface).Validate(ctx, a, nil); err != nil {
				t.Error(err)
			}
		}
		if got := strings.Join(said, "|"); tt.want == "" && got != "" || !strings.Contains(got, tt.want) || len(said) > 1 {
			t.Errorf("%s of %s/%s: %q, want %q", op, tt.resource, tt.sub, got, tt.want)
		}
	}
}
