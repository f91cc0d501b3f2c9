package pods

// Tests of variables and of what refers to them.

import (
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestExpandPath: a variable without a value would lead to another directory.
func TestExpandPath(t *testing.T) {
	vars := newVariables(map[string]string{"A": "a", "EMPTY": ""})
	if got, err := vars.expandPath("x/$(A)/$$(A)"); got != "x/a/$(A)" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, s := range []string{"$(EMPTY)", "$(A)/$(NONE)"} {
		if got, err := vars.expandPath(s); err == nil || got != "" || !strings.Contains(err.Error(), "missing value for") {
			t.Errorf("%s: %q, %v", s, got, err)
		}
	}
}

func TestExpand(t *testing.T) {
	vars := newVariables(map[string]string{"A": "1", "B": "$(A)", "EMPTY": ""})
	for in, want := range map[string]string{
		"":                 "",
		"plain":            "plain",
		"$(A)":             "1",
		"x$(A)y$(A)":       "x1y1",
		"$(B)":             "$(A)", // once only
		"$(NONE)":          "$(NONE)",
		"$(EMPTY)":         "",
		"$$(A)":            "$(A)",
		"$$$(A)":           "$1",
		"$$$$":             "$$",
		"$":                "$",
		"a$":               "a$",
		"$A":               "$A",
		"$(A":              "$(A",
		"$(A $(A)":         "$(A $(A)",
		"$(A)$(A$$":        "1$(A$",
		")$(A":             ")$(A",
		"$()":              "$()",
		"${A}":             "${A}",
		"$(A)$":            "1$",
		"sh -c 'echo $$1'": "sh -c 'echo $1'",
	} {
		if got, err := vars.expand(in); got != want || err != nil {
			t.Errorf("expand(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	open := strings.Repeat("$(", 1<<19)
	if got, err := vars.expand(open); got != open || err != nil {
		t.Errorf("half a million variables without ends become %d bytes, %v", len(got), err)
	}
}

// FuzzExpand: nothing is lost of a text without dollars, and expanding with an
// empty environment loses nothing but doubled dollars.
func FuzzExpand(f *testing.F) {
	f.Add("a$(B)c$$")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := newVariables(nil).expand(s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ReplaceAll(s, "$$", "$") != got && !strings.Contains(s, "$$") {
			t.Errorf("expand(%q) = %q", s, got)
		}
		if len(got) > len(s) {
			t.Errorf("expand(%q) = %q has grown", s, got)
		}
	})
}

// grown has variables A0 to An, each of which is 16 times as long as the one before. A0 has 16 bytes.
func grown(n int) []corev1.EnvVar {
	env := []corev1.EnvVar{{Name: "A0", Value: strings.Repeat("x", 16)}}
	for i := range n {
		env = append(env, corev1.EnvVar{
			Name: "A" + strconv.Itoa(i+1), Value: strings.Repeat("$(A"+strconv.Itoa(i)+")", 16),
		})
	}
	return env
}

// TestExpandTooMuch: a pod of a kilobyte cannot take all memory of the agent, by its variables, its
// arguments or the command of a probe.
func TestExpandTooMuch(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		for name, change := range map[string]func(c *corev1.Container){
			"variables": func(c *corev1.Container) { c.Env = grown(6) },
			"arguments": func(c *corev1.Container) {
				c.Env = grown(4)
				c.Args = []string{strings.Repeat("$(A4)", 4)}
			},
			"probe": func(c *corev1.Container) {
				c.Env = append(grown(2), corev1.EnvVar{Name: "B", Value: strings.Repeat("x", 1<<16)})
				c.LivenessProbe = &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{strings.Repeat("$(B)", 33)}}},
					PeriodSeconds: 1, FailureThreshold: 1,
				}
			},
		} {
			w.create(newPod(name, func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }))
		}
		advance(5 * time.Second)
		for _, name := range []string{"variables", "arguments"} {
			w.wantState(name, "main", "Waiting CreateContainerConfigError")
		}
		const why = "variables and arguments of a container take more than 2 MiB together: shorten them"
		w.wantEvent(`variables Warning Failed Error: variable "A5": ` + why)
		w.wantEvent("arguments Warning Failed Error: argument 1: " + why)
		w.wantState("probe", "main", "Running")
		w.wantEvent("probe Warning Unhealthy Liveness probe errored and resulted in unknown state: run probe command: argument 0: " + why)
	})
}

// What a kernel takes is not refused, and each way to a value counts.
func TestArgumentsBound(t *testing.T) {
	half := strings.Repeat("x", maxArguments/2-1) // and a name of one byte
	for _, tt := range []struct {
		env  []corev1.EnvVar
		path string
		ok   bool
	}{
		{[]corev1.EnvVar{{Name: "A", Value: half}}, "x", true},
		{[]corev1.EnvVar{{Name: "A", Value: half}, {Name: "B", Value: "$(A)"}}, "", true},
		{[]corev1.EnvVar{{Name: "A", Value: half}, {Name: "B", Value: "$(A)x"}}, "", false},
		{[]corev1.EnvVar{{Name: "A", Value: half}}, "$(A)xx", false},
		{[]corev1.EnvVar{{Name: "A", Value: half}, {Name: "B", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['x']"},
		}}}, "", false},
	} {
		vars := newVariables(map[string]string{})
		pod := newPod("p", func(p *corev1.Pod) { p.Labels = map[string]string{"x": half + "x"} })
		err := environment(t.Context(), nil, nil, pod, &corev1.Container{Env: tt.env}, downward.Facts{}, vars)
		if err == nil {
			_, err = vars.expandPath(tt.path)
		}
		if (err == nil) != tt.ok {
			t.Errorf("%d variables, path %q: %v", len(tt.env), tt.path, err)
		}
	}
}

// TestReplacedVariablesTakeNoRoom: three sources of the same large variables make one environment.
func TestReplacedVariablesTakeNoRoom(t *testing.T) {
	vars, large := newVariables(map[string]string{}), strings.Repeat("x", maxArguments/3)
	for range 4 {
		for _, name := range []string{"A", "B"} {
			if err := vars.set(name, large); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := vars.set("C", large+large); err == nil {
		t.Error("what is not replaced takes no room")
	}
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "A", Value: "$(B)"}, {Name: "A", Value: "$(B)"}, {Name: "A", Value: "$(B)"}}}
	if err := environment(t.Context(), nil, nil, nil, c, downward.Facts{}, vars); err != nil {
		t.Error(err)
	}
}
