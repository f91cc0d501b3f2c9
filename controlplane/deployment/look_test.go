package deployment

// Tests of single decisions.

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/children"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestBounds(t *testing.T) {
	for _, tc := range []struct {
		n                          int
		inSurge, inUnavailable     string
		wantSurge, wantUnavailable int
	}{
		{10, "25%", "25%", 3, 2},
		{1, "25%", "25%", 1, 0},
		{10, "3", "2", 3, 2},
		{2, "0", "5", 0, 2},
		{2, "0", "10%", 0, 1},
		{0, "0", "0", 0, 0},
		{3, "100%", "0", 3, 0},
	} {
		s := rolling(tc.inSurge, tc.inUnavailable)
		if surge, unavailable := bounds(&s, tc.n); surge != tc.wantSurge || unavailable != tc.wantUnavailable {
			t.Errorf("%d pods, %s and %s: %d and %d, want %d and %d", tc.n, tc.inSurge, tc.inUnavailable, surge, unavailable, tc.wantSurge, tc.wantUnavailable)
		}
	}
	if surge, unavailable := bounds(&appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, 10); surge != 0 || unavailable != 0 {
		t.Errorf("Recreate: %d and %d", surge, unavailable)
	}
}

// A had is a set: its size, and how many of its pods serve.
type had struct{ size, available int32 }

// lookAt is a look at a Deployment of n pods that has sets; the last one is fresh.
func lookAt(n int32, surge, unavailable string, sets ...had) *look {
	var all []*appsv1.ReplicaSet
	for i, s := range sets {
		image := fmt.Sprintf("v%d", i+1)
		if i == len(sets)-1 {
			image = "fresh"
		}
		all = append(all, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: image, UID: types.UID(image), CreationTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Minute))},
			Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To(s.size), Template: template(image)},
			Status:     appsv1.ReplicaSetStatus{AvailableReplicas: s.available},
		})
	}
	d := web(n, func(d *appsv1.Deployment) {
		d.Spec.Template, d.Spec.Strategy = template("fresh"), rolling(surge, unavailable)
	})
	return newLook(d, all, now)
}

func (l *look) String() string {
	var out []string
	for _, rs := range l.old {
		out = append(out, fmt.Sprint(size(rs)))
	}
	return strings.Join(append(out, fmt.Sprint(size(l.fresh))), " ")
}

func TestGrow(t *testing.T) {
	for _, tc := range []struct {
		l    *look
		want string
	}{
		{lookAt(10, "3", "2", had{10, 10}, had{0, 0}), "10 3"},
		{lookAt(10, "3", "2", had{8, 8}, had{3, 0}), "8 5"},
		{lookAt(10, "3", "2", had{8, 8}, had{5, 5}), "8 5"},
		{lookAt(10, "3", "2", had{2, 2}, had{9, 9}), "2 10"},
		{lookAt(10, "3", "2", had{0, 0}, had{12, 12}), "0 10"},
		{lookAt(10, "0", "1", had{12, 12}, had{0, 0}), "12 0"},
	} {
		before := tc.l.String()
		if changed := tc.l.grow(); tc.l.String() != tc.want || changed != (before != tc.want) {
			t.Errorf("%s: %s, %v; want %s", before, tc.l, changed, tc.want)
		}
	}
}

// TestShrink: old pods that do not serve go first, those that do only as far as others
// serve in their place.
func TestShrink(t *testing.T) {
	for _, tc := range []struct {
		l    *look
		want string
	}{
		{lookAt(10, "3", "2", had{10, 10}, had{3, 0}), "8 3"},
		{lookAt(10, "3", "2", had{8, 8}, had{5, 0}), "8 5"},
		{lookAt(10, "3", "2", had{8, 8}, had{5, 5}), "3 5"},
		{lookAt(10, "3", "2", had{8, 7}, had{5, 0}), "8 5"},              // one has failed: no worse
		{lookAt(10, "3", "2", had{8, 8}, had{5, 0}, had{0, 0}), "8 0 0"}, // those of a bad template
		{lookAt(10, "3", "2", had{4, 2}, had{9, 9}, had{0, 0}), "0 8 0"}, // the idle ones, then those of the oldest
		{lookAt(10, "3", "2", had{5, 10}, had{3, 0}), "5 3"},             // a status from before it was made smaller
		{lookAt(5, "3", "2", had{5, 8}, had{3, 0}), "3 3"},
		{lookAt(10, "3", "2", had{0, 0}, had{10, 10}), "0 10"},
		{lookAt(1, "1", "0", had{1, 1}, had{1, 0}), "1 1"},
		{lookAt(1, "1", "0", had{1, 1}, had{1, 1}), "0 1"},
	} {
		before := tc.l.String()
		if changed := tc.l.shrink(); tc.l.String() != tc.want || changed != (before != tc.want) {
			t.Errorf("%s: %s, %v; want %s", before, tc.l, changed, tc.want)
		}
	}
}

