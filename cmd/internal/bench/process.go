// Processes of a run, seen from the process that starts them.

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTime is how long a process may take to end before it is killed.
const stopTime = 10 * time.Second

// A process plays a role. Its methods are called by one goroutine.
type process struct {
	role   string
	cmd    *exec.Cmd
	cancel context.CancelFunc // ends it
	in     *json.Encoder
	out    *json.Decoder
	pipe   *os.File // below out
	said   tail
	first  answer // to the order
	closed bool
}

// launch starts a process and gives it its order. It ends with ctx.
func launch(ctx context.Context, command func(role string) ([]string, error), role string, o order) (*process, error) {
	argv, err := command(role)
	if err != nil {
		return nil, err
	}
	p := &process{role: role}
	ctx, p.cancel = context.WithCancel(ctx)
	// A command with a context can be ended gently, and then not so gently.
	p.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.cmd.Cancel, p.cmd.WaitDelay = stdin.Close, stopTime // it ends with its input
	p.cmd.Stderr = &p.said
	// A terminal's Ctrl-C is for us, who then end it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe()
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.cmd.Stdout = write
	err = p.cmd.Start()
	_ = write.Close() // it has its own
	if err != nil {
		p.cancel()
		_ = read.Close()
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.pipe, p.in, p.out = read, json.NewEncoder(stdin), json.NewDecoder(read)
	if p.first, err = p.exchange(o); err != nil {
		_ = p.close() // err has its last words
		return nil, err
	}
	return p, nil
}

// ask asks a question.
func (p *process) ask(what string, count int) (answer, error) {
	return p.exchange(question{Do: what, Count: count})
}

// exchange fails if the process does, and then ends it.
func (p *process) exchange(what any) (answer, error) {
	// If it has ended, its last answer says why, or else its last words.
	werr := p.in.Encode(what)
	var a answer
	if err := p.out.Decode(&a); err != nil {
		if cerr := p.close(); cerr != nil {
			return a, cerr
		}
		return a, fmt.Errorf("%s: it has ended: %w", p.role, errors.Join(werr, err))
	}
	if a.Err != "" {
		_ = p.close() // badly, as it has said
		return a, fmt.Errorf("%s: %s", p.role, a.Err)
	}
	return a, nil
}

// used is what it has used so far.
func (p *process) used() (usage, error) {
	a, err := p.ask(doUsage, 0)
	return a.Usage, err
}

// close ends it and waits for that. It fails if the process had to be killed or
// ended badly; calling it again is harmless.
func (p *process) close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.cancel()
	err := p.cmd.Wait()
	_ = p.pipe.Close() // only read from
	if p.cmd.ProcessState != nil && p.cmd.ProcessState.Success() {
		return nil // that it was asked to end is no error
	}
	return fmt.Errorf("%s: %w: %s", p.role, err, p.said.lastLine())
}

// A tail is a writer that keeps the end of what is written.
type tail struct {
	mu sync.Mutex // guards the following
	b  []byte
}

// maxTail bounds in bytes what is kept.
const maxTail = 8 << 10

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if extra := len(t.b) - maxTail; extra > 0 {
		t.b = bytes.Clone(t.b[extra:])
	}
	return len(p), nil
}

// lastLine is the last line that was written.
func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return lines[len(lines)-1]
}
