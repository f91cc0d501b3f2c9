package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
)

func TestMain(m *testing.M) {
	ShimMain()
	if os.Getenv(attackEnv) != "" {
		attackMain()
		return
	}
	if os.Getenv(agentEnv) != "" {
		agentMain()
		return
	}
	if addr := os.Getenv(listenEnv); addr != "" {
		listenMain(addr)
		return
	}
	if os.Geteuid() == 0 && os.Getenv(mountsEnv) == "" {
		if code, ok := withOwnMounts(); ok {
			os.Exit(code)
		}
	}
	goleak.VerifyTestMain(m)
}

// testCgroup is this test process's own, so that several do not see each other's.
func testCgroup() string {
	if name := os.Getenv("HAWSER_TEST_CGROUP"); name != "" {
		return name
	}
	return fmt.Sprintf("hawser-test-%d", os.Getpid())
}

// patience bounds every wait, and all that a rig does. It is far more than any takes.
const patience = 2 * time.Minute

// A rig is a runtime in operation, and what a caller needs to use it.
type rig struct {
	*Runtime
	t    *testing.T
	ctx  context.Context
	logs string
	stop func() // ends Run, containers go on
}

func newRig(t *testing.T, c Config) *rig {
	t.Helper()
	if c.DataDir == "" {
		c.DataDir = t.TempDir()
	}
	if c.Log == nil && testing.Verbose() {
		c.Log = testLog(t)
	}
	c.Version, c.CgroupParent = "v0-test", testCgroup()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	run, stopRun := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- r.Run(run) }()
	g := &rig{Runtime: r, t: t, ctx: ctx, logs: filepath.Join(c.DataDir, "logs")}
	var made *cgroups
	stopped := false
	g.stop = func() {
		if stopped {
			return
		}
		stopped = true
		stopRun()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(func() {
		if !stopped {
			g.clear()
		}
		g.stop()
		cancel()
		if made != nil {
			made.base.tryRemove()
		}
	})
	if err := r.Healthy(ctx); err != nil {
		t.Fatal(err)
	}
	made = r.cgroups
	return g
}

// clear ends and removes all containers.
func (g *rig) clear() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.ctx), patience)
	defer cancel()
	list, err := g.Containers(ctx)
	if err != nil {
		g.t.Error(err)
	}
	for _, c := range list {
		if err = g.Stop(ctx, c.ID, 0); err != nil {
			g.t.Errorf("stop: %v", err)
		}
		// The shims are tested for races too; this is where they say so.
		if b, rerr := os.ReadFile(filepath.Join(g.containersDir(), c.ID, stderrName)); rerr != nil || len(b) > 0 {
			g.t.Errorf("shim of %s: %s %v", c.Name, b, rerr)
		}
		if err = g.Remove(ctx, c.ID); err != nil {
			g.t.Errorf("remove: %v", err)
		}
	}
	pods, err := g.Sandboxes(ctx)
	if err != nil {
		g.t.Error(err)
	}
	for _, p := range pods {
		if err = g.RemoveSandbox(ctx, p); err != nil {
			g.t.Error(err)
		}
	}
	left, err := os.ReadDir(g.containersDir())
	if err != nil || len(left) > 0 {
		g.t.Errorf("left behind: %v %v", left, err)
	}
}

var testPod = runtime.PodID{NamespacedName: types.NamespacedName{Namespace: "default", Name: "pod"}, UID: "uid-1"}

// container describes one that runs a script.
func (g *rig) container(name, script string) runtime.Container {
	g.t.Helper()
	if err := os.MkdirAll(g.logs, 0o700); err != nil {
		g.t.Fatal(err)
	}
	return runtime.Container{
		Pod:     testPod,
		Name:    name,
		Image:   "none",
		Argv:    []string{"/bin/sh", "-c", script},
		LogPath: filepath.Join(g.logs, name+".log"),
	}
}

func (g *rig) start(c runtime.Container) string {
	g.t.Helper()
	id, err := g.Start(g.ctx, c)
	if err != nil {
		g.t.Fatal(err)
	}
	return id
}

func (g *rig) status(id string) runtime.ContainerStatus {
	g.t.Helper()
	list, err := g.Containers(g.ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, c := range list {
		if c.ID == id {
			return c
		}
	}
	g.t.Fatalf("container %s is not listed", id)
	return runtime.ContainerStatus{}
}

// wait waits until the container has ended.
func (g *rig) wait(id string) runtime.ContainerStatus {
	g.t.Helper()
	c, err := g.find(g.ctx, id)
	if err != nil {
		g.t.Fatal(err)
	}
	select {
	case <-c.ended:
	case <-g.ctx.Done():
		g.t.Fatalf("container %s does not end", id)
	}
	return g.status(id)
}

// waitGone waits until only the record of the container is left.
func (g *rig) waitGone(id string) {
	g.t.Helper()
	c, err := g.find(g.ctx, id)
	if err != nil {
		g.t.Fatal(err)
	}
	select {
	case <-c.gone:
	case <-g.ctx.Done():
		g.t.Fatalf("the shim of container %s does not end", id)
	}
}

// log is the container's output so far.
func (g *rig) log(id string) string {
	g.t.Helper()
	var b bytes.Buffer
	if err := crilog.Read(g.ctx, g.status(id).LogPath, crilog.Options{}, &b, nil); err != nil {
		g.t.Fatal(err)
	}
	return b.String()
}

// waitLog waits until the log has text in it.
func (g *rig) waitLog(id, text string) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	w := &until{text: text, found: cancel}
	c, err := g.find(g.ctx, id)
	if err != nil {
		g.t.Fatal(err)
	}
	err = crilog.Read(ctx, g.status(id).LogPath, crilog.Options{Follow: c.ended}, w, nil)
	if !errors.Is(err, context.Canceled) || g.ctx.Err() != nil {
		g.t.Fatalf("log never had %q in it, but %q (%v)", text, w.seen.String(), err)
	}
}

