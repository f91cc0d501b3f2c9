package process

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
)

// idle is a container that does nothing until it is stopped.
func (g *rig) idle(name string) string {
	return g.start(g.container(name, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"))
}

func TestExec(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "sleep 1000")
		c.Env = []string{"FOO=bar"}
		id := g.start(c)
		for _, tt := range []struct {
			name     string
			argv     []string
			in       string
			code     int
			out, err string
		}{
			{"output", []string{"sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
			{"code", []string{"sh", "-c", "exit 9"}, "", 9, "", ""},
			{"signal", []string{"sh", "-c", "kill -KILL $$"}, "", 137, "", ""},
			{"environment", []string{"sh", "-c", "echo $FOO"}, "", 0, "bar\n", ""},
			{"input", []string{"cat"}, "some input", 0, "some input", ""},
			{"input not read", []string{"true"}, strings.Repeat("x", 1<<20), 0, "", ""},
			{"background", []string{"sh", "-c", "sleep 1000 & echo done"}, "", 0, "done\n", ""},
			{"last words", []string{"sh", "-c", "head -c 60000 /dev/zero | tr '\\0' x; sleep 1000 &"}, "", 0, strings.Repeat("x", 60000), ""},
		} {
			t.Run(tt.name, func(t *testing.T) {
				var out, errw bytes.Buffer
				s := runtime.Stdio{Out: &out, Err: &errw}
				if tt.in != "" {
					s.In = strings.NewReader(tt.in)
				}
				code, err := g.Exec(g.ctx, id, tt.argv, s)
				if err != nil || code != tt.code || out.String() != tt.out || errw.String() != tt.err {
					t.Errorf("code %d, err %v, out %.100q, err %.100q", code, err, out.String(), errw.String())
				}
			})
		}
		t.Run("errors", func(t *testing.T) {
			var se *runtime.StartError
			if _, err := g.Exec(g.ctx, id, []string{"nope"}, runtime.Stdio{}); !errors.As(err, &se) || se.ExitCode != 127 ||
				se.Message != `exec: "nope": executable file not found in $PATH` {
				t.Errorf("no such command: %v", err)
			}
			if _, err := g.Exec(g.ctx, id, nil, runtime.Stdio{}); !errors.As(err, &se) {
				t.Errorf("no command: %v", err)
			}
			if _, err := g.Exec(g.ctx, "x", []string{"true"}, runtime.Stdio{}); !errors.Is(err, runtime.ErrNotFound) {
				t.Errorf("no such container: %v", err)
			}
			if err := g.Stop(g.ctx, id, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Exec(g.ctx, id, []string{"true"}, runtime.Stdio{}); !errors.Is(err, runtime.ErrNotRunning) {
				t.Errorf("dead container: %v", err)
			}
		})
	})
}

// A large amount of data is copied in both directions at once without loss.
func TestExecBulk(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	id := g.idle("c")
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	out := sha256.New()
	code, err := g.Exec(g.ctx, id, []string{"cat"}, runtime.Stdio{In: bytes.NewReader(data), Out: out})
	if want := sha256.Sum256(data); err != nil || code != 0 || !bytes.Equal(out.Sum(nil), want[:]) {
		t.Errorf("code %d, err %v, same %v", code, err, bytes.Equal(out.Sum(nil), want[:]))
	}
}

// A command whose caller is gone is killed.
func TestExecCutShort(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		id := g.idle("c")
		ctx, cancel := context.WithCancel(g.ctx)
		defer cancel()
		out := &until{text: "ready\n", found: cancel}
		// Its child processes, which are in the same process group, are killed with it.
		_, err := g.Exec(ctx, id, []string{"sh", "-c", "trap '' TERM HUP PIPE; sleep 12345 & echo ready; wait"}, runtime.Stdio{Out: out})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("err %v", err)
		}
		// It ends once the shim has handled the error, and so before the end of the next
		// command that waits for it.
		var left bytes.Buffer
		script := `while cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q "sleep [1]2345"; do sleep 0.01; done; echo gone`
		if code, err := g.Exec(g.ctx, id, []string{"sh", "-c", script}, runtime.Stdio{Out: &left}); err != nil || code != 0 || left.String() != "gone\n" {
			t.Errorf("code %d, err %v, %q", code, err, left.String())
		}
		gone := errors.New("gone")
		if _, err := g.Exec(g.ctx, id, []string{"yes"}, runtime.Stdio{Out: failing{gone}}); !errors.Is(err, gone) {
			t.Errorf("broken output: %v", err)
		}
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestExecTerminal(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		id := g.idle("c")
		in, keys := io.Pipe()
		t.Cleanup(func() { _ = keys.Close() }) // before the runtime's, or Run could not return
		sizes := make(chan runtime.Size)
		screen := newScreen()
		type result struct {
			code int
			err  error
		}
		done := make(chan result, 1)
		go func() {
			code, err := g.Exec(g.ctx, id, []string{"sh"}, runtime.Stdio{In: in, Out: screen, TTY: true, Resize: sizes})
			done <- result{code, err}
		}()
		sizes <- runtime.Size{Width: 123, Height: 45}
		// The size has been set when the next one is taken.
		sizes <- runtime.Size{Width: 123, Height: 45}
		_, _ = io.WriteString(keys, "PS1=; stty size; test -t 0 && test -t 2 && echo term=$TERM\n")
		screen.wait(g, "45 123")
		screen.wait(g, "term=xterm")
		_, _ = io.WriteString(keys, "tty | grep -c /dev/pts\n")
		screen.wait(g, "1\r\n")
		// ^C reaches what is in the foreground.
		_, _ = io.WriteString(keys, "sh -c 'echo now; exec sleep 1000'\n")
		screen.wait(g, "\nnow")
		_, _ = io.WriteString(keys, "\x03")
		_, _ = io.WriteString(keys, "echo code=$?\n")
		screen.wait(g, "code=130\r")
		_, _ = io.WriteString(keys, "exit 5\n")
		if r := <-done; r.err != nil || r.code != 5 {
			t.Errorf("code %d, err %v", r.code, r.err)
		}
		_ = keys.Close()
	})
}

