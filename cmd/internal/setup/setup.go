// Package setup is what both programs do before they begin: take their data
// directory and open their log. Its errors are for people; they name no flag, the
// caller does.
package setup

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

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
	level := slog.LevelInfo
	if verbosity >= debugVerbosity {
		level = slog.LevelDebug
	}
	ho := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, ho))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, ho))
}

// DataDir makes dir if it is missing, gives it mode 0700, makes sure that it can
// be written, and returns its absolute path.
func DataDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("%w: choose a directory that can be written", err)
	}
	if err = os.Chmod(dir, 0o700); err != nil {
		return "", fmt.Errorf("%w: choose a directory of your own", err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return "", fmt.Errorf("%w: choose a directory that can be written", err)
	}
	return dir, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// Lock takes dir for this process, by a lock on the file name in it, until unlock
// is called or the process ends.
func Lock(dir, name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is in use by another process: stop that one first or choose another directory", dir)
	}
	return func() { _ = f.Close() }, nil
}
