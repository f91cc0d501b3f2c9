// hawser explain: what is wrong with a node, since when, and what comes next.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/cmd/internal/explain"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

const (
	// explainEvents is how many events about a node are kept, the latest of the control plane and of others.
	explainEvents = 500
	// explainSlices is how many of a Service's EndpointSlices are read.
	explainSlices = 1000
	// skewIgnored is how far this machine's clock may be off the server's before
	// the server's is used: its word for the time is a whole second.
	skewIgnored = 2 * time.Second
)

func newExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain", SuggestFor: []string{"status"}, Short: "Say what is wrong with a node, the fleet or a dial",
		// Without these two a subcommand that does not exist would print the help
		// and succeed.
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var of explainFlags
	node := &cobra.Command{
		Use:   "node NAME",
		Short: "Name the layer that is broken, since when, and what happens next",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return of.run(cmd, func(ctx context.Context, rc *rest.Config) error {
				return explainNode(ctx, cmd.OutOrStdout(), rc, args[0], of)
			})
		},
	}
	fleet := &cobra.Command{
		Use:   "fleet",
		Short: "Count what is broken by layer and by site or zone, the worst first, since when, and what happens next",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return of.run(cmd, func(ctx context.Context, rc *rest.Config) error {
				return explainFleet(ctx, cmd.OutOrStdout(), rc, of)
			})
		},
	}
	for _, c := range []*cobra.Command{node, fleet} {
		c.Flags().DurationVar(&of.grace, "node-monitor-grace-period", explain.DefaultGrace, "the server's: how long a node may be quiet before it is Unknown")
	}
	node.ValidArgsFunction = completeNames(&of.kubeconfig, 1, nodeNames)
	for _, c := range []*cobra.Command{node, fleet, newExplainDial(&of)} {
		of.add(c.Flags())
		cmd.AddCommand(c)
	}
	return cmd
}

// explainFlags are those of all that is explained.
type explainFlags struct {
	kubeconfig, dir, output string
	grace                   time.Duration
	notes                   io.Writer // for what takes time
}

func (o *explainFlags) add(f *pflag.FlagSet) {
	f.StringVarP(&o.output, "output", "o", "", "json for a machine to read")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default $KUBECONFIG, then ./.hawser/"+adminKubeconfig+")")
	f.StringVar(&o.dir, "dir", "", "directory of a cluster that hawser up started")
}

// run has f ask the cluster that the flags say.
func (o *explainFlags) run(cmd *cobra.Command, f func(context.Context, *rest.Config) error) error {
	switch {
	case o.output != "" && o.output != "json":
		return fmt.Errorf("-o %s: there is json, or nothing for a page of text", o.output)
	case o.grace <= 0:
		return fmt.Errorf("--node-monitor-grace-period %v is not above zero: give the server's, such as 40s", o.grace)
	case o.kubeconfig != "" && o.dir != "":
		return fmt.Errorf("--kubeconfig and --dir say both which cluster: give one")
	}
	if o.dir != "" {
		o.kubeconfig = filepath.Join(o.dir, adminKubeconfig)
	}
	rc, err := loadKubeconfig(o.kubeconfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), apiTimeout+maxHear)
	defer cancel()
	o.notes = cmd.ErrOrStderr()
	return withRemedy(f(ctx, rc))
}

func explainNode(ctx context.Context, out io.Writer, rc *rest.Config, name string, of explainFlags) error {
	client, clock, err := clocked(rc)
	if err != nil {
		return err
	}
	o, err := gather(ctx, client, clock, name)
	if err != nil {
		return fmt.Errorf("explain node %s: %w", name, err)
	}
	o.Now, o.Grace = clock.now(), of.grace
	if explain.Doubtful(*o) {
		heard, err := hear(ctx, of.notes, client, map[string]*coordinationv1.Lease{name: o.Lease})
		if err != nil { // dates are all that there is
			fmt.Fprintln(of.notes, "Heartbeats cannot be watched:", err)
		}
		if again, err := gather(ctx, client, clock, name); err != nil { // what there was is better than nothing
			fmt.Fprintln(of.notes, "This is from before:", err)
		} else {
			o = again
			o.Now, o.Grace, o.Heard = clock.now(), of.grace, heard[name]
		}
	}
	if err := write(out, explain.Explain(*o), of.output); err != nil {
		return err
	}
	if o.Node == nil { // what is left of it has been told; a script is told by the exit code
		return fmt.Errorf("explain: there is no node %q", name)
	}
	return nil
}

