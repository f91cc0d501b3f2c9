package kinds

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestTimes: a node or a user can store no time that cannot be read back from JSON.
func TestTimes(t *testing.T) {
	t.Parallel()
	far := metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -24*60*60+60)))
	early := metav1.NewTime(time.Unix(-1e11, 0))
	b, err := json.Marshal(far)
	if err == nil {
		err = json.Unmarshal(b, &metav1.Time{})
	}
	if err == nil {
		t.Errorf("%s is read: the rule is not needed any more", b)
	}
	node := func(at metav1.Time) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: "A", Status: corev1.ConditionTrue}, {Type: "B", Status: corev1.ConditionTrue, LastHeartbeatTime: at},
		}}}
	}
	rules := For(schema.GroupKind{Kind: "Node"})
	for _, tt := range []struct {
		name     string
		now, was metav1.Time
		want     string
	}{
		{"none", metav1.Time{}, metav1.Time{}, ""},
		{"the last", metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)), metav1.Time{}, ""},
		{"after the last", far, metav1.Time{}, "status.conditions.lastHeartbeatTime: Invalid value: \"10000-01-01 23:58:59 +0000 UTC\": must be between the years 0 and 9999"},
		{"before the first", early, metav1.Time{}, "status.conditions.lastHeartbeatTime: Invalid value"},
		{"stored before", far, early, ""},
		{"gone again", metav1.Now(), far, ""},
	} {
		got := ""
		if err := rules.Status(node(tt.now), node(tt.was)).ToAggregate(); err != nil {
			got = err.Error()
		}
		if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}

	p := goodPod(t)()
	started := far
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}}}
	if errs := times(p); len(errs) != 1 || errs[0].Field != "status.containerStatuses.state.running.startedAt" {
		t.Errorf("pod: %v", errs)
	}
	q := goodPod(t)()
	q.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &far}}
	if errs := For(schema.GroupKind{Kind: "Pod"}).Create(q); len(errs) != 1 || errs[0].Field != "metadata.managedFields.time" {
		t.Errorf("pod's managed fields: %v", errs)
	}
}

func BenchmarkTimes(b *testing.B) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 3)}, Status: corev1.PodStatus{ContainerStatuses: make([]corev1.ContainerStatus, 3), Conditions: make([]corev1.PodCondition, 5)}}
	b.ReportAllocs()
	for b.Loop() {
		times(runtime.Object(p))
	}
}
