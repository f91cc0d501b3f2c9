package fakeruntime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var env = []string{"A=1", "HOSTNAME=web-0"}

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		want performance
	}{
		{nil, performance{}},
		{[]string{"nginx", "-g"}, performance{}},
		{[]string{"/bin/true"}, performance{known: true}},
		{[]string{"false"}, performance{known: true, code: 1}},
		{[]string{"echo", "a", "b"}, performance{known: true, output: "a b\n"}},
		{[]string{"env"}, performance{known: true, output: "A=1\nHOSTNAME=web-0\n"}},
		{[]string{"hostname"}, performance{known: true, output: "web-0\n"}},
		{[]string{"sleep", "1.5"}, performance{known: true, lasts: 1500 * time.Millisecond}},
		{[]string{"sleep", "2m"}, performance{known: true, lasts: 2 * time.Minute}},
		{[]string{"sleep", "infinity"}, performance{known: true, lasts: maxSleep}},
		{[]string{"sleep", "1e30"}, performance{known: true, lasts: maxSleep}},
		{[]string{"sleep", "-1"}, performance{}},
		{[]string{"sleep", "NaN"}, performance{}},
		{[]string{"sleep"}, performance{}},
		{[]string{"cat"}, performance{known: true, copies: true}},
		{[]string{"sh"}, performance{}},
		{[]string{"sh", "-c", "echo 'hi' you; sleep 1 && exit 3; echo no"}, performance{known: true, output: "hi you\n", lasts: time.Second, code: 3}},
		{[]string{"sh", "-c", "false && echo no; echo yes"}, performance{known: true, output: "yes\n"}},
		{[]string{"sh", "-c", "echo $HOME"}, performance{}},
		{[]string{"sh", "-c", "while true; do sleep 1; done"}, performance{}},
		{[]string{"sh", "-c", "sleep 1 & exit 1"}, performance{}},
		{[]string{"sh", "-c", "exit 256"}, performance{}},
	} {
		if got := plan(tt.argv, env); !got.equal(tt.want) {
			t.Errorf("%q: got %+v, want %+v", tt.argv, got, tt.want)
		}
	}
}

// equal leaves out what means nothing when a command is not known.
func (p performance) equal(q performance) bool { return p == q || !p.known && !q.known }

// start starts a container and returns its id and its log.
func start(t *testing.T, r *Runtime, argv ...string) (string, string) {
	t.Helper()
	pod := runtime.PodID{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web-0"}, UID: "u"}
	if _, err := r.EnsureSandbox(t.Context(), runtime.Sandbox{Pod: pod}); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "0.log")
	id, err := r.Start(t.Context(), runtime.Container{Pod: pod, Name: "c", Argv: argv, Env: env, Image: "nginx", LogPath: log})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return id, string(b)
}

// A container ends when its command would, and says what it was asked for.
func TestContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New("sim-1")
		server, log := start(t, r, "nginx")
		if !strings.Contains(log, `stdout F pretending to run ["nginx"] of image nginx in container c of pod default/web-0 on node sim-1`) {
			t.Errorf("log: %s", log)
		}
		time.Sleep(24 * time.Hour)
		if st := state(t, r, server); st.State != runtime.Running {
			t.Errorf("a server is %s", st.State)
		}
		if err := r.Stop(t.Context(), server, time.Second); err != nil {
			t.Fatal(err)
		}
		if st := state(t, r, server); st.ExitCode != 143 {
			t.Errorf("stopped with %d", st.ExitCode)
		}
		if err := r.Remove(t.Context(), server); err != nil {
			t.Fatal(err)
		}
		job, log := start(t, r, "sh", "-c", "echo working; sleep 10; exit 2")
		if !strings.HasSuffix(log, " stdout F working\n") {
			t.Errorf("log: %s", log)
		}
		began := time.Now()
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := state(t, r, job); st.State != runtime.Exited || st.ExitCode != 2 || st.EndedAt.Sub(began) != 10*time.Second {
			t.Errorf("job: %+v", st)
		}
		if r.Calls() != nil {
			t.Errorf("%d calls are kept", len(r.Calls()))
		}
		if err := r.Violations(); err != nil {
			t.Error(err)
		}
	})
}

func state(t *testing.T, r *Runtime, id string) runtime.ContainerStatus {
	t.Helper()
	all, err := r.Containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("no container %s", id)
	return runtime.ContainerStatus{}
}

func TestExec(t *testing.T) {
	r := New("sim-1")
	id, _ := start(t, r, "nginx")
	exec := func(ctx context.Context, in string, argv ...string) (string, int, error) {
		var out bytes.Buffer
		code, err := r.Exec(ctx, id, argv, runtime.Stdio{In: strings.NewReader(in), Out: &out})
		return out.String(), code, err
	}
	if out, code, err := exec(t.Context(), "typed", "cat"); out != "typed" || code != 0 || err != nil {
		t.Errorf("cat: %q, %d, %v", out, code, err)
	}
	if out, code, err := exec(t.Context(), "", "sh", "-c", "hostname; exit 4"); out != "web-0\n" || code != 4 || err != nil {
		t.Errorf("sh: %q, %d, %v", out, code, err)
	}
	var start *runtime.StartError
	if _, _, err := exec(t.Context(), "", "ls", "/"); !errors.As(err, &start) || start.ExitCode != 127 || !strings.Contains(err.Error(), "sim-1") {
		t.Errorf("ls: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := exec(ctx, "", "sleep", "1h"); !errors.Is(err, context.Canceled) {
		t.Errorf("sleep that was cut short: %v", err)
	}
	if info, err := r.Info(t.Context()); err != nil || info.Name != "fake" {
		t.Errorf("%+v, %v", info, err)
	}
}