// clocked is a client, and the clock of its server.
func clocked(rc *rest.Config) (kubernetes.Interface, *serverClock, error) {
	clock := &serverClock{}
	rc = rest.CopyConfig(rc)
	rc.Wrap(clock.watch)
	client, err := kubernetes.NewForConfig(rc)
	return client, clock, err
}

// write writes a page, or JSON.
func write(out io.Writer, r interface{ WriteText(w io.Writer) error }, output string) error {
	if output == "" {
		return r.WriteText(out)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// gather reads all that the API has about a node. What is not there is not an
// error.
func gather(ctx context.Context, client kubernetes.Interface, clock *serverClock, name string) (*explain.Objects, error) {
	o := &explain.Objects{Name: name}
	var err error
	if o.Node, err = client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
		o.Node = nil
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	if o.Lease, err = client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{}); err != nil {
		o.Lease = nil
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	identify(ctx, nodekeys.NewBook(client), clock, o)
	if o.Away, err = awayOf(ctx, client, o.Node); err != nil {
		return nil, err
	}
	events := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "Node", "involvedObject.name": name}.String()}
	err = eachEvent(ctx, client, events, func(e *corev1.Event) {
		o.Events = append(o.Events, *e)
		if len(o.Events) == 4*explainEvents {
			o.Events = explain.Latest(o.Events, explainEvents)
		}
	})
	if err != nil {
		return nil, err
	}
	o.Events = explain.Latest(o.Events, explainEvents)
	pods := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()}
	err = pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
	}).EachListItem(ctx, pods, func(p runtime.Object) error {
		o.Pods = append(o.Pods, *p.(*corev1.Pod))
		return nil
	})
	return o, err
}

// identify adds who holds the name of o's node.
func identify(ctx context.Context, book *nodekeys.Book, clock *serverClock, o *explain.Objects) {
	id, err := book.Get(ctx, o.Name)
	switch {
	case err == nil:
		o.Identity, o.Held = id.State(clock.now()), len(id.Keys) > 0 && id.Revoked == nil
		bar(o, id)
	case !errors.Is(err, nodekeys.ErrUnknown) && !apierrors.IsForbidden(err): // some clusters keep none, some people may not read them
		o.Identity = err.Error()
	}
	if o.Node == nil {
		o.Vouched, _ = book.Vouched(ctx) // or it is not known, as of those clusters
	}
}

// bar adds that nobody is admitted under the name of o's node.
func bar(o *explain.Objects, id *nodekeys.Record) {
	if id == nil || id.Revoked == nil {
		return
	}
	o.Revoked = setup.Printable(id.Revoked.String())
	if id.Allowed != nil {
		o.Allowed = id.Allowed.Until.Time
	}
}

// eachEvent calls f with all events that only selects.
func eachEvent(ctx context.Context, client kubernetes.Interface, only metav1.ListOptions, f func(*corev1.Event)) error {
	return pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Events(metav1.NamespaceAll).List(ctx, o)
	}).EachListItem(ctx, only, func(o runtime.Object) error {
		f(o.(*corev1.Event))
		return nil
	})
}

// A serverClock knows how far the server's clock is ahead of this machine's, from
// its answers.
type serverClock struct{ ahead atomic.Int64 } // nanoseconds

func (c *serverClock) watch(below http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := below.RoundTrip(r)
		if err == nil {
			if at, derr := http.ParseTime(resp.Header.Get("Date")); derr == nil {
				c.ahead.Store(int64(time.Until(at)))
			}
		}
		return resp, err
	})
}

// now is the time at the server.
func (c *serverClock) now() time.Time {
	now := time.Now()
	if ahead := time.Duration(c.ahead.Load()); ahead.Abs() > skewIgnored {
		now = now.Add(ahead)
	}
	return now
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
