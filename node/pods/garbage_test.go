package pods

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// deadAt is when the newest of the containers of these tests was made.
var deadAt = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// dead makes a container of a pod that has ended, made so long before deadAt. Its id is
// POD/NAME#ATTEMPT.
func dead(pod, name string, attempt int, before time.Duration) runtime.ContainerStatus {
	return runtime.ContainerStatus{
		ID: fmt.Sprintf("%s/%s#%d", pod, name, attempt), Pod: runtime.PodID{UID: types.UID(pod)}, Name: name, Attempt: attempt,
		State: runtime.Exited, CreatedAt: deadAt.Add(-before),
	}
}

// fiveByFour are five units of four attempts each. Attempt n of unit u was made u
// seconds and 3-n minutes before deadAt: of two units the first is the newer.
func fiveByFour() []runtime.ContainerStatus {
	var list []runtime.ContainerStatus
	for u := range 5 {
		for n := range 4 {
			list = append(list, dead(fmt.Sprint("u", u), "c", n, time.Duration(u)*time.Second+time.Duration(3-n)*time.Minute))
		}
	}
	return list
}

func TestGarbage(t *testing.T) {
	three := []runtime.ContainerStatus{dead("a", "c", 0, 3*time.Hour), dead("a", "c", 1, 2*time.Hour), dead("a", "c", 2, time.Hour)}
	running := func(c runtime.ContainerStatus) runtime.ContainerStatus { c.State = runtime.Running; return c }
	created := func(c runtime.ContainerStatus) runtime.ContainerStatus { c.State = runtime.Created; return c }
	tests := map[string]struct {
		have    []runtime.ContainerStatus
		deleted string // pods
		keep    Retention
		kept    string
	}{
		"GC29 no minimum age":                    {three, "", Retention{0, 0, -1}, ""},
		"GC29 minimum age, counted from made":    {three, "", Retention{2 * time.Hour, 0, -1}, "a/c#2"},
		"GC29 the young do not count":            {three, "", Retention{2 * time.Hour, 1, -1}, "a/c#1 a/c#2"},
		"GC29 none is old enough":                {three, "a", Retention{4 * time.Hour, 0, 0}, "a/c#0 a/c#1 a/c#2"},
		"GC30 default":                           {three, "", Retention{0, DefaultPerContainer, DefaultTotal}, "a/c#2"},
		"GC30 two":                               {three, "", Retention{0, 2, -1}, "a/c#1 a/c#2"},
		"GC30 negative keeps all":                {three, "", Retention{0, -1, -1}, "a/c#0 a/c#1 a/c#2"},
		"GC30 more than there are":               {three, "", Retention{0, 9, -1}, "a/c#0 a/c#1 a/c#2"},
		"GC30 containers of a pod are apart":     {append(slices.Clone(three), dead("a", "d", 0, 9*time.Hour), dead("a", "d", 1, 8*time.Hour)), "", Retention{0, 1, -1}, "a/c#2 a/d#1"},
		"GC30 what runs is none of the kept":     {append(slices.Clone(three), running(dead("a", "c", 3, 0))), "", Retention{0, 1, -1}, "a/c#2 a/c#3"},
		"GC30 attempts made at the same time":    {[]runtime.ContainerStatus{dead("a", "c", 9, 0), dead("a", "c", 10, 0)}, "", Retention{0, 1, -1}, "a/c#10"},
		"GC31 total, each has an equal share":    {fiveByFour(), "", Retention{0, -1, 10}, "u0/c#2 u0/c#3 u1/c#2 u1/c#3 u2/c#2 u2/c#3 u3/c#2 u3/c#3 u4/c#2 u4/c#3"},
		"GC31 total not reached":                 {three, "", Retention{0, -1, 3}, "a/c#0 a/c#1 a/c#2"},
		"GC31 none":                              {fiveByFour(), "", Retention{0, 1, 0}, ""},
		"GC31 a share is rounded down":           {append(slices.Clone(three), dead("b", "c", 0, 0)), "", Retention{0, -1, 3}, "a/c#2 b/c#0"},
		"GC32 pods nobody knows":                 {append(slices.Clone(three), dead("b", "c", 0, 0)), "b", Retention{0, -1, -1}, "a/c#0 a/c#1 a/c#2"},
		"GC32 they do not count":                 {append(fiveByFour(), dead("b", "c", 0, 0)), "b", Retention{0, 1, 5}, "u0/c#3 u1/c#3 u2/c#3 u3/c#3 u4/c#3"},
		"GC33 five by four, 3 each, 5 in all":    {fiveByFour(), "", Retention{0, 3, 5}, "u0/c#3 u1/c#3 u2/c#3 u3/c#3 u4/c#3"},
		"GC33 five by four, 3 each, 3 in all":    {fiveByFour(), "", Retention{0, 3, 3}, "u0/c#3 u1/c#3 u2/c#3"},
		"GC34 deleted, old enough":               {three, "a", Retention{time.Hour, -1, -1}, ""},
		"GC34 deleted, not all old enough":       {three, "a", Retention{90 * time.Minute, -1, -1}, "a/c#2"},
		"GC35 without a pod":                     {append(slices.Clone(three), dead("", "x", 0, 99*time.Hour)), "a ", Retention{0, 0, 0}, "/x#0"},
		"GC35 without a name":                    {append(slices.Clone(three), dead("b", "", 0, 99*time.Hour)), "a b", Retention{0, 0, 0}, "b/#0"},
		"running and created ones stay":          {[]runtime.ContainerStatus{running(dead("a", "c", 0, time.Hour)), created(dead("a", "c", 1, 0))}, "a", Retention{0, 0, 0}, "a/c#0 a/c#1"},
		"a clock that was put back":              {[]runtime.ContainerStatus{dead("a", "c", 0, -99*time.Hour)}, "", Retention{0, 0, -1}, ""},
		"a clock that was put back, minimum age": {[]runtime.ContainerStatus{dead("a", "c", 0, -99*time.Hour)}, "", Retention{1, 0, -1}, "a/c#0"},
		"nothing":                                {nil, "", Retention{0, 0, 0}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			deleted := func(uid types.UID) bool {
				return slices.Contains(strings.Split(tt.deleted, " "), string(uid)) && tt.deleted != ""
			}
			cut := garbage(tt.have, deleted, tt.keep, deadAt)
			var kept []string
			for _, c := range tt.have {
				if !slices.ContainsFunc(cut, func(g runtime.ContainerStatus) bool { return g.ID == c.ID }) {
					kept = append(kept, c.ID)
				}
			}
			slices.Sort(kept)
			if got := strings.Join(kept, " "); got != tt.kept {
				t.Errorf("kept %q, want %q", got, tt.kept)
			}
		})
	}
}

