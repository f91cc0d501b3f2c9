// Package bench compares ways to reach a node on one machine, in one run: a plain
// TCP connection, a bare TLS relay, and each of the tunnel's transports.
//
// What is compared goes by the same words everywhere:
//
//	direct       client ──────────────────────────────────────────▶ target
//	relay        client ─TCP─▶ control ═TLS, one a stream═▶ node ─▶ target
//	qmux, yamux, h2, quic
//	             client ─CONNECT─▶ control ═══session═══▶ node ───▶ target
//	ssh          client ─CONNECT─▶ control ═══ssh════▶ sshd ──────▶ target
//
// Client and target are this process; control and node are a process each, which
// this program starts from itself (see Serve), so that what each side costs can be
// told apart. Control has the hub and the CONNECT front end on a unix socket, node
// has the agent, with their defaults, and their certificates are made for the run.
// Everything is on loopback and ends with the run.
//
// The relay is the yardstick: as little as two hops and TLS 1.3 can cost in Go,
// without a multiplexer, and so with a handshake for each new connection. A run
// goes through its rounds, within a round through its measurements, and within a
// measurement through the transports, a different one first each time. A figure is
// the median over the rounds, and a ratio is the median of the ratios within the
// rounds, so that what else the machine does weighs on both sides.
//
// What this package is not: it measures no network. Loopback has no delay and no
// loss, and all processes share the machine's processors with each other.
package bench

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

// The transports that can be compared.
const (
	Direct = "direct"
	Relay  = "relay"
	QMux   = "qmux"
	Yamux  = "yamux"
	H2     = "h2"
	QUIC   = "quic"
	SSH    = "ssh"
)

// Transports are all that can be compared, in the order of tables.
func Transports() []string { return []string{Direct, Relay, QMux, Yamux, H2, QUIC, SSH} }

// Defaults of Config.
const (
	DefaultDuration = time.Second
	DefaultRounds   = 3
	DefaultSessions = 300
	DefaultStreams  = 1000
)

// Bounds of Config.
const (
	MinDuration = 10 * time.Millisecond
	MaxDuration = time.Minute
	MaxRounds   = 100
)

const (
	// maxSSHSessions bounds the idle ssh connections: each is two processes.
	maxSSHSessions = 20
	// setupTime bounds every wait for something to come about.
	setupTime = 2 * time.Minute
)

// Config configures a run. Zero fields mean a good default.
type Config struct {
	// Transports are those to compare; none means all.
	Transports []string
	// Duration is how long each measurement lasts; zero means DefaultDuration.
	Duration time.Duration
	// Rounds is how often each is made; zero means DefaultRounds.
	Rounds int
	// Sessions and Streams are how many idle ones memory is measured with; zero
	// means DefaultSessions and DefaultStreams. Of ssh there are at most 20
	// sessions.
	Sessions, Streams int
	// Version is that of the program, for the report.
	Version string
	// Command is the program, with its arguments, that calls Serve in that role;
	// nil means this program with the arguments bench serve --role=ROLE.
	Command func(role string) ([]string, error)
	// Progress is told what is being done, in lines; nil means nobody is.
	Progress io.Writer
}

// Check says what is wrong with a list of transports.
func Check(transports []string) error {
	for i, t := range transports {
		if !slices.Contains(Transports(), t) {
			return fmt.Errorf("%q is none of %s", t, strings.Join(Transports(), ", "))
		}
		if slices.Contains(transports[:i], t) {
			return fmt.Errorf("%q is there twice", t)
		}
	}
	return nil
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Transports) == 0 {
		c.Transports = Transports()
	}
	if err := Check(c.Transports); err != nil {
		return c, fmt.Errorf("transports: %w", err)
	}
	for _, n := range []struct {
		name           string
		field          *int
		value, highest int
	}{
		{"rounds", &c.Rounds, DefaultRounds, MaxRounds},
		{"sessions", &c.Sessions, DefaultSessions, 10_000},
		{"streams", &c.Streams, DefaultStreams, DefaultStreams},
	} {
		if *n.field == 0 {
			*n.field = n.value
		}
		if *n.field < 0 || *n.field > n.highest {
			return c, fmt.Errorf("%s: %d is not between 1 and %d", n.name, *n.field, n.highest)
		}
	}
	if c.Duration == 0 {
		c.Duration = DefaultDuration
	}
	if c.Duration < MinDuration || c.Duration > MaxDuration {
		return c, fmt.Errorf("duration: %s is not between %s and %s", c.Duration, MinDuration, MaxDuration)
	}
	if c.Command == nil {
		c.Command = ownProgram
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	return c, nil
}

// ownProgram runs this program in a role.
func ownProgram(role string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return []string{self, "bench", "serve", "--role=" + role}, nil
}

// A run is a comparison under way.
type run struct {
	cfg     Config
	dir     string // of keys and sockets
	systems []*system
	report  *Report
}

// Run compares, and returns once every process that it started has ended and its
// files are gone. It fails if anything fails: figures of a transport that loses
// connections mean nothing.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	c, err = c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &run{cfg: c, report: newReport(c)}
	if r.dir, err = os.MkdirTemp("", "hawser-bench-"); err != nil {
		return nil, fmt.Errorf("make directory for keys and sockets: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if err = makeKeys(r.dir); err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range r.systems {
			err = errors.Join(err, s.close())
		}
		if ctx.Err() != nil { // what else went wrong follows from that
			err = context.Cause(ctx)
		}
	}()
	if err = r.measure(ctx); err != nil {
		return nil, err
	}
	r.report.finish()
	return r.report, nil
}

// measure makes all measurements.
func (r *run) measure(ctx context.Context) error {
	for _, name := range r.cfg.Transports {
		r.progress("start %s", name)
		s, err := r.start(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: start: %w", name, err)
		}
		r.systems = append(r.systems, s)
		if s.note != "" {
			r.report.Notes = append(r.report.Notes, s.note)
		}
	}
	// Memory comes first, before anything else has left its mark on it.
	for _, s := range r.systems {
		r.progress("memory of %s", s.name)
		if err := r.memory(ctx, s); err != nil {
			return fmt.Errorf("%s: memory: %w", s.name, err)
		}
	}
	for round := range r.cfg.Rounds {
		for i, p := range phases {
			r.progress("round %d of %d: %s", round+1, r.cfg.Rounds, p.what)
			for j := range r.systems {
				s := r.systems[(j+i+round)%len(r.systems)]
				f, err := p.run(ctx, r.cfg.Duration, s)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", s.name, p.what, err)
				}
				r.report.add(s.name, f)
				if err := s.target.settle(ctx); err != nil {
					return fmt.Errorf("%s: after %s: %w", s.name, p.what, err)
				}
			}
		}
	}
	return ctx.Err()
}

func (r *run) progress(format string, args ...any) {
	fmt.Fprintf(r.cfg.Progress, format+"\n", args...)
}
