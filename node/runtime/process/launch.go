package process

// From a command line to the arguments of execve(2): the file, the user, the
// environment, the working directory.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// A launch is what all commands of one container have in common.
type launch struct {
	root string // as the shim sees it; "" if the container has no root of its own
	cwd  string // as the container sees it
	env  []string
	cred *syscall.Credential
}

// newLaunch prepares to start commands of the container s, whose root is at root.
func newLaunch(s *spec, root string) (*launch, error) {
	l := &launch{root: root, cwd: s.Container.WorkingDir}
	uid, home, err := l.user(s)
	if err != nil {
		return nil, cannotRun(err)
	}
	l.env = environment(s, home)
	if l.cwd == "" {
		l.cwd = "/"
		if root == "" {
			l.cwd = filepath.Join(s.Dir, workName)
			if err = os.MkdirAll(l.cwd, 0o700); err != nil {
				return nil, cannotRun(err)
			}
			_ = os.Chown(l.cwd, uid, int(l.cred.Gid))
		}
	}
	info, err := l.stat(l.cwd)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, cannotRun(fmt.Errorf("working directory %q does not exist", l.cwd))
	case err != nil:
		return nil, cannotRun(fmt.Errorf("working directory %q: %w", l.cwd, err))
	case info.Mode&unix.S_IFMT != unix.S_IFDIR:
		return nil, cannotRun(fmt.Errorf("working directory %q is not a directory", l.cwd))
	}
	return l, nil
}

// cannotRun is the error if root, mounts or user of a command cannot be set up.
func cannotRun(err error) error {
	return &runtime.StartError{ExitCode: 128, Reason: "ContainerCannotRun", Message: err.Error()}
}

// user sets the user and groups of commands.
func (l *launch) user(s *spec) (uid int, home string, err error) {
	c := s.Container
	uid, gid := os.Geteuid(), -1
	if c.UID != nil {
		uid = int(*c.UID)
	}
	home = "/"
	if u := l.lookupUser(uid); u != nil {
		home, gid = u.Home, u.Gid
	}
	switch {
	case s.Isolation == UserNamespace:
		gid = os.Getegid() // the only one: see mappedUser
	case gid < 0 || (c.UID == nil && os.Geteuid() != 0):
		gid = 0
		if uid == os.Geteuid() {
			gid = os.Getegid()
		}
	}
	if c.GID != nil {
		gid = int(*c.GID)
	}
	l.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	for _, g := range c.Groups {
		l.cred.Groups = append(l.cred.Groups, uint32(g))
	}
	if os.Geteuid() == 0 && s.Isolation != UserNamespace {
		return uid, home, nil
	}
	// Without privileges, or with one user in the namespace, no other user is possible.
	l.cred.NoSetGroups = true
	extra := slices.ContainsFunc(c.Groups, func(g int64) bool { return int(g) != os.Getegid() })
	if uid != os.Geteuid() || gid != os.Getegid() || extra {
		return 0, "", fmt.Errorf("running as user %d, group %d, groups %v needs an agent that runs as root", uid, gid, c.Groups)
	}
	return uid, home, nil
}

// lookupUser finds a user in /etc/passwd; nil if it is not there.
func (l *launch) lookupUser(uid int) *user.User {
	b, err := l.readFile("/etc/passwd")
	if err != nil {
		return nil
	}
	us, err := user.ParsePasswdFilter(bytes.NewReader(b), func(u user.User) bool { return u.Uid == uid })
	if err != nil || len(us) == 0 {
		return nil
	}
	return &us[0]
}

// mappedUser is the user and group of the container s in its user namespace. It is decided before the
// container has its files, so that the group is that of the user in the machine's /etc/passwd.
func mappedUser(s *spec) (uid, gid int) {
	if u := s.Container.UID; u != nil {
		uid = int(*u)
	}
	if g := s.Container.GID; g != nil {
		return uid, int(*g)
	}
	if s.Isolation == UserNamespace && uid != 0 {
		if u := (&launch{}).lookupUser(uid); u != nil {
			gid = u.Gid
		}
	}
	return uid, gid
}

