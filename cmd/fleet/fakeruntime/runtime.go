// Package fakeruntime is a container runtime that runs nothing and says so.
//
// It keeps sandboxes and containers in memory, as package memory does, so that a
// node with pods on it costs kilobytes. What it tells is true all the same: a
// container's log has a line that says what was asked for, where and when, and the
// few commands that can be answered without a process (echo, env, hostname, date,
// cat, sleep, true, false, and sh -c with those) are answered, in exec and as a
// container's own command. A container whose command is none of these runs until
// it is stopped; one that sleeps for ten seconds ends after ten seconds.
//
// It is not a sandbox: no image, no file and no port of a pod is there. Connecting
// to a port is refused.
package fakeruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// The size of a log, and how many files it has at most. Nothing that a container
// here says comes near it.
const (
	logBytes = 64 << 10
	logFiles = 2
)

// A Runtime pretends to run containers. All methods of a runtime.Runtime may be
// called at the same time. It outlives the agent that uses it.
type Runtime struct {
	*memory.Runtime
	node string
}

var _ runtime.Runtime = (*Runtime)(nil)

// New makes a runtime of the named node, without containers.
func New(node string) *Runtime {
	r := &Runtime{node: node}
	r.Runtime = memory.New(memory.Options{Start: r.start, Exec: r.exec, KeepNoCalls: true})
	return r
}

// Info implements runtime.Runtime.
func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	return runtime.Info{Name: "fake", Version: "1", RecursiveReadOnly: true}, nil
}

// start writes the log of a container and says when it ends.
func (r *Runtime) start(c runtime.Container) memory.Behaviour {
	p := plan(c.Argv, c.Env)
	text := p.output
	if !p.known {
		text = fmt.Sprintf("pretending to run %q of image %s in container %s of pod %s/%s on node %s\n",
			c.Argv, c.Image, c.Name, c.Pod.Namespace, c.Pod.Name, r.node)
	}
	if err := writeLog(c.LogPath, text); err != nil {
		return memory.Behaviour{Err: fmt.Errorf("start container %s: %w", c.Name, err)}
	}
	b := memory.Behaviour{ExitCode: p.code, TermCode: 143}
	if p.known {
		b.ExitAfter = max(p.lasts, time.Millisecond)
	}
	return b
}

// writeLog appends text to the log, whose directory the caller of Start made.
func writeLog(path, text string) error {
	if path == "" {
		return nil
	}
	w, err := crilog.Create(path, logBytes, logFiles)
	if err != nil {
		return fmt.Errorf("log %s: %w", filepath.Base(path), err)
	}
	s := w.Stream(crilog.Stdout)
	_, err = io.WriteString(s, text)
	s.Flush()
	return errors.Join(err, w.Close())
}

// exec answers a command.
func (r *Runtime) exec(ctx context.Context, c runtime.Container, argv []string, s runtime.Stdio) (int, error) {
	p := plan(argv, c.Env)
	if !p.known {
		return 0, &runtime.StartError{
			ExitCode: 127, Reason: "StartError",
			Message: fmt.Sprintf("exec: %q: there is no such command on simulated node %s, where nothing runs: it knows %s", argv[0], r.node, commands),
		}
	}
	out := s.Out
	if out == nil {
		out = io.Discard
	}
	if _, err := io.WriteString(out, p.output); err != nil {
		return 0, fmt.Errorf("write output: %w", err)
	}
	if p.copies && s.In != nil {
		if _, err := io.Copy(out, s.In); err != nil {
			return 0, fmt.Errorf("copy input: %w", err)
		}
	}
	t := time.NewTimer(p.lasts)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-t.C:
		return p.code, nil
	}
}
