// hawser server drain: have a server of this machine stop, and wait until it has.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// drainPoll is how often it is asked whether the server has ended, and drainTell how often it
// is told how far it has come.
const drainPoll, drainTell = 50 * time.Millisecond, 3 * time.Second

func newServerDrain() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have the server of a data directory hand its work over and end, and wait for that",
		Long: "Sends SIGTERM to the server of --data-dir on this machine and waits until it has ended. The server fails /readyz and\n" +
			"has its agents begin sessions with their other servers. Only then it takes no more connections. It answers the\n" +
			"requests that it has, and streams have its --graceful-shutdown-timeout to end. How far it has come is told every three\n" +
			"seconds. An interrupt ends the wait and not the drain; the same command waits again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return drainServer(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), dir)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", setup.ServerDir, "directory of the server")
	return cmd
}

// drainServer tells progress that it waits, and out how it went.
func drainServer(ctx context.Context, out, progress io.Writer, dir string) error {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data-dir: %s is no server's data directory: name the one that the server was started with", dir)
	}
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	defer f.Close()
	pid, _, _ := readLock(f)
	if pid == 0 {
		return fmt.Errorf("--data-dir: %s does not say which process its server is: send that SIGTERM", f.Name())
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	// All of it is looked at after the process was found, and the lock last: that is held in
	// all PID namespaces, and the number is of the server's.
	open, err := hasOpen(pid, f)
	switch now, _, _ := readLock(f); {
	case now != pid || !held(f):
		return fmt.Errorf("no server runs on %s: there is nothing to drain", dir)
	case err != nil:
		return fmt.Errorf("see whether process %d is the server: %w: run this as the server's user", pid, err)
	case !open:
		return fmt.Errorf("the server of %s is in another PID namespace: run this there, or stop its pod", dir)
	}
	turn, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	defer turn.Close()
	text := "waiting until the server, process %d, has handed its work over\n"
	if drains(f) {
		text = "the server, process %d, drains already: waiting until it has handed its work over\n"
	}
	if _, err := fmt.Fprintf(progress, text, pid); err != nil {
		return err
	}
	return awaitDrained(ctx, out, progress, p, f, turn)
}

// drains says whether the server that has f as its lock says that it drains, or has.
func drains(f *os.File) bool {
	_, said, far := readLock(f)
	return said != "" || far != ""
}

// tellToDrain sends SIGTERM to p, which has f as its lock. It does not while p drains, for a second
// signal would end it, nor while another process has the lock of turn, the data directory: that may
// have told it. Once it has, no other command tells p until turn is closed.
func tellToDrain(p *os.Process, f, turn *os.File) (told bool, err error) {
	err = syscall.Flock(int(turn.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // a descriptor
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("lock %s: %w", turn.Name(), err)
	case drains(f):
		return false, nil
	}
	if err = p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, fmt.Errorf("stop the server, process %d: %w", p.Pid, err)
	}
	return true, nil
}

// hasOpen says whether a process of this PID namespace, and not this one, has the file f open.
func hasOpen(pid int, f *os.File) (bool, error) {
	want, err := f.Stat()
	if err != nil || pid == os.Getpid() {
		return false, err
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, fd := range fds {
		if got, gone := os.Stat(filepath.Join(dir, fd.Name())); gone == nil && os.SameFile(got, want) {
			return true, nil
		}
	}
	return false, err
}

// awaitDrained tells p to drain, unless it does, and waits until p has ended, which had f as its lock.
// It closes turn, the data directory, once p drains.
func awaitDrained(ctx context.Context, out, progress io.Writer, p *os.Process, f, turn *os.File) (err error) {
	begun, told := false, false
	t, tell := time.NewTicker(drainPoll), time.NewTicker(drainTell)
	defer t.Stop()
	defer tell.Stop()
	for {
		// Not by the lock: who tries to take that may keep the next server from it.
		gone := p.Signal(syscall.Signal(0)) != nil || isZombie(p.Pid)
		now, said, far := readLock(f)
		switch {
		case begun || gone:
		case said != "" || far != "":
			begun = true
			_ = turn.Close() // its lock is what counts
		case !told:
			if told, err = tellToDrain(p, f, turn); err != nil {
				return err
			}
		}
		switch {
		case !gone:
		case now != p.Pid:
			_, err = fmt.Fprintln(out, "drained: another server runs there already, see the log of the one before")
			return err
		case said == "":
			return errors.New("the server has ended, and did not say that it had drained: see its log")
		default:
			_, err = fmt.Fprintln(out, "drained: "+said)
			return err
		}
		select {
		case <-t.C:
		case <-tell.C:
			if !begun {
				far = notBegun(told, turn)
			}
			if far != "" {
				_, _ = fmt.Fprintln(progress, far) // the wait is for the server
			}
		case <-ctx.Done():
			if begun {
				far = "the server goes on draining"
			} else {
				far = notBegun(told, turn)
			}
			return errors.New("not waited any longer: " + far)
		}
	}
}

// notBegun is what keeps a server from draining. turn is the data directory.
func notBegun(told bool, turn *os.File) string {
	if told {
		return "the server has been told to drain, and does not say yet that it does: see its log"
	}
	return "this command has not told the server to drain: another process has the lock of " + turn.Name() + ", and may have told it"
}

// isZombie says whether a process has ended and its parent has not asked how: it may never do so.
func isZombie(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := p.Stat()
	return err == nil && stat.State == "Z"
}

// readLock is what stands in a lock file: the server's process, if that has drained what it
// says of it, and if it drains how far it has come.
func readLock(f *os.File) (pid int, said, far string) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<10))
	if err != nil {
		return 0, "", ""
	}
	lines := append(strings.Split(string(b), "\n"), "", "")
	pid, _ = strconv.Atoi(lines[0])
	return pid, lines[1], lines[2]
}

// held says whether a process holds the lock.
func held(f *os.File) bool {
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { //nolint:gosec // a descriptor
		return true
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) //nolint:gosec // a descriptor
	return false
}
