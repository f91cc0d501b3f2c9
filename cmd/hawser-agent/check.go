// hawser-agent check: what would keep this machine from being a node, found out before it joins.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node/runtime/process"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overquic"
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
		Long: "Says what would keep this machine from being a node, before it joins: name, way, certificate and join token of each\n" +
			"server, large packets, clocks, UDP where --transport quic needs it, the data directory, control groups and the kubelet.\n" +
			"What is not needed as it is set up, such as UDP or containerd, has a line that says so.\n" +
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

// check runs f and says whether all was well. A text is what it found out.
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
	if err != nil {
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
				return "", fmt.Errorf("limits of memory, CPU and processes cannot be set: %w", err)
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

// checkServer checks the way to one server, from below. What stands on a check that failed is
// left out.
func (o *options) checkServer(ctx context.Context, l *checklist, c *bootstrap.Config, addr string) {
	host, _, _ := net.SplitHostPort(addr) // checkServers made it
	via, _ := proxyFor(addr)              // it has been checked
	if _, err := netip.ParseAddr(host); err != nil && via == nil {
		if !l.check(ctx, "name "+host, func(ctx context.Context) (string, error) {
			found, err := net.DefaultResolver.LookupHost(ctx, host)
			return strings.Join(found, ", "), err
		}) {
			return
		}
	}
	way := "way to " + addr
	if via != nil {
		way += " through proxy " + via.Host
	}
	if !l.check(ctx, way, func(ctx context.Context) (string, error) {
		return "it takes connections", reaches(ctx, agent.NewDial(proxyFor, false), addr)
	}) {
		return
	}
	if o.transport == overquic.Name {
		l.check(ctx, "UDP to "+addr, func(ctx context.Context) (string, error) { return "it is answered", udpIsAnswered(ctx, addr) })
	} else {
		l.unused("UDP to "+addr, "--transport "+o.transport+" uses TCP alone")
	}
	if len(c.Pins) > 0 { // or it has its certificate, and trusts what it was given with that
		o.checkJoin(ctx, l, c, addr)
	}
}

// checkJoin asks a server that takes connections as an agent does that joins.
func (o *options) checkJoin(ctx context.Context, l *checklist, c *bootstrap.Config, addr string) {
	small, large := *c, *c
	large.Dial = agent.NewDial(proxyFor, false)
	var p bootstrap.Probe
	if !l.check(ctx, "server "+addr, func(ctx context.Context) (text string, err error) {
		p, err = small.Probe(ctx, "https://"+addr, 0)
		if err == nil && p.RefusesToken {
			return o.refused(c)
		}
		if p.NoToken {
			return "its CA is the one expected; there is no join token to show", err
		}
		return "its CA is the one expected, and it knows the join token", err
	}) {
		return
	}
	l.check(ctx, "clocks", func(context.Context) (string, error) {
		if p.Ahead.Abs() > clockOff {
			return "", fmt.Errorf("that of the server is %v ahead of this machine's: set the wrong one", p.Ahead)
		}
		return fmt.Sprintf("that of the server is %v ahead", p.Ahead), nil
	})
	l.check(ctx, "large packets", func(ctx context.Context) (string, error) {
		if _, err := large.Probe(ctx, "https://"+addr, checkPadding); err != nil {
			return "", fmt.Errorf("small ones pass and large ones do not: let ICMP pass, or lower the MTU of this machine's interface: %w", err)
		}
		return "they pass", nil
	})
}

// refused says what it means that the server refuses the join token: nothing for a node that has a
// valid certificate.
func (o *options) refused(c *bootstrap.Config) (string, error) {
	if needed, err := c.NeedsToken(); needed || err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", o.tokenFrom, bootstrap.ErrTokenRejected), err)
	}
	return "its CA is the one expected; it refuses the join token, which a node that has its certificate does not need", nil
}

// reaches makes a connection and closes it.
func reaches(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error), addr string) error {
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// udpIsAnswered begins a handshake of QUIC. Without a client certificate no session comes of
// it; how the server says so does not matter.
func udpIsAnswered(ctx context.Context, addr string) error {
	s, err := overquic.Transport().Dial(ctx, addr, tunnel.Options{TLS: &tls.Config{MinVersion: tls.VersionTLS13}})
	switch code := tunnel.CodeOf(err); code {
	case 0:
		return s.Close()
	case tunnel.Unreachable, tunnel.Timeout, tunnel.Refused, tunnel.Unresolved, tunnel.Canceled:
		return fmt.Errorf("no answer: let UDP pass, or use --transport qmux: %w", err)
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