// A screen collects output and can be waited for.
type screen struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(b)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *screen) wait(g *rig, text string) {
	g.t.Helper()
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-g.ctx.Done():
			g.t.Fatalf("never saw %q, but %q", text, s.String())
		}
	}
}

func TestExecLimit(t *testing.T) {
	t.Run("running", func(t *testing.T) { testExecLimit(t, "exec sleep 1000") })
	t.Run("draining", func(t *testing.T) { testExecLimit(t, "sleep 1000 &") })
}

func testExecLimit(t *testing.T, script string) {
	g := newRig(t, Config{Isolation: None})
	id := g.idle("c")
	ctx, cancel := context.WithCancel(g.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	running := newScreen()
	for range maxExecs {
		wg.Go(func() {
			_, _ = g.Exec(ctx, id, []string{"sh", "-c", "echo x; " + script}, runtime.Stdio{Out: running, Drain: true})
		})
	}
	running.wait(g, strings.Repeat("x\n", maxExecs))
	if _, err := g.Exec(g.ctx, id, []string{"true"}, runtime.Stdio{}); err == nil || !strings.Contains(err.Error(), "too many commands") {
		t.Errorf("one too many: %v", err)
	}
	if code, err := g.Exec(g.ctx, id, []string{"true"}, runtime.Stdio{Probe: true}); err != nil || code != 0 {
		t.Errorf("probe: code %d, err %v", code, err)
	}
}

func TestAttach(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "while read line; do echo got $line; echo err >&2; done; echo end; exit 4")
		c.Stdin, c.StdinOnce = true, true
		id := g.start(c)
		in, keys := io.Pipe()
		t.Cleanup(func() { _ = keys.Close() }) // before the runtime's, or Run could not return
		out, errw := newScreen(), newScreen()
		done := make(chan error, 1)
		go func() { done <- g.Attach(g.ctx, id, runtime.Stdio{In: in, Out: out, Err: errw}) }()
		_, _ = io.WriteString(keys, "hello\n")
		out.wait(g, "got hello\n")
		errw.wait(g, "err\n")
		_ = keys.Close() // the end of its input ends the container's input
		if err := <-done; err != nil {
			t.Errorf("attach: %v", err)
		}
		if st := g.wait(id); st.ExitCode != 4 {
			t.Errorf("status %+v", st)
		}
		if out.String() != "got hello\nend\n" || errw.String() != "err\n" {
			t.Errorf("out %q, err %q", out.String(), errw.String())
		}
		if err := g.Attach(g.ctx, id, runtime.Stdio{Out: out}); !errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("attach to the dead: %v", err)
		}
	})
}

