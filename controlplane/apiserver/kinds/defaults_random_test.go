package kinds

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"
)

// TestRandomObjects fills objects at random: defaulting them must not panic,
// and doing it twice must give what doing it once gives.
func TestRandomObjects(t *testing.T) {
	t.Parallel()
	s := defaultsScheme(t)
	for _, kind := range []runtime.Object{
		&corev1.Pod{}, &corev1.Service{}, &corev1.Node{}, &corev1.Secret{}, &corev1.LimitRange{}, &corev1.PersistentVolume{},
		&corev1.PersistentVolumeClaim{}, &corev1.ReplicationController{}, &appsv1.Deployment{}, &appsv1.DaemonSet{}, &appsv1.StatefulSet{},
		&batchv1.Job{}, &batchv1.CronJob{}, &networkingv1.NetworkPolicy{}, &storagev1.CSIDriver{}, &storagev1.VolumeAttachment{},
	} {
		t.Run(fmt.Sprintf("%T", kind), func(t *testing.T) {
			t.Parallel()
			for seed := range int64(8) {
				fill := randfill.NewWithSeed(seed).NilChance(0.4).NumElements(0, 3).MaxDepth(12).Funcs(
					func(q *resource.Quantity, c randfill.Continue) { *q = *resource.NewScaledQuantity(c.Int63n(1e9), -6) },
					func(m *metav1.Time, c randfill.Continue) { *m = metav1.Unix(c.Int63n(1e9), 0) },
					func(m *metav1.ObjectMeta, c randfill.Continue) {
						m.Name, m.Labels = c.String(5), map[string]string{c.String(3): "v"}
					},
				)
				o := kind.DeepCopyObject()
				fill.Fill(o)
				s.Default(o)
				once := asMap(t, o)
				s.Default(o)
				if d := cmp.Diff(once, asMap(t, o)); d != "" {
					t.Fatalf("seed %d: defaults of defaults (-once +twice):\n%s", seed, d)
				}
			}
		})
	}
}
