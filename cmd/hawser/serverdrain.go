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

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// drainPoll is how often it is asked whether the server has ended.
const drainPoll = 50 * time.Millisecond

func newServerDrain() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have the server of a data directory hand its work over and end, and wait for that",
		Long: "Sends SIGTERM to the server of --data-dir on this machine and waits until it has ended. The server fails /readyz and\n" +
			"has its agents begin sessions with their other servers. Only then it takes no more connections. It answers the\n" +
			"requests that it has, and streams have its --graceful-shutdown-timeout to end.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return drainServer(cmd.Context(), cmd.OutOrStdout(), dir)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", setup.ServerDir, "directory of the server")
	return cmd
}

func drainServer(ctx context.Context, out io.Writer, dir string) error {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data-dir: %s is no server's data directory: name the one that the server was started with", dir)
	}
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	defer f.Close()
	pid, _ := readLock(f)
	if pid == 0 {
		return fmt.Errorf("--data-dir: %s does not say which process its server is: send that SIGTERM", f.Name())
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	// Looked at after the process was found: it is the server's if that holds the lock.
	if now, _ := readLock(f); now != pid || !held(f) {
		return fmt.Errorf("no server runs on %s: there is nothing to drain", dir)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server, process %d: %w", pid, err)
	}
	t := time.NewTicker(drainPoll)
	defer t.Stop()
	for {
		// Not by the lock: who tries to take that may keep the next server from it.
		gone := p.Signal(syscall.Signal(0)) != nil
		now, said := readLock(f)
		switch {
		case !gone:
		case now != pid:
			_, err := fmt.Fprintln(out, "drained: another server runs there already, see the log of the one before")
			return err
		case said == "":
			return errors.New("the server has ended, and did not say that it had drained: see its log")
		default:
			_, err := fmt.Fprintln(out, "drained: "+said)
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return errors.New("not waited any longer: the server goes on draining")
		}
	}
}

// readLock is what stands in a lock file: the server's process and, if that has drained,
// what it says of it.
func readLock(f *os.File) (pid int, said string) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<10))
	if err != nil {
		return 0, ""
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	pid, _ = strconv.Atoi(first)
	said, _, _ = strings.Cut(rest, "\n")
	return pid, said
}

// held says whether a process holds the lock.
func held(f *os.File) bool {
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { //nolint:gosec // a descriptor
		return true
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) //nolint:gosec // a descriptor
	return false
}
