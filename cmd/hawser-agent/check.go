// hawser-agent check: what would keep this machine from being a node, found out before it joins.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node/runtime/process"
)

const (
	// checkTimeout bounds one check.
	checkTimeout = 15 * time.Second
	// checkPadding makes a request of several packets of any path.
	checkPadding = 16 << 10
	// clockOff is how far clocks may be apart: certificates are valid from some minutes before
	// they are made.
	clockOff = time.Minute
	// slowCheck is how long a check may take before its name is printed.
	slowCheck = 2 * time.Second
)

func newCheck() *cobra.Command {
	var (
		o      options
		config setup.Config
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what would keep this machine from being a node",
		Long: "Says what would keep this machine from being a node, before it joins: name, way, certificate, join token and tunnel\n" +
			"of each server, large packets, clocks, UDP where --transport quic needs it, the data directory, control groups and the kubelet.\n" +
			"What is not needed as it is set up, such as UDP or containerd, has a line that says so. A line that begins with warn\n" +
			"is about something that a node can do without, such as control groups, and is no failure.\n" +
			"It takes the flags of hawser-agent. It makes no node, and the join token can be used afterwards.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.checkMachine(cmd.Context(), cmd.OutOrStdout()) },
	}
	setup.Section(cmd.Flags(), "A configuration file", config.Add)
	o.addFlags(cmd.Flags())
	config.Use(cmd, func() error { return o.check(cmd.Flags()) })
	setup.UseSections(cmd)
	return cmd
}

// A checklist prints what comes of each check, in a line.
type checklist struct {
	out           io.Writer
	count, failed int
	err           error // of out
}

// A warning is the error of a check that a node can do without.
type warning struct{ error }

// check runs f and says whether all was well, but for a warning. A text is what it found out.
func (l *checklist) check(ctx context.Context, what string, f func(ctx context.Context) (text string, err error)) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	l.count++
	outcome, began := "ok", time.Now()
	told := make(chan struct{})
	slow := time.AfterFunc(slowCheck, func() {
		defer close(told)
		_, _ = fmt.Fprintf(l.out, "wait    %s\n", what) // the line with the outcome has the error
	})
	text, err := f(ctx)
	if !slow.Stop() {
		<-told
	}
	var mere warning
	switch {
	case errors.As(err, &mere):
		outcome, text, err = "warn", mere.Error(), nil
	case err != nil:
		outcome, text = "FAILED", err.Error()
		l.failed++
	}
	_, werr := fmt.Fprintf(l.out, "%-7s %s: %s (%v)\n", outcome, what, setup.Printable(text), time.Since(began).Round(time.Millisecond))
	l.err = errors.Join(l.err, werr)
	return err == nil
}

// unused prints that something is not checked, and why it is not needed.
func (l *checklist) unused(what, why string) {
	_, err := fmt.Fprintf(l.out, "%-7s %s: %s\n", "unused", what, why)
	l.err = errors.Join(l.err, err)
}

// checkMachine checks everything, and fails if something is not well.
func (o *options) checkMachine(ctx context.Context, out io.Writer) error {
	log := slog.New(slog.DiscardHandler)
	c, err := joinConfig(o, log)
	if err != nil {
		return err
	}
	l := &checklist{out: out}
	for _, addr := range o.addrs {
		o.checkServer(ctx, l, &c, addr)
	}
	l.check(ctx, "data directory "+o.dataDir, func(context.Context) (string, error) { return dirIsOurs(o.dataDir) })
	if o.builtin() {
		l.unused("containerd", "--kubelet builtin runs containers as processes of this machine")
		l.check(ctx, "control groups", func(context.Context) (string, error) {
			if err := process.CheckLimits(); err != nil {
				return "", warning{fmt.Errorf("limits of memory, CPU and processes are not enforced: %w", err)}
			}
			return "limits of memory, CPU and processes can be set", nil
		})
	} else if u, err := url.Parse(o.kubelet); err == nil && u.Host != "" {
		l.unused("containerd", "containers are those of the kubelet at "+u.Host)
		l.check(ctx, "kubelet "+u.Host, func(ctx context.Context) (string, error) {
			return "it takes connections", reaches(ctx, new(net.Dialer).DialContext, u.Host)
		})
	} else {
		l.unused("containerd", "--kubelet none runs no containers")
	}
	if l.err != nil {
		return l.err
	}
	if l.failed > 0 {
		return fmt.Errorf("%d of %d checks failed", l.failed, l.count)
	}
	return nil
}

// dirIsOurs says whether files can be made in a directory, or in the nearest one above that is
// there.
func dirIsOurs(dir string) (string, error) {
	there := dir
	for {
		info, err := os.Stat(there)
		if err == nil && !info.IsDir() {
			return "", fmt.Errorf("%s is no directory", there)
		}
		if err == nil {
			break
		}
		if above := filepath.Dir(there); errors.Is(err, os.ErrNotExist) && above != there {
			there = above
			continue
		}
		return "", err
	}
	if err := unix.Access(there, unix.W_OK|unix.X_OK); err != nil {
		return "", fmt.Errorf("nothing can be written to %s: %w", there, err)
	}
	if there != dir {
		return "it can be made", nil
	}
	return "it can be written to", nil
}
