// OpenSSH's server, as a child process.

package sshd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// startTime bounds how long OpenSSH's server may take to listen.
const startTime = 20 * time.Second

// reapTries and reapPause bound the wait for the server to notice that processes
// have ended.
const (
	reapTries = 100
	reapPause = 10 * time.Millisecond
)

// separation is the directory without which OpenSSH's server does not start as
// root.
const separation = "/run/sshd"

const openSSHConfig = `ListenAddress 127.0.0.1:%d
HostKey %s
AuthorizedKeysFile %s
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
AllowTcpForwarding local
PermitOpen 127.0.0.1:*
X11Forwarding no
MaxStartups 100
`

// An openSSH is a server that runs.
type openSSH struct {
	cmd *exec.Cmd
	log *bufio.Reader
	// made says that we made the directory separation.
	made bool
}

// startOpenSSH starts OpenSSH's server and waits until it listens.
func startOpenSSH(ctx context.Context, dir string) (*Server, error) {
	program, err := findOpenSSH()
	if err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	port, err := setup.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	config, err := writeConfig(dir, port)
	if err != nil {
		return nil, err
	}
	s := &openSSH{cmd: exec.CommandContext(context.WithoutCancel(ctx), program, "-D", "-e", "-f", config)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	s.log = bufio.NewReader(log)
	s.made = me.Uid == "0" && os.Mkdir(separation, 0o755) == nil
	if err = s.cmd.Start(); err == nil {
		if err = s.awaitListening(ctx); err != nil {
			s.close()
		}
	}
	if err != nil {
		s.tidy()
		return nil, err
	}
	return &Server{
		Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), User: me.Username, Kind: version(ctx, program),
		run: s.run, processes: func() []int { return tree(s.cmd.Process.Pid) },
	}, nil
}

func writeConfig(dir string, port int) (path string, err error) {
	path = filepath.Join(dir, "sshd_config")
	text := fmt.Sprintf(openSSHConfig, port, filepath.Join(dir, HostKey), filepath.Join(dir, UserKey+".pub"))
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// run reads the log, which nobody needs, until the server ends, and ends it when
// ctx is done.
func (s *openSSH) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.kill)
	defer stop()
	defer s.tidy()
	// The processes of its connections hold the log open too.
	_, _ = io.Copy(io.Discard, s.log)
	err := s.cmd.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("sshd ended by itself: %w", errors.Join(err, io.ErrUnexpectedEOF))
}

func (s *openSSH) close() {
	s.kill()
	_ = s.cmd.Wait() // it was killed
	s.tidy()
}

// kill ends the processes of the server's connections, and once it has noticed,
// the server.
func (s *openSSH) kill() {
	pid := s.cmd.Process.Pid
	for range reapTries {
		others := tree(pid)[1:]
		if len(others) == 0 {
			break
		}
		for _, p := range others {
			_ = syscall.Kill(p, syscall.SIGKILL) // it may be gone already
		}
		time.Sleep(reapPause)
	}
	_ = s.cmd.Process.Kill() // likewise
}

func (s *openSSH) tidy() {
	if s.made {
		_ = os.Remove(separation) // not if another sshd has begun to use it
	}
}

// tree lists pid and the processes that it and they have started.
func tree(pid int) []int {
	pids := []int{pid}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return pids
	}
	for f := range strings.FieldsSeq(string(b)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(pids, tree(child)...)
		}
	}
	return pids
}

func findOpenSSH() (string, error) {
	if program, err := exec.LookPath("sshd"); err == nil {
		return filepath.Abs(program) // it insists on that
	}
	for _, program := range []string{"/usr/sbin/sshd", "/usr/local/sbin/sshd"} {
		if _, err := os.Stat(program); err == nil {
			return program, nil
		}
	}
	return "", errors.New("sshd is not installed")
}

// awaitListening reads the log until it says that the server listens.
func (s *openSSH) awaitListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	stop := context.AfterFunc(ctx, s.kill)
	defer stop()
	last := ""
	for {
		line, err := s.log.ReadString('\n')
		switch {
		case strings.Contains(line, "Server listening"):
			return nil
		case ctx.Err() != nil:
			return errors.New("sshd does not listen")
		case err != nil:
			return fmt.Errorf("sshd does not start: %s", last)
		}
		last = strings.TrimSpace(line)
	}
}

// version is what the server calls itself.
func version(ctx context.Context, program string) string {
	out, _ := exec.CommandContext(ctx, program, "-V").CombinedOutput() // old ones fail, and say it all the same
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "OpenSSH") {
			name, _, _ := strings.Cut(strings.TrimSpace(line), ",")
			return name
		}
	}
	return "OpenSSH"
}