// TestAttachInputEnds: the end of its input ends an attachment, and the container's input stays open
// for the next. With a terminal that is so even if the input is for one attachment.
func TestAttachInputEnds(t *testing.T) {
	for _, tt := range []struct {
		name      string
		tty, once bool
	}{{"pipe", false, false}, {"terminal", true, false}, {"terminal once", true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, Config{Isolation: None})
			c := g.container("c", "while read line; do sleep 0.01; echo got $line; done")
			c.Stdin, c.TTY, c.StdinOnce = true, tt.tty, tt.once
			id := g.start(c)
			for i := range 2 {
				screen := newScreen()
				err := g.Attach(g.ctx, id, runtime.Stdio{In: strings.NewReader(fmt.Sprintf("%d\n", i)), Out: screen, TTY: tt.tty})
				if want := fmt.Sprintf("got %d", i); err != nil || !strings.Contains(screen.String(), want) { // though it comes after the end of input
					t.Fatalf("attach %d: %q, %v", i, screen.String(), err)
				}
			}
			// Without input an attachment goes on.
			ctx, cancel := context.WithCancel(g.ctx)
			defer cancel()
			out := &until{text: "got last", found: cancel}
			done := make(chan error, 1)
			go func() { done <- g.Attach(ctx, id, runtime.Stdio{Out: out, TTY: tt.tty}) }()
			for ctx.Err() == nil {
				if err := g.Attach(g.ctx, id, runtime.Stdio{In: strings.NewReader("last\n"), TTY: tt.tty}); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("attached without input: %v", err)
			}
		})
	}
}

func TestAttachTerminal(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "")
		c.Argv = []string{"sh"}
		c.Stdin, c.TTY = true, true
		id := g.start(c)
		in, keys := io.Pipe()
		t.Cleanup(func() { _ = keys.Close() }) // before the runtime's, or Run could not return
		sizes := make(chan runtime.Size)
		screen := newScreen()
		done := make(chan error, 1)
		go func() { done <- g.Attach(g.ctx, id, runtime.Stdio{In: in, Out: screen, TTY: true, Resize: sizes}) }()
		sizes <- runtime.Size{Width: 99, Height: 11}
		_, _ = io.WriteString(keys, "until stty size | grep '11 99'; do sleep 0.01; done\n")
		screen.wait(g, "11 99\r")
		if err := g.Resize(g.ctx, id, runtime.Size{Width: 44, Height: 22}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(keys, "stty size\n")
		screen.wait(g, "22 44\r")
		_, _ = io.WriteString(keys, "exit 3\n")
		if err := <-done; err != nil {
			t.Errorf("attach: %v", err)
		}
		_ = keys.Close()
		if st := g.wait(id); st.ExitCode != 3 {
			t.Errorf("status %+v", st)
		}
		if !strings.Contains(g.log(id), "22 44\r\n") {
			t.Errorf("log %q", g.log(id))
		}
	})
}