type until struct {
	seen  bytes.Buffer
	text  string
	found func()
}

func (u *until) Write(b []byte) (int, error) {
	u.seen.Write(b)
	if strings.Contains(u.seen.String(), u.text) {
		u.found()
	}
	return len(b), nil
}

// eachIsolation runs a test once for each kind of isolation that is possible here.
func eachIsolation(t *testing.T, f func(t *testing.T, iso Isolation)) {
	for _, iso := range []Isolation{Namespaces, UserNamespace, None} {
		t.Run(string(iso), func(t *testing.T) {
			if iso != None {
				c := Config{DataDir: t.TempDir()}
				if err := probe(t.Context(), c, iso); err != nil {
					t.Skipf("SKIPPED: isolation %s cannot be had: %v", iso, err)
				}
			}
			f(t, iso)
		})
	}
}

func TestRunToEnd(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		for _, tt := range []struct {
			name, script string
			code, signal int
			log          string
		}{
			{"ok", "echo out; echo err >&2", 0, 0, ""},
			{"code", "exit 7", 7, 0, ""},
			{"signal", "kill -TERM $$", 143, 15, ""},
			{"partial", "printf 'no newline'", 0, 0, "no newline"},
			{"env", "echo $FOO", 0, 0, "bar\n"},
			{"orphan", "(sleep 1000 & echo started)", 0, 0, "started\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := g.container(tt.name, tt.script)
				c.Env = []string{"FOO=bar"}
				st := g.wait(g.start(c))
				if st.State != runtime.Exited || st.ExitCode != tt.code || st.Signal != tt.signal || st.Reason != "" {
					t.Errorf("status %+v", st)
				}
				if st.StartedAt.Before(st.CreatedAt.Add(-time.Second)) || st.EndedAt.Before(st.StartedAt) {
					t.Errorf("times %v %v %v", st.CreatedAt, st.StartedAt, st.EndedAt)
				}
				if got := g.log(st.ID); tt.log != "" && got != tt.log {
					t.Errorf("log %q, want %q", got, tt.log)
				}
			})
		}
	})
}

