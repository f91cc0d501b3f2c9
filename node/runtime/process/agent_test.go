package process

// An agent in a process of its own, which can be killed and can run as another user.

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/node/runtime"
)

const agentEnv = "HAWSER_TEST_AGENT"

// agentOptions configure a test's agent; it gets them as JSON.
type agentOptions struct {
	dir  string
	uid  uint32 // 0: the test's own
	keep bool   // leave containers behind
	iso  Isolation
}

// agentMain runs a runtime, starts each container that comes as a line of JSON, and
// answers with a line of JSON for each.
func agentMain() {
	if err := agentLoop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type agentAnswer struct {
	ID  string
	Err string
}

func agentLoop() error {
	r, err := New(Config{DataDir: os.Getenv(agentEnv), Isolation: Isolation(os.Getenv("HAWSER_TEST_ISOLATION")), CgroupParent: testCgroup(), Hide: []string{"/root/.ssh", "/no/such"}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	dec, enc := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c runtime.Container
		if dec.Decode(&c) != nil {
			break
		}
		var a agentAnswer
		a.ID, err = r.Start(ctx, c)
		if err != nil {
			a.Err = err.Error()
		} else if os.Getenv("HAWSER_TEST_KEEP") == "" {
			if c, err := r.find(ctx, a.ID); err == nil {
				<-c.ended
			}
			if err := r.Remove(ctx, a.ID); err != nil {
				a.Err = err.Error()
			}
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	cancel()
	return <-done
}

type agent struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	logs string
}

func startAgent(t *testing.T, o agentOptions) *agent {
	t.Helper()
	exe := filepath.Join(o.dir, "agent")
	if err := copyFile(exe, "/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), agentEnv+"="+o.dir, "HAWSER_TEST_ISOLATION="+string(o.iso), "HAWSER_TEST_CGROUP="+testCgroup())
	if o.keep {
		cmd.Env = append(cmd.Env, "HAWSER_TEST_KEEP=1")
	}
	cmd.Stderr = os.Stderr
	if o.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.uid, Gid: o.uid}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &agent{cmd: cmd, in: in, out: bufio.NewReader(out), logs: o.dir}
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// start requests a container and returns the answer.
func (a *agent) start(t *testing.T, c runtime.Container) agentAnswer {
	t.Helper()
	if err := json.NewEncoder(a.in).Encode(c); err != nil {
		t.Fatal(err)
	}
	line, err := a.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ans agentAnswer
	if err := json.Unmarshal(line, &ans); err != nil {
		t.Fatal(err)
	}
	return ans
}

func (a *agent) run(t *testing.T, script string) string {
	t.Helper()
	ans := a.start(t, runtime.Container{
		Pod: testPod, Name: "c", Argv: []string{"/bin/sh", "-c", script}, LogPath: filepath.Join(a.logs, "c.log"),
	})
	if ans.Err != "" {
		t.Fatal(ans.Err)
	}
	return ans.ID
}

func (a *agent) kill(t *testing.T) {
	t.Helper()
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.cmd.Wait()
}

// end ends the agent.
func (a *agent) end(t *testing.T) {
	t.Helper()
	_ = a.in.Close()
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("agent: %v", err)
	}
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
