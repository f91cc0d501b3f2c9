// What is special about single kinds: the fields they can be selected by, and
// what is filled in or kept when they are written. Pods, services and
// certificate requests have files of their own.

package apiserver

import (
	"context"
	"slices"
	"strconv"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hawser-project/hawser/controlplane/apiserver/defaults"
)

func namespaceFields(ns *corev1.Namespace) fields.Set {
	return fields.Set{"status.phase": string(ns.Status.Phase)}
}

func newNamespace(_ context.Context, ns *corev1.Namespace) {
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
	defaults.NamespaceLabel(ns)
}

// keepFinalizers: only the finalize subresource writes them.
func keepFinalizers(_ context.Context, ns, old *corev1.Namespace) {
	ns.Spec.Finalizers = old.Spec.Finalizers
	defaults.NamespaceLabel(ns)
}

func namespaceStatus(_ context.Context, ns, _ *corev1.Namespace) { defaults.NamespaceLabel(ns) }

func nodeFields(n *corev1.Node) fields.Set {
	return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
}

func secretFields(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} }

func replicationControllerFields(rc *corev1.ReplicationController) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(rc.Status.Replicas))}
}

func replicaSetFields(rs *appsv1.ReplicaSet) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(rs.Status.Replicas))}
}

func jobFields(j *batchv1.Job) fields.Set {
	return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
}

// newJob gives a job the selector and labels that tie it to its own pods.
func newJob(_ context.Context, j *batchv1.Job) { defaults.JobSelector(j) }

func newVolume(_ context.Context, pv *corev1.PersistentVolume) {
	now := metav1.Now()
	pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
}

// volumeStatus dates a change of phase that the writer did not date.
func volumeStatus(_ context.Context, pv, old *corev1.PersistentVolume) {
	if pv.Status.Phase == old.Status.Phase {
		return
	}
	if pv.Status.LastPhaseTransitionTime == nil || pv.Status.LastPhaseTransitionTime.Equal(old.Status.LastPhaseTransitionTime) {
		now := metav1.Now()
		pv.Status.LastPhaseTransitionTime = &now
	}
}

func newClaim(_ context.Context, c *corev1.PersistentVolumeClaim) {
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
}

// updateDeployment counts a change of the annotations as one of the spec, as
// rollbacks by annotation once were.
func updateDeployment(_ context.Context, d, old *appsv1.Deployment) {
	if !equality.Semantic.DeepEqual(d.Annotations, old.Annotations) {
		d.Generation = old.Generation + 1
	}
}

// deploymentStatus keeps the labels: the deployment controller once overwrote
// them from a stale copy.
func deploymentStatus(_ context.Context, d, old *appsv1.Deployment) { d.Labels = old.Labels }

// templateGeneration is an old counter of the API that nothing reads any more
// but every DaemonSet carries.
const templateGeneration = appsv1.DeprecatedTemplateGeneration

func newDaemonSet(_ context.Context, ds *appsv1.DaemonSet) {
	if ds.Annotations[templateGeneration] == "" {
		metav1.SetMetaDataAnnotation(&ds.ObjectMeta, templateGeneration, "1")
	}
}

func updateDaemonSet(_ context.Context, ds, old *appsv1.DaemonSet) {
	n, err := strconv.ParseInt(old.Annotations[templateGeneration], 10, 64)
	if err != nil {
		return
	}
	if !equality.Semantic.DeepEqual(ds.Spec.Template, old.Spec.Template) {
		n++
	}
	metav1.SetMetaDataAnnotation(&ds.ObjectMeta, templateGeneration, strconv.FormatInt(n, 10))
}

func newEndpointSlice(_ context.Context, s *discoveryv1.EndpointSlice) { s.Generation = 1 }

// updateEndpointSlice counts the generation by hand: an EndpointSlice has no spec.
func updateEndpointSlice(_ context.Context, s, old *discoveryv1.EndpointSlice) {
	was, is := *old, *s
	was.ObjectMeta, is.ObjectMeta = metav1.ObjectMeta{Labels: old.Labels}, metav1.ObjectMeta{Labels: s.Labels}
	was.TypeMeta, is.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
	if !equality.Semantic.DeepEqual(was, is) || !labels.Equals(old.Labels, s.Labels) {
		s.Generation = old.Generation + 1
	}
}

// A PodTemplate has no spec, so its generation is counted by hand.

func newPodTemplate(_ context.Context, p *corev1.PodTemplate) { p.Generation = 1 }

func updatePodTemplate(_ context.Context, p, old *corev1.PodTemplate) {
	if !equality.Semantic.DeepEqual(p.Template, old.Template) {
		p.Generation = old.Generation + 1
	}
}

// The configurations of webhooks have no spec, so their generation is counted by hand.

func newValidatingWebhooks(_ context.Context, c *admissionv1.ValidatingWebhookConfiguration) {
	c.Generation = 1
}

func updateValidatingWebhooks(_ context.Context, c, old *admissionv1.ValidatingWebhookConfiguration) {
	if !equality.Semantic.DeepEqual(c.Webhooks, old.Webhooks) {
		c.Generation = old.Generation + 1
	}
}

func newMutatingWebhooks(_ context.Context, c *admissionv1.MutatingWebhookConfiguration) {
	c.Generation = 1
}

func updateMutatingWebhooks(_ context.Context, c, old *admissionv1.MutatingWebhookConfiguration) {
	if !equality.Semantic.DeepEqual(c.Webhooks, old.Webhooks) {
		c.Generation = old.Generation + 1
	}
}

// systemPriorityClasses exist in every cluster.
func systemPriorityClasses() []*schedulingv1.PriorityClass {
	return []*schedulingv1.PriorityClass{
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
			Value:       2000001000,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "system-cluster-critical"},
			Value:       2000000000,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
		},
	}
}