// TestCountMost: the pods of two sets that the largest Deployment misses are more than a status
// can say.
func TestCountMost(t *testing.T) {
	l := lookAt(math.MaxInt32, "100%", "0", had{math.MaxInt32, 1}, had{math.MaxInt32, 0})
	if s := l.count(); s.UnavailableReplicas != math.MaxInt32 {
		t.Errorf("unavailable %d", s.UnavailableReplicas)
	}
}

// TestRescale: each of several sets keeps its share; one alone gets all.
func TestRescale(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before int32 // how many pods the Deployment had
		l      *look
		want   string
	}{
		{"one", 10, lookAt(4, "3", "2", had{10, 10}), "4"},
		{"one old", 10, lookAt(4, "3", "2", had{10, 10}, had{0, 0}), "4 0"},
		{"none", 0, lookAt(4, "3", "2", had{0, 0}, had{0, 0}), "0 4"},
		{"up", 10, lookAt(15, "3", "2", had{8, 8}, had{5, 0}), "11 7"},
		{"down", 10, lookAt(5, "3", "2", had{8, 8}, had{5, 0}), "5 3"},
		{"to none", 10, lookAt(0, "3", "2", had{8, 8}, had{5, 0}), "0 0"},
		{"three, up", 10, lookAt(20, "0", "2", had{4, 4}, had{3, 3}, had{3, 0}), "8 6 6"},
		{"what is left over, up", 10, lookAt(11, "0", "2", had{5, 5}, had{5, 0}), "5 6"},
		{"what is left over, down", 10, lookAt(9, "0", "2", had{5, 5}, had{5, 0}), "4 5"},
		{"saturated", 10, func() *look {
			l := lookAt(10, "3", "2", had{3, 3}, had{10, 10})
			l.fresh.Annotations = map[string]string{DesiredReplicas: "10"}
			return l
		}(), "0 10"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, rs := range tc.l.sets() {
				if rs.Annotations == nil {
					rs.Annotations = map[string]string{DesiredReplicas: fmt.Sprint(tc.before), MaxReplicas: fmt.Sprint(int(tc.before) + tc.l.surge)}
				}
			}
			tc.l.rescale()
			if got := tc.l.String(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if tc.l.scaled() {
				t.Error("it wants to be scaled again")
			}
		})
	}
}

func TestRemember(t *testing.T) {
	if got := remember(remember("", "1"), "12"); got != "1,12" {
		t.Errorf("%q", got)
	}
	history := ""
	for i := range 3000 {
		history = remember(history, fmt.Sprint(i))
	}
	if len(history) > maxHistory || len(history) < maxHistory-10 || !strings.HasSuffix(history, ",2998,2999") {
		t.Errorf("%d bytes: …%s", len(history), history[len(history)-20:])
	}
}

// TestFound: a set that was there before progress was judged counts from now on.
func TestFound(t *testing.T) {
	l := lookAt(2, "1", "0", had{2, 0})
	l.revise()
	c := condition(&l.d.Status, appsv1.DeploymentProgressing)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "FoundNewReplicaSet" || c.Message != `Found new replica set "fresh"` || !c.LastUpdateTime.Time.Equal(now) {
		t.Errorf("condition %+v", c)
	}
	for _, none := range []*int32{nil, ptr.To[int32](math.MaxInt32)} {
		l := lookAt(2, "1", "0", had{2, 0})
		l.d.Spec.ProgressDeadlineSeconds = none
		l.revise()
		if len(l.d.Status.Conditions) != 0 {
			t.Errorf("without a deadline: %+v", l.d.Status.Conditions)
		}
	}
}

// TestHash: names of sets are told apart by template and by count of collisions, and
// are names.
func TestHash(t *testing.T) {
	a, b := template("a"), template("b")
	seen := make(map[string]bool)
	for _, h := range []string{children.TemplateHash(&a, nil), children.TemplateHash(&b, nil), children.TemplateHash(&a, ptr.To[int32](1)), children.TemplateHash(&a, ptr.To[int32](2))} {
		if seen[h] || len(h) < 2 || len(h) > 10 {
			t.Errorf("hash %q", h)
		}
		seen[h] = true
	}
	again := template("a")
	if children.TemplateHash(&a, nil) != children.TemplateHash(&again, nil) {
		t.Error("a template has two hashes")
	}
	long := strings.Repeat("a", 241) + "." + strings.Repeat("b", 11)
	if n := setName(long, "1234567890"); len(n) > 253 || n != strings.Repeat("a", 241)+"-1234567890" {
		t.Errorf("%q", n)
	}
}
