// hawser fleet: many simulated nodes for a server, and faults.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/cmd/fleet"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

const (
	// fleetNamed is how many nodes that a fault hits are told by name.
	fleetNamed = 8
	// fleetPause is the least time between two lines about how many are Ready.
	fleetPause = time.Second
	// fleetCleanup bounds the deletion of all nodes.
	fleetCleanup = 10 * time.Minute
)

// fleetOptions are the flags of hawser fleet.
type fleetOptions struct {
	server, kubeconfig, dir, dataDir string
	nodes, zones                     int
	prefix, labels, weight           string
	transport                        string
	links                            setup.LinkFlags
	seed                             uint64
	faults                           string
	duration                         time.Duration
	cleanup                          bool
	maxPods                          int
	statusUpdate, statusReport       time.Duration
	leaseSeconds                     int32
	verbosity                        int

	// set by check
	addr   string // HOST:PORT of the server; empty: that of the kubeconfig
	more   map[string]string
	orders []fleet.Fault
	link   tunnel.LinkOptions
}

func newFleet() *cobra.Command {
	var o fleetOptions
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Simulate many nodes for a server, and faults",
		Long: "Simulates nodes in one process until Ctrl-C: each joins with a certificate of its own and keeps a session, a\n" +
			"lease, a status and its pods, whose containers run nothing. Once all are Ready it says so, and then\n" +
			"does what --faults orders: KIND:WHO@AT[+FOR][~EVERY], separated by commas.\n\n" +
			"  KIND   kill (no goodbye), silence (nothing passes), mute (no heartbeats, but the tunnel works),\n" +
			"         sick (says it is not ready), restart, cut (connections reset once), flap (silence, half of EVERY)\n" +
			"  WHO    a number of nodes, a share such as 5%, zone-N, the name of a node, or all\n" +
			"  AT     how long after all were Ready; FOR how long; EVERY how often again\n\n" +
			"  hawser fleet --nodes 1000 --zones 4 --faults kill:10%@30s,silence:zone-1@60s+120s,flap:5%@10s~15s\n\n" +
			"The same seed hits the same nodes at the same times. Nodes stay the same from one run to the next.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags()); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd.Flags())
	setup.UseSections(cmd)
	return cmd
}

func (o *fleetOptions) addFlags(f *pflag.FlagSet) {
	setup.Section(f, "The server, and what is kept", o.addServerFlags)
	setup.Section(f, "The nodes", o.addNodeFlags)
	setup.Section(f, "The tunnel", o.addTunnelFlags, o.links.Add)
	setup.Section(f, "Faults, and the end", o.addFaultFlags)
	setup.Section(f, "The log", o.addLogFlags)
}

func (o *fleetOptions) addServerFlags(f *pflag.FlagSet) {
	f.StringVar(&o.server, "server", "", "URL at which agents reach the server (default that of the kubeconfig)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator (default DIR/"+adminKubeconfig+")")
	f.StringVar(&o.dir, "dir", defaultDir, "directory of the cluster, as of hawser up")
	f.StringVar(&o.dataDir, "data-dir", "", "directory of the nodes' identities and pods; made if missing (default DIR/fleet)")
}

func (o *fleetOptions) addNodeFlags(f *pflag.FlagSet) {
	f.IntVar(&o.nodes, "nodes", 100, "number of nodes")
	f.IntVar(&o.zones, "zones", 1, "number of zones that the nodes are spread over in turn: zone-1, zone-2, …")
	f.StringVar(&o.prefix, "prefix", fleet.DefaultPrefix, "start of the nodes' names, followed by a number from 1")
	f.StringVar(&o.labels, "labels", "", "further labels of the nodes, KEY=VALUE,…")
	f.StringVar(&o.weight, "weight", string(fleet.Light), "how much of a node each is: light, or full as hawser-agent has it, for twice the memory")
	f.IntVar(&o.maxPods, "max-pods", 110, "how many pods each node takes")
	f.DurationVar(&o.statusUpdate, "node-status-update-frequency", 10*time.Second, "how often a node's status is computed")
	f.DurationVar(&o.statusReport, "node-status-report-frequency", 5*time.Minute, "how often a node's status is written when nothing has changed (the update frequency, if only that is given)")
	f.Int32Var(&o.leaseSeconds, "node-lease-duration-seconds", 40, "how long a node's lease lasts; it is renewed every quarter of that")
}

