// Package setup is what both programs do before they begin: read their command line, take
// their data directory, open their log and forbid core files. Its errors are for people; they
// name no flag, the caller does.
package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/auth/atomicfile"
	"github.com/hawser-project/hawser/auth/privatedir"
)

// NoCores keeps the memory of this process, which holds keys, out of core files, and that
// of the processes it starts, which may have been told some.
func NoCores() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // everybody may have less
}

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on now, for a program that cannot be
// asked which one it has chosen. Another program may take it before that one does.
func FreePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// StopSignals are those at which a program ends in good order: an interrupt, SIGTERM and, unless
// that is ignored, as nohup has it, SIGHUP, which comes when a terminal is closed.
func StopSignals() []os.Signal {
	s := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		s = append(s, syscall.SIGHUP)
	}
	return s
}

// defaultServerPort is the port of a server's URL that names none.
const defaultServerPort = "6443"

// ServerAddress returns HOST:PORT of a server's URL, https://HOST:PORT. Its error has no user and
// password of the URL.
func ServerAddress(text string) (string, error) {
	u, err := url.Parse(text)
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "", fmt.Errorf("%q: want https://HOST:PORT", "..."+text[at:])
	}
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || strings.ContainsAny(text, "?#") {
		return "", fmt.Errorf("%q: want https://HOST:PORT", text)
	}
	if strings.Contains(u.Hostname(), "%") {
		return "", fmt.Errorf("%q: want an address without a zone, which no certificate can name", text)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultServerPort)), nil
}

// debugVerbosity is from which --v on the log tells of each stream.
const debugVerbosity = 4

// CheckLogFormat refuses what NewLogger does not know.
func CheckLogFormat(format string) error {
	if format != "text" && format != "json" {
		return fmt.Errorf("%q: want text or json", format)
	}
	return nil
}

// NewLogger returns a log on standard error.
func NewLogger(format string, verbosity int) *slog.Logger {
	return slog.New(newHandler(os.Stderr, format, verbosity))
}

func newHandler(to io.Writer, format string, verbosity int) slog.Handler {
	level := slog.LevelInfo
	if verbosity >= debugVerbosity {
		level = slog.LevelDebug
	}
	ho := &slog.HandlerOptions{Level: level, ReplaceAttr: durationText}
	if format == "json" {
		return slog.NewJSONHandler(to, ho)
	}
	return slog.NewTextHandler(to, ho)
}

// durationText writes durations as in the text format: slog writes nanoseconds in JSON.
func durationText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// locks are the names by which programs lock their data directories. A directory
// with one of them is Hawser's.
var locks = []string{"server.lock", "agent.lock", "up.lock", "fleet.lock"}

// firstFiles are what may be in a data directory before it is first locked: by
// hawser up, by hawser ssh pin, by who moves an identity, and by file systems. What a crash leaves
// of a file that was being written may be there, too.
var firstFiles = []string{
	"server.log", "server.pid", "agent.log", "agent.pid", "pki", "ssh_known_hosts", ".ssh_known_hosts.lock", "lost+found",
}

// CheckDataDir refuses a directory that keys and Secrets must not be kept in: one
// that others may enter, or that holds files of somebody else. One that is missing
// is fine. It creates nothing, and returns the absolute path.
func CheckDataDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("the path is empty: name a directory")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	err = privatedir.Check(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	if err != nil {
		return "", err
	}
	// From here on nobody can lead the name elsewhere.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("%w: choose a directory of your own", err)
	}
	foreign := ""
	for _, e := range entries {
		if slices.Contains(locks, e.Name()) {
			return dir, nil
		}
		first := slices.Contains(firstFiles, e.Name()) || strings.HasPrefix(e.Name(), atomicfile.TempPrefix)
		if foreign == "" && !first {
			foreign = e.Name()
		}
	}
	if foreign != "" {
		return "", fmt.Errorf("%s holds files that are not Hawser's, such as %q: choose a directory of its own", dir, foreign)
	}
	return dir, nil
}

// ServerDir is where a server keeps its data unless it is told otherwise.
const ServerDir = "/var/lib/hawser"

// ConfigDir is where packages and manifests put what a program is started with, such as a join
// token and kubeconfigs.
const ConfigDir = "/etc/hawser"

// Around lists the directories of Hawser's on this machine, as far as they can be
// told from dir, the data directory of an agent: it, those above it that are
// Hawser's, such as that of hawser up with the keys of the server and the
// directories of other nodes, the server's usual one, and ConfigDir.
func Around(dir string) []string {
	list := []string{dir, ServerDir, ConfigDir}
	for up := filepath.Dir(dir); up != "/"; up = filepath.Dir(up) {
		for _, name := range locks {
			if _, err := os.Lstat(filepath.Join(up, name)); err == nil {
				list = append(list, up)
				break
			}
		}
	}
	return list
}

// TakeDataDir makes dir if it is missing, makes sure that it can be written, and
// takes it for this process as Lock does. name is one of server.lock, agent.lock,
// up.lock and fleet.lock.
func TakeDataDir(dir, name string) (unlock func(), err error) {
	if err := privatedir.Make(dir); err != nil {
		return nil, err
	}
	return Lock(dir, name)
}

// lockPatience is how long Lock waits. A process that was killed while it started another one has
// the lock until that one runs its program.
const lockPatience = time.Second

// Lock takes dir for this process, by a lock on the file name in it, until unlock
// is called or the process ends. It waits for one second at most.
func Lock(dir, name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: choose a directory that can be written", err)
	}
	for began := time.Now(); syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; {
		if time.Since(began) > lockPatience {
			_ = f.Close()
			return nil, fmt.Errorf("%s is in use by another process: stop that one first or choose another directory", dir)
		}
		<-time.After(20 * time.Millisecond)
	}
	return func() { _ = f.Close() }, nil
}
