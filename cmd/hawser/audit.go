// The logs of who did what: the API server's audit log and the tunnel's.

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// auditOptions are the flags of the API server's audit log, by kube-apiserver's names
// and with its defaults.
type auditOptions struct {
	policyFile string
	log        rotatedFile
	format     string
	mode       string
}

func (o *auditOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.policyFile, "audit-policy-file", "", "audit policy (audit.k8s.io/v1): which requests are written to --audit-log-path; none without it")
	o.log.addFlags(f, "audit-log", "audit log of the API")
	f.StringVar(&o.format, "audit-log-format", "json", "json, or legacy: one line of text for each event")
	f.StringVar(&o.mode, "audit-log-mode", apiserver.AuditBlocking, "blocking: a request waits for its line, and goes on if that cannot be written; batch: lines are buffered and lost beyond 10,000; blocking-strict: a request whose line cannot be written is refused")
}

// config is what the API server is told. The log is open already, or nil.
func (o *auditOptions) config(log io.Writer) apiserver.Audit {
	a := apiserver.Audit{PolicyFile: o.policyFile, Format: o.format, Mode: o.mode}
	if o.log.path != "" {
		a.Out = log
	}
	return a
}

// check refuses what cannot work, naming the flag.
func (o *auditOptions) check() error {
	if err := o.config(io.Discard).Check(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return o.log.check()
}

// A rotatedFile is the flags of a log that is kept in a file of bounded size.
type rotatedFile struct {
	flag                       string // what the flags' names begin with
	path                       string
	maxAge, maxBackup, maxSize int
}

func (r *rotatedFile) addFlags(f *pflag.FlagSet, prefix, what string) {
	r.flag = prefix
	f.StringVar(&r.path, prefix+"-path", "", what+": a file, or - for standard output; empty means none")
	f.IntVar(&r.maxAge, prefix+"-maxage", 366, "days that old files of --"+prefix+"-path are kept; 0: for ever")
	f.IntVar(&r.maxBackup, prefix+"-maxbackup", 100, "how many old files of --"+prefix+"-path are kept; 0: all")
	f.IntVar(&r.maxSize, prefix+"-maxsize", 100, "megabytes at which --"+prefix+"-path is rotated; 0: never")
}

func (r *rotatedFile) check() error {
	for name, v := range map[string]int{"maxage": r.maxAge, "maxbackup": r.maxBackup, "maxsize": r.maxSize} {
		if v < 0 {
			return fmt.Errorf("--%s-%s %d is negative", r.flag, name, v)
		}
	}
	if r.path == "" || r.path == "-" {
		return nil
	}
	if err := writable(r.path); err != nil {
		return fmt.Errorf("--%s-path: %w", r.flag, err)
	}
	return nil
}

// writable says why a file cannot be written, or made with the directories above it. It
// makes nothing.
func writable(path string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		return file.Close()
	}
	for errors.Is(err, fs.ErrNotExist) {
		path = filepath.Dir(path)
		_, err = os.Stat(path)
	}
	if err != nil {
		return err
	}
	if err := unix.Access(path, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "write to", Path: path, Err: err}
	}
	return nil
}

// open makes the file, readable for its owner only, so that what cannot be written is
// found at the start. Without a path it returns what takes everything and keeps nothing.
func (r *rotatedFile) open() (io.WriteCloser, error) {
	switch r.path {
	case "":
		return unowned{io.Discard}, nil
	case "-":
		return unowned{os.Stdout}, nil
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
		return nil, fmt.Errorf("--%s-path: %w", r.flag, err)
	}
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--%s-path: %w", r.flag, err)
	}
	if r.maxSize == 0 {
		return file, nil
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("--%s-path: %w", r.flag, err)
	}
	return &lumberjack.Logger{Filename: r.path, MaxAge: r.maxAge, MaxBackups: r.maxBackup, MaxSize: r.maxSize}, nil
}

// An unowned writer is not ours to close.
type unowned struct{ io.Writer }

func (unowned) Close() error { return nil }