func (o *fleetOptions) addTunnelFlags(f *pflag.FlagSet) {
	f.StringVar(&o.transport, "transport", qmux.Name, "transport of the sessions: qmux, quic, yamux or h2; a server dials nodes of ssh, and there is nothing to simulate")
}

func (o *fleetOptions) addFaultFlags(f *pflag.FlagSet) {
	f.StringVar(&o.faults, "faults", "", "faults, KIND:WHO@AT[+FOR][~EVERY],…")
	f.Uint64Var(&o.seed, "seed", 1, "what draws the nodes that faults hit")
	f.DurationVar(&o.duration, "duration", 0, "how long to go on once all nodes are Ready; 0 until Ctrl-C")
	f.BoolVar(&o.cleanup, "cleanup", false, "at the end, delete the nodes that DIR has the keys of, and what it keeps of them")
}

func (o *fleetOptions) addLogFlags(f *pflag.FlagSet) {
	f.IntVarP(&o.verbosity, "v", "v", 0, "log of the nodes' own: 0 none, 1 life events, 4 and above each stream")
}

// fleetTransports are those by which a node dials the server.
func fleetTransports() map[string]tunnel.Transport {
	return map[string]tunnel.Transport{"qmux": qmux.Transport(), "quic": overquic.Transport(), "yamux": overyamux.Transport(), "h2": overh2.Transport()}
}

// check refuses what cannot work, naming the flag.
func (o *fleetOptions) check(f *pflag.FlagSet) error {
	switch {
	case o.nodes < 1 || o.nodes > fleet.MaxNodes:
		return fmt.Errorf("--nodes %d: want 1 to %d", o.nodes, fleet.MaxNodes)
	case o.zones < 1 || o.zones > o.nodes:
		return fmt.Errorf("--zones %d: want 1 to the number of nodes, %d", o.zones, o.nodes)
	case o.weight != string(fleet.Light) && o.weight != string(fleet.Full):
		return fmt.Errorf("--weight %q: want light or full", o.weight)
	case fleetTransports()[o.transport].Dial == nil:
		return fmt.Errorf("--transport %q: want qmux, quic, yamux or h2", o.transport)
	case o.duration < 0:
		return fmt.Errorf("--duration %s is negative", o.duration)
	case o.maxPods < 1:
		return fmt.Errorf("--max-pods %d: want 1 or more", o.maxPods)
	case o.statusUpdate < 100*time.Millisecond:
		return fmt.Errorf("--node-status-update-frequency %s: want 100ms or more", o.statusUpdate)
	case o.statusReport < 100*time.Millisecond:
		return fmt.Errorf("--node-status-report-frequency %s: want 100ms or more", o.statusReport)
	case o.leaseSeconds < 1:
		return fmt.Errorf("--node-lease-duration-seconds %d: want 1 or more", o.leaseSeconds)
	}
	if f.Changed("node-status-update-frequency") && !f.Changed("node-status-report-frequency") {
		o.statusReport = o.statusUpdate
	}
	first, err := node.ParseName(o.prefix + "1")
	switch {
	case err != nil:
		return fmt.Errorf("--prefix: %w", err)
	case first != o.prefix+"1": // as nodes of machines are named
		return fmt.Errorf("--prefix %q: want lower case and no spaces", o.prefix)
	}
	if o.more, err = node.ParseLabels(o.labels); err != nil {
		return fmt.Errorf("--labels: %w", err)
	}
	if o.orders, err = fleet.ParseFaults(o.faults); err != nil {
		return fmt.Errorf("--faults %w", err)
	}
	if o.link, err = o.links.Check(); err != nil {
		return err
	}
	if o.server != "" {
		if o.addr, err = setup.ServerAddress(o.server); err != nil {
			return fmt.Errorf("--server %w", err)
		}
	}
	return o.checkFiles()
}

