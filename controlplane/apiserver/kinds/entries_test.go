// The entries of all kinds, and what updates keep.

package kinds

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"
)

func TestPodGrace(t *testing.T) {
	mirror := func(owner string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Annotations:     map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner, Controller: ptr(true)}},
			},
			Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr[int64](7)},
		}
	}
	for _, c := range []struct {
		name  string
		pod   corev1.Pod
		asked *int64
		want  int64
	}{
		{"no node", corev1.Pod{}, ptr[int64](30), 0},
		{"ended well", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, nil, 0},
		{"ended badly", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, nil, 0},
		{"default", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, nil, 30},
		{"its own", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr[int64](7)}}, nil, 7},
		{"asked", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr[int64](7)}}, ptr[int64](3), 3},
		{"at once", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, ptr[int64](0), 0},
		{"negative", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr[int64](-5)}}, nil, 1},
		{"its node shows it", mirror("n"), nil, 0},
		{"its node shows it, and it is asked", mirror("n"), ptr[int64](3), 0},
		{"another node's", mirror("other"), nil, 7},
	} {
		o := &metav1.DeleteOptions{GracePeriodSeconds: c.asked}
		if !podGrace(&c.pod, o) || *o.GracePeriodSeconds != c.want {
			t.Errorf("%s: %d", c.name, *o.GracePeriodSeconds)
		}
	}
}

// TestEventConversion converts random events there and back.
func TestEventConversion(t *testing.T) {
	f := randfill.NewWithSeed(1).NilChance(0.3).Funcs(
		func(tm *metav1.TypeMeta, _ randfill.Continue) { *tm = metav1.TypeMeta{} },
	)
	for range 200 {
		var in, back corev1.Event
		var out eventsv1.Event
		f.Fill(&in)
		eventFromCore(&in, &out)
		eventToCore(&out, &back)
		if !equality.Semantic.DeepEqual(in, back) {
			t.Fatalf("%+v\nbecame %+v", in, back)
		}
	}
}

// TestTable checks the entries of the kinds: names, and hooks that need fields.
func TestTable(t *testing.T) {
	rows, scheme := All(), runtime.NewScheme()
	seen := map[string]bool{}
	for i := range rows {
		r := &rows[i]
		if key := r.gr().String(); seen[key] {
			t.Errorf("%s twice", key)
		} else {
			seen[key] = true
		}
		for _, short := range r.short {
			if seen["short "+short] {
				t.Errorf("short name %s twice", short)
			}
			seen["short "+short] = true
		}
		if got := fieldOf(r.newObject(), "Status").IsValid(); r.status && !got {
			t.Errorf("%s: no Status field", r.kind)
		}
		if r.generation && r.plural != "priorityclasses" && !fieldOf(r.newObject(), "Spec").IsValid() {
			t.Errorf("%s: no Spec field", r.kind)
		}
		if _, ok := r.selectable()[r.indexed]; r.indexed != "" && !ok {
			t.Errorf("%s: indexed by %s, which it cannot be selected by", r.kind, r.indexed)
		}
		if newStrategy(scheme, r).name == nil {
			t.Errorf("%s: no rule for names", r.kind)
		}
	}
}

func TestUpdateKeepsWhatItMayNotWrite(t *testing.T) {
	rows, scheme := All(), runtime.NewScheme()
	f := randfill.NewWithSeed(2).NilChance(0.5).NumElements(1, 2).MaxDepth(6)
	for i := range rows {
		r := &rows[i]
		if !r.status || r.kind == "CertificateSigningRequest" || r.kind == "Service" {
			continue // tested with the server
		}
		s := newStrategy(scheme, r)
		for range 10 {
			old, obj := r.newObject(), r.newObject()
			f.Fill(old)
			f.Fill(obj)
			was := old.DeepCopyObject()
			status := fieldOf(old, "Status").Interface()
			update := obj.DeepCopyObject()
			s.PrepareForUpdate(context.Background(), update, old)
			if !equality.Semantic.DeepEqual(fieldOf(update, "Status").Interface(), status) {
				t.Fatalf("%s: an update wrote the status", r.kind)
			}
			spec := fieldOf(old, "Spec").Interface()
			update = obj.DeepCopyObject()
			statusStrategy{s}.PrepareForUpdate(context.Background(), update, old)
			if !equality.Semantic.DeepEqual(fieldOf(update, "Spec").Interface(), spec) {
				t.Fatalf("%s: a status update wrote the spec", r.kind)
			}
			if !equality.Semantic.DeepEqual(old, was) {
				t.Fatalf("%s: the old object was changed", r.kind)
			}
		}
	}
}