// TestGarbageOrder: a bound of the work drops the least important removals.
func TestGarbageOrder(t *testing.T) {
	have := []runtime.ContainerStatus{
		dead("a", "c", 2, time.Minute), dead("a", "c", 0, 3*time.Minute), dead("a", "c", 1, 2*time.Minute),
		dead("b", "c", 0, time.Hour), dead("b", "c", 1, 0), dead("gone", "c", 1, 0), dead("gone", "c", 0, time.Second),
	}
	var got []string
	for _, c := range garbage(have, func(uid types.UID) bool { return uid == "gone" }, Retention{0, 1, 1}, deadAt) {
		got = append(got, c.ID)
	}
	if want := "gone/c#0 gone/c#1 b/c#0 a/c#0 a/c#1 a/c#2"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestGarbageOfAnything checks the rules with random lists.
func TestGarbageOfAnything(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // of a test
		var have []runtime.ContainerStatus
		for i := range r.IntN(60) {
			c := dead(fmt.Sprint(r.IntN(4)), fmt.Sprint(r.IntN(3)), i, time.Duration(r.IntN(100))*time.Minute)
			c.State = []runtime.State{runtime.Running, runtime.Exited, runtime.Exited}[r.IntN(3)]
			have = append(have, c)
		}
		keep := Retention{time.Duration(r.IntN(2)*r.IntN(60)) * time.Minute, r.IntN(5) - 1, r.IntN(12) - 1}
		cut := map[string]bool{}
		for _, c := range garbage(have, func(uid types.UID) bool { return uid == "0" }, keep, deadAt) {
			if cut[c.ID] || c.State != runtime.Exited || keep.young(&c, deadAt) {
				t.Fatalf("seed %d: %s is to be removed twice, runs or is young", seed, c.ID)
			}
			cut[c.ID] = true
		}
		total, of := 0, map[unit]int{}
		for i := range have {
			if c := &have[i]; !cut[c.ID] && c.State == runtime.Exited && !keep.young(c, deadAt) {
				total++
				of[unit{c.Pod.UID, c.Name}]++
			}
		}
		for u, n := range of {
			if keep.PerContainer >= 0 && n > keep.PerContainer || u.pod == "0" {
				t.Errorf("seed %d, %+v: %d are left of %v", seed, keep, n, u)
			}
		}
		if keep.Total >= 0 && total > keep.Total {
			t.Errorf("seed %d, %+v: %d are left", seed, keep, total)
		}
	}
}