// environment is the container's own, with PATH, HOME, HOSTNAME and, for a terminal, TERM
// if they are missing.
func environment(s *spec, home string) []string {
	env := slices.Clone(s.Container.Env)
	add := func(key, value string) {
		if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") }) {
			env = append(env, key+"="+value)
		}
	}
	add("PATH", defaultPath)
	add("HOME", home)
	if s.Hostname != "" {
		add("HOSTNAME", s.Hostname)
	}
	if s.Container.TTY {
		add("TERM", "xterm")
	}
	return env
}

func getenv(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}

// open opens a file as the container sees it. Symbolic links do not lead out of its
// root.
func (l *launch) open(name string, flags int) (int, error) {
	if l.root == "" {
		return unix.Open(name, flags|unix.O_CLOEXEC, 0)
	}
	root, err := unix.Open(l.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer closeFD(root)
	return unix.Openat2(root, name, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT})
}

func closeFD(fd int) { _ = unix.Close(fd) }

func (l *launch) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := l.open(name, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer closeFD(fd)
	return st, unix.Fstat(fd, &st)
}

func (l *launch) readFile(name string) ([]byte, error) {
	fd, err := l.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b := make([]byte, 1<<20)
	n, err := f.Read(b)
	return b[:n], err
}

// lookup finds the file that argv0 means, as execvp(3) does.
func (l *launch) lookup(argv0 string, env []string) (string, error) {
	if argv0 == "" {
		return "", startError(127, `exec: "": executable file not found in $PATH`)
	}
	if strings.Contains(argv0, "/") {
		p := argv0
		if !path.IsAbs(p) {
			p = path.Join(l.cwd, p)
		}
		if err := l.executable(p); err != nil {
			return "", startError(exitCodeOf(err), fmt.Sprintf("exec: %q: %v", argv0, err))
		}
		return p, nil
	}
	var denied error
	for _, dir := range filepath.SplitList(getenv(env, "PATH")) {
		p := path.Join(dir, argv0)
		if !path.IsAbs(p) {
			p = path.Join(l.cwd, p)
		}
		switch err := l.executable(p); {
		case err == nil:
			return p, nil
		case errors.Is(err, fs.ErrPermission):
			denied = err
		}
	}
	if denied != nil {
		return "", startError(126, fmt.Sprintf("exec: %q: %v", argv0, denied))
	}
	return "", startError(127, fmt.Sprintf("exec: %q: executable file not found in $PATH", argv0))
}

func (l *launch) executable(p string) error {
	st, err := l.stat(p)
	switch {
	case err != nil:
		return fmt.Errorf("stat %s: %w", p, err)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return fmt.Errorf("is a directory: %w", fs.ErrPermission)
	case st.Mode&0o111 == 0:
		return fs.ErrPermission
	}
	return nil
}

func startError(code int, message string) error {
	return &runtime.StartError{ExitCode: code, Reason: "StartError", Message: message}
}

func exitCodeOf(err error) int {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return 127
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return 126
	default:
		return 128
	}
}

// A command is one program to be started.
type command struct {
	argv  []string
	tty   bool
	files [3]int // standard input, output and error of the new process
}

// attributes returns the attributes of c for forkExec. A process is the leader of a
// session and process group of its own.
func (l *launch) attributes(c command, env []string) *syscall.ProcAttr {
	sys := &syscall.SysProcAttr{Credential: l.cred, Setsid: true}
	if c.tty {
		sys.Setctty, sys.Ctty = true, 0
	}
	if os.Getpid() != 1 {
		// Without a PID namespace this ends the command with its shim.
		sys.Pdeathsig = syscall.SIGKILL
	}
	return &syscall.ProcAttr{
		Dir:   l.cwd,
		Env:   env,
		Files: []uintptr{uintptr(c.files[0]), uintptr(c.files[1]), uintptr(c.files[2])},
		Sys:   sys,
	}
}

// chownPipes makes the command's user the owner of its pipes, so that the command can
// also open them by name (/dev/stdout).
func (l *launch) chownPipes(c command) {
	for _, fd := range c.files {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			_ = unix.Fchown(fd, int(l.cred.Uid), -1)
		}
	}
}