func TestStartErrors(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		plain := filepath.Join(t.TempDir(), "plain")
		bad := filepath.Join(filepath.Dir(plain), "bad")
		if iso == None {
			write(t, plain, "x", 0o644)
			write(t, bad, "#!/no/such/interpreter\n", 0o755)
		}
		tests := []struct {
			name string
			edit func(*runtime.Container)
			code int
			text string
		}{
			{
				"not found", func(c *runtime.Container) { c.Argv = []string{"no-such-command"} }, 127,
				`exec: "no-such-command": executable file not found in $PATH`,
			},
			{"no path", func(c *runtime.Container) { c.Argv = []string{"/no/such"} }, 127, `exec: "/no/such": stat /no/such: no such file or directory`},
			{"directory", func(c *runtime.Container) { c.Argv = []string{"/etc"} }, 126, "is a directory: permission denied"},
			{"not executable", func(c *runtime.Container) { c.Argv = []string{"/etc/passwd"} }, 126, `exec: "/etc/passwd": permission denied`},
			{"working directory", func(c *runtime.Container) { c.WorkingDir = "/etc/passwd" }, 128, `working directory "/etc/passwd" is not a directory`},
			{"log", func(c *runtime.Container) { c.LogPath = "/no/such/dir/log" }, 128, "/no/such/dir"},
			{"volume", func(c *runtime.Container) {
				c.Mounts = []runtime.Mount{{HostPath: "/no/such", ContainerPath: "/x"}}
			}, 128, `"/x"`},
			{"too long", func(c *runtime.Container) { c.Argv = append(c.Argv, strings.Repeat("x", 1<<20)) }, 128, "argument list too long"},
		}
		if iso == None {
			tests = append(tests, []struct {
				name string
				edit func(*runtime.Container)
				code int
				text string
			}{
				{"mode", func(c *runtime.Container) { c.Argv = []string{plain} }, 126, "permission denied"},
				{"no working directory", func(c *runtime.Container) { c.WorkingDir = "/no/such" }, 128, `working directory "/no/such" does not exist`},
				{"interpreter", func(c *runtime.Container) { c.Argv = []string{bad} }, 127, "no such file or directory"},
			}...)
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				c := g.container("c", "true")
				tt.edit(&c)
				id, err := g.Start(g.ctx, c)
				var se *runtime.StartError
				if !errors.As(err, &se) {
					t.Fatalf("id %q, err %v; want a StartError", id, err)
				}
				if se.ExitCode != tt.code || !strings.Contains(se.Message, tt.text) || se.Reason == "" {
					t.Errorf("got %d %s %q, want %d %q", se.ExitCode, se.Reason, se.Message, tt.code, tt.text)
				}
				if left, err := os.ReadDir(g.containersDir()); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v %v", left, err)
				}
			})
		}
	})
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestStop(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		t.Run("asked", func(t *testing.T) {
			id := g.start(g.container("asked", `trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.05; done`))
			g.waitLog(id, "ready")
			if err := g.Stop(g.ctx, id, patience); err != nil {
				t.Fatal(err)
			}
			if st := g.status(id); st.ExitCode != 3 || st.Signal != 0 || !strings.Contains(g.log(id), "asked\n") {
				t.Errorf("status %+v, log %q", st, g.log(id))
			}
			if err := g.Stop(g.ctx, id, 0); err != nil {
				t.Errorf("second stop: %v", err)
			}
		})
		t.Run("asked by another signal", func(t *testing.T) {
			c := g.container("usr1", `trap 'echo usr1; exit 3' USR1; trap 'echo term; exit 4' TERM; echo ready; while :; do sleep 0.05; done`)
			c.StopSignal = int(unix.SIGUSR1)
			id := g.start(c)
			g.waitLog(id, "ready")
			if err := g.Stop(g.ctx, id, patience); err != nil {
				t.Fatal(err)
			}
			if st := g.status(id); st.ExitCode != 3 || !strings.Contains(g.log(id), "usr1\n") {
				t.Errorf("status %+v, log %q", st, g.log(id))
			}
		})
		t.Run("killed", func(t *testing.T) {
			id := g.start(g.container("killed", `trap '' TERM; echo ready; while :; do sleep 0.05; done`))
			g.waitLog(id, "ready")
			if err := g.Stop(g.ctx, id, 10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if st := g.status(id); st.ExitCode != 137 || st.Signal != 9 || st.OOMKilled {
				t.Errorf("status %+v", st)
			}
		})
		t.Run("sooner", func(t *testing.T) {
			id := g.start(g.container("sooner", `trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done`))
			g.waitLog(id, "ready")
			ctx, cancel := context.WithCancel(g.ctx)
			first := make(chan error, 1)
			go func() { first <- g.Stop(ctx, id, time.Hour) }()
			g.waitLog(id, "asked")
			cancel()
			if err := <-first; !errors.Is(err, context.Canceled) {
				t.Errorf("first stop: %v", err)
			}
			if err := g.Stop(g.ctx, id, 0); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestEnvironmentIsTheContainersOwn(t *testing.T) {
	t.Setenv("HAWSER_SECRET", "leaked")
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		if _, err := g.EnsureSandbox(g.ctx, runtime.Sandbox{Pod: testPod, Hostname: "my-pod"}); err != nil {
			t.Fatal(err)
		}
		c := g.container("env", "/usr/bin/env | /usr/bin/sort; umask; ls /proc/self/fd; [ -t 0 ] || cat")
		c.Env = []string{"A=1"}
		id := g.start(c)
		g.wait(id)
		lines := strings.Split(strings.TrimSpace(g.log(id)), "\n")
		for _, l := range lines {
			key, _, isVar := strings.Cut(l, "=")
			if iso == None && l == containerEnv+"="+id {
				continue
			}
			if isVar && !strings.Contains(" A HOME HOSTNAME OLDPWD PATH PWD SHLVL _ ", " "+key+" ") {
				t.Errorf("variable %q", l)
			}
		}
		if !strings.Contains(g.log(id), "A=1\n") || !strings.Contains(g.log(id), "HOSTNAME=my-pod\n") {
			t.Errorf("log %q", g.log(id))
		}
		// umask, then descriptors 0, 1, 2 and the one ls has open.
		if got := strings.Join(lines[len(lines)-5:], " "); got != "0022 0 1 2 3" {
			t.Errorf("umask and descriptors: %q", got)
		}
	})
}

func ExampleRuntime() {
	// In main, before anything else: process.ShimMain()
	r, err := New(Config{DataDir: "/var/lib/hawser/runtime"})
	if err != nil {
		fmt.Println(err)
		return
	}
	info, _ := r.Info(context.Background())
	fmt.Println(info.Name)
	// Output: process
}

// Images are the image names of running containers.
func TestImages(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	c := g.container("ended", "exit 0")
	c.Image = "old:1"
	g.wait(g.start(c))
	for i, image := range []string{"app:2", "app:2", "web:3", ""} {
		c := g.container(fmt.Sprintf("c%d", i), "exec sleep 1000")
		c.Image = image
		g.start(c)
	}
	list, err := g.Images(g.ctx)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range list {
		names = append(names, i.Names...)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "app:2 web:3" {
		t.Errorf("images %q", got)
	}
}