func (o *fleetOptions) checkFiles() error {
	if o.kubeconfig == "" {
		o.kubeconfig = filepath.Join(o.dir, adminKubeconfig)
	}
	if o.dataDir == "" {
		o.dataDir = filepath.Join(o.dir, "fleet")
	}
	var err error
	if o.dataDir, err = setup.CheckDataDir(o.dataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return nil
}

// make makes the fleet of the flags.
func (o *fleetOptions) make(rc *rest.Config) (*fleet.Fleet, error) {
	c := fleet.Config{
		Admin: rc, Server: o.addr, Dir: o.dataDir,
		Nodes: o.nodes, Prefix: o.prefix, Zones: o.zones, Labels: o.more, Weight: fleet.Weight(o.weight),
		Transport: fleetTransports()[o.transport], Link: o.link, MaxPods: o.maxPods,
		StatusUpdate: o.statusUpdate, StatusReport: o.statusReport, LeaseDuration: time.Duration(o.leaseSeconds) * time.Second,
	}
	if o.verbosity > 0 {
		c.Log = setup.NewLogger("text", o.verbosity)
	}
	return fleet.New(c)
}

// run runs the fleet until ctx is done or the time is over.
func (o *fleetOptions) run(ctx context.Context, out io.Writer) error {
	rc, err := loadKubeconfig(o.kubeconfig)
	if err != nil {
		return err
	}
	unlock, err := setup.TakeDataDir(o.dataDir, "fleet.lock")
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	defer unlock()
	bridgeKlog(setup.NewLogger("text", o.verbosity), nil)
	f, err := o.make(rc)
	if err != nil {
		return err
	}
	plan, err := f.NewPlan(o.orders, o.seed)
	if err != nil {
		return fmt.Errorf("--faults: %w", err)
	}
	show := &fleetShow{out: out, fleet: f, names: f.Names(), began: time.Now()}
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		defer stop()
		show.tell(running, o, plan)
	})
	err = f.Run(running)
	stop()
	group.Wait()
	if o.cleanup {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetCleanup)
		defer cancel()
		deleted, failed := f.Delete(end)
		err = errors.Join(err, failed)
		show.say("deleted %d nodes", deleted)
	}
	return err
}

// fleetShow tells people what is going on, each line with a time.
type fleetShow struct {
	out   io.Writer
	fleet *fleet.Fleet
	names []string

	mu    sync.Mutex // guards out, and the following
	began time.Time
}

func (s *fleetShow) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, "%8.1fs  "+format+"\n", append([]any{time.Since(s.began).Seconds()}, args...)...) // who reads has gone
}

// tell waits until all nodes are Ready, has the faults happen and returns when the
// time is over.
func (s *fleetShow) tell(ctx context.Context, o *fleetOptions, plan *fleet.Plan) {
	s.say("%d nodes join", o.nodes)
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() { s.count(ctx) })
	if s.fleet.WaitReady(ctx) != nil {
		return
	}
	s.mu.Lock()
	_, _ = fmt.Fprintf(s.out, "ready: %d nodes in %.1fs\n", o.nodes, time.Since(s.began).Seconds()) // as above
	s.began = time.Now()
	s.mu.Unlock()
	fleet.Trim()
	if o.duration > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	s.fleet.Play(ctx, plan, s.step)
	<-ctx.Done()
}

// step tells of a step of the plan.
func (s *fleetShow) step(step fleet.Step) {
	hit := make([]string, 0, fleetNamed+1)
	for _, i := range step.Nodes {
		if len(hit) == fleetNamed {
			hit = append(hit, "…")
			break
		}
		hit = append(hit, s.names[i])
	}
	verb := "begins on"
	if !step.Begin {
		verb = "is over on"
	}
	s.say("%s %s %d nodes: %s", step.Fault, verb, len(step.Nodes), strings.Join(hit, " "))
}

// count tells how the API server sees the nodes, when that changes.
func (s *fleetShow) count(ctx context.Context) {
	last := fleet.Counts{}
	for {
		if s.fleet.Wait(ctx, func(c fleet.Counts) bool { return c != last }) != nil {
			return
		}
		last = s.fleet.Counts()
		s.say("%s", last)
		if sleep(ctx, fleetPause) != nil {
			return
		}
	}
}
