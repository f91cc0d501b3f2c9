package children

// What is made of a template of pods.

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// FromTemplate returns a pod to be made for o.
func FromTemplate(o Owner, t *corev1.PodTemplateSpec) *corev1.Pod {
	t = t.DeepCopy()
	prefix := o.GetName() + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = o.GetName()
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix, Namespace: o.GetNamespace(),
			Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
		},
		Spec: t.Spec,
	}
}

// TemplateHash names a template among those of one Deployment or DaemonSet, as
// Kubernetes does. A count of collisions makes it another; nil is not the same as none.
func TemplateHash(t *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, dump.ForHash(*t)) // a hash takes everything
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		_, _ = h.Write(b[:])
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}