// An attached client that does not read blocks neither the container nor its log, and gets
// all output in the end, in order: when the container has ended, and when the client's input has.
func TestAttachSlow(t *testing.T) {
	const lines = 200_000
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	fmt.Fprintln(&want, "all")
	for _, inputEnds := range []bool{false, true} {
		t.Run(fmt.Sprintf("input ends %t", inputEnds), func(t *testing.T) {
			g := newRig(t, Config{Isolation: None})
			c := g.container("c", fmt.Sprintf("read x; seq %d; echo all; read x; echo more; read x", lines))
			c.Stdin = true
			id := g.start(c)
			in, keys := io.Pipe()
			t.Cleanup(func() { _ = keys.Close() }) // before the runtime's, or Run could not return
			slow := &blockingWriter{open: make(chan struct{}), started: make(chan struct{})}
			done := make(chan error, 1)
			go func() { done <- g.Attach(g.ctx, id, runtime.Stdio{In: in, Out: slow}) }()
			_, _ = io.WriteString(keys, "go\n")
			<-slow.started
			g.waitLog(id, "\nall\n") // all of it, while the client does not read
			_, _ = io.WriteString(keys, "on\n")
			g.waitLog(id, "\nmore\n") // so what came before is on its way to the client
			if inputEnds {
				_ = keys.Close()
			}
			close(slow.open)
			if !inputEnds {
				_, _ = io.WriteString(keys, "end\n")
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := slow.b.Bytes(); !bytes.HasPrefix(got, want.Bytes()) {
				t.Errorf("got %d bytes, want %d", len(got), want.Len())
			}
			if inputEnds {
				if err := g.Attach(g.ctx, id, runtime.Stdio{In: strings.NewReader("end\n")}); err != nil {
					t.Error(err)
				}
			}
			_ = keys.Close()
			g.wait(id)
		})
	}
}

// A blockingWriter blocks each Write until it is open.
type blockingWriter struct {
	open, started chan struct{}
	once          sync.Once
	b             bytes.Buffer
}

func (g *blockingWriter) Write(b []byte) (int, error) {
	g.once.Do(func() { close(g.started) })
	<-g.open
	return g.b.Write(b)
}

func TestSinkBound(t *testing.T) {
	from, to, err := pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	k, err := newSink(to, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	written := 0
	for err == nil && written < 2*spoolBytes {
		err = k.write(chunk)
		written += len(chunk)
	}
	if !errors.Is(err, errSlow) || written < spoolBytes {
		t.Errorf("%d bytes, then %v", written, err)
	}
	k.finish(0)
}

// However many clients are attached, the container can be stopped with its grace period.
func TestAttachLimit(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	id := g.start(g.container("c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"))
	g.waitLog(id, "ready")
	attached, refused := 0, 0
	for range maxConns + 4 {
		conn, err := dialShim(filepath.Join(g.containersDir(), id))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.hangUp()
		_ = conn.SetDeadline(time.Now().Add(patience))
		var rep reply
		if err := errors.Join(conn.send(request{Op: opAttach}), conn.recv(&rep)); err != nil {
			t.Errorf("attach after %d: %v", attached+refused, err)
			continue
		}
		switch {
		case rep.Failure == nil:
			attached++
		case strings.Contains(rep.Failure.Message, "too many clients"):
			refused++
		default:
			t.Errorf("refused: %+v", rep.Failure)
		}
	}
	if attached == 0 || refused == 0 {
		t.Errorf("%d attached, %d refused", attached, refused)
	}
	if err := g.Stop(g.ctx, id, patience); err != nil {
		t.Error(err)
	}
	if st := g.status(id); st.ExitCode != 3 {
		t.Errorf("status %+v", st)
	}
}

// TestExecReadsOn: input that a command does not read any more is read on: unread, it would hold up
// the client's other streams, resizes and the end among them.
func TestExecReadsOn(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	id := g.idle("c")
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 1<<20))
		sent <- errors.Join(err, w.Close())
	}()
	if code, err := g.Exec(g.ctx, id, []string{"sh", "-c", "exec <&-; sleep 0.2"}, runtime.Stdio{In: r}); err != nil || code != 0 {
		t.Errorf("%d, %v", code, err)
	}
	select {
	case err := <-sent:
		if err != nil {
			t.Error(err)
		}
	case <-g.ctx.Done():
		t.Error("the input is not read")
		_ = r.Close()
	}
}
