package revision

// Templates and what is remembered of them. What is done to revisions is tested with their
// owners' controllers.

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func template(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func of(t *testing.T, data string) *Revision {
	t.Helper()
	return &Revision{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Data: runtime.RawExtension{Raw: []byte(data)}}
}

// TestData: what is written of a template is what Kubernetes' controllers write, and gives
// it back.
func TestData(t *testing.T) {
	data, err := Data(template("one"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"image":"one","name":"c","resources":{}}]}}}}`
	if string(data) != want {
		t.Errorf("data %s, want %s", data, want)
	}
	if back, err := Template(of(t, want)); err != nil || !equality.Semantic.DeepEqual(back, template("one")) {
		t.Errorf("%+v, %v", back, err)
	}
	for data, said := range map[string]string{
		``: "controller revision r: ", `[]`: "controller revision r: ", `{}`: "r has no template", `{"spec":{"template":null}}`: "r has no template",
		`{"spec":{"template":{"spec":{"containers":1}}}}`: "controller revision r: ",
	} {
		if _, err := Template(of(t, data)); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v, want %s", data, err, said)
		}
	}
}

// TestSame: a template is found again, also if another server wrote more of it.
func TestSame(t *testing.T) {
	one, err := Data(template("one"))
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(one), `"name":"c"`, `"name":"c","newField":1`, 1)
	all := []*Revision{of(t, string(one)), of(t, newer), of(t, strings.ReplaceAll(string(one), "one", "two")), of(t, "{")}
	same, err := Same(all, template("one"))
	if err != nil || len(same) != 2 || same[0] != all[0] || same[1] != all[1] {
		t.Errorf("%v, %v", same, err)
	}
}

// TestHashes: a count of collisions makes another name; a StatefulSet's counts from none.
func TestHashes(t *testing.T) {
	data, err := Data(template("one"))
	if err != nil {
		t.Fatal(err)
	}
	if DataHash(nil, data, nil) != DataHash(nil, data, ptr.To[int32](0)) || DataHash(nil, data, nil) == DataHash(nil, data, ptr.To[int32](1)) {
		t.Error("hashes of data")
	}
	if TemplateHash(template("one"), nil, nil) == TemplateHash(template("one"), nil, ptr.To[int32](0)) {
		t.Error("hashes of templates")
	}
}

// FuzzTemplate: what anybody has written into a revision is a template or an error, and a
// template that was read is written and read the same.
func FuzzTemplate(f *testing.F) {
	for _, data := range []string{`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"a"}},"spec":{"containers":[{"image":"one","name":"c"}]}}}}`, `{}`, `{"spec":{"template":{}}}`, `[`} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		had, err := Template(of(t, string(raw)))
		if err != nil {
			return
		}
		data, err := Data(had)
		if err != nil {
			t.Skip() // a time that JSON cannot say
		}
		if again, err := Template(of(t, string(data))); err != nil || !equality.Semantic.DeepEqual(again, had) {
			t.Errorf("%s became %s: %v", raw, data, err)
		}
	})
}
