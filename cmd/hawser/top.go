// hawser top tunnels: one row a node of what its tunnel does, from the Nodes and from the
// server's metrics.

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/evidence"
)

const (
	// maxMetrics bounds what is read of a server's metrics.
	maxMetrics = 64 << 20
	// maxCell is how many characters a name has in a table.
	maxCell = 40
	// nodeMetrics is how the names of metrics by node begin.
	nodeMetrics = "hawser_hub_node_"
)

// A tunnelRow is one node. Of others is the row of the nodes that the metrics do not name.
type tunnelRow struct {
	node, site, state string
	since             time.Time
	counted           bool // there are metrics
	rtt               time.Duration
	streams           float64
	toNode, fromNode  float64 // bytes
	lost, resumed     float64 // connections
	dials, failed     float64
}

const (
	// others are the nodes that metrics show together.
	others = "(others)"
	// noTunnel is a node whose Node says nothing of one.
	noTunnel = "none"
	// notBack is a node whose Node says that it has a session, and no server has one.
	notBack = "NotBack"
)

// sortKeys are the values of --sort-by. Those of numbers have the highest first.
var sortKeys = map[string]func(a, b *tunnelRow) int{
	"name":    func(_, _ *tunnelRow) int { return 0 }, // and then by name, as all are
	"site":    func(a, b *tunnelRow) int { return strings.Compare(a.site, b.site) },
	"tunnel":  func(a, b *tunnelRow) int { return strings.Compare(a.state, b.state) },
	"rtt":     func(a, b *tunnelRow) int { return cmp.Compare(b.rtt, a.rtt) },
	"streams": func(a, b *tunnelRow) int { return cmp.Compare(b.streams, a.streams) },
	"bytes":   func(a, b *tunnelRow) int { return cmp.Compare(b.toNode+b.fromNode, a.toNode+a.fromNode) },
	"lost":    func(a, b *tunnelRow) int { return cmp.Compare(b.lost, a.lost) },
	"resumed": func(a, b *tunnelRow) int { return cmp.Compare(b.resumed, a.resumed) },
	"failed":  func(a, b *tunnelRow) int { return cmp.Compare(b.failed, a.failed) },
}

func newTop() *cobra.Command {
	top := &cobra.Command{
		Use: "top", Short: "Show what nodes use, and what the tunnels of all nodes do",
		Args: cobra.NoArgs, // see newToken
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var kubeconfig, by, hub string
	keys := []string{"name", "site", "tunnel", "rtt", "streams", "bytes", "lost", "resumed", "failed"}
	tunnels := &cobra.Command{
		Use:   "tunnels",
		Short: "One row a node: its session, round trip, open streams, bytes, connections lost and resumed, dials",
		Long: "Prints one row a node. TUNNEL is the reason of the node's condition hawser.dev/TunnelConnected. SINCE is how long\n" +
			"ago the session was attached, or else how long ago the condition became False. TUNNEL is NotBack since the server\n" +
			"was started if the condition says Attached and no server has a session of the node. The figures are the\n" +
			"server's metrics, of the sessions that the server of the kubeconfig has; - is a node that it has none with. RTT is\n" +
			"the latest round trip. STREAMS are open now. TO-NODE and FROM-NODE are the bytes that streams have carried. LOST\n" +
			"and RESUMED are connections that sessions lost, and that they took after their first. DIALS and FAILED are dials\n" +
			"into the node. A thousand nodes have figures of their own; those of the rest are added up.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sortKeys[by] == nil {
				return fmt.Errorf("--sort-by %q: want one of %s", by, strings.Join(keys, ", "))
			}
			return withClient(cmd.Context(), kubeconfig, func(ctx context.Context, client kubernetes.Interface, rc *rest.Config) error {
				metrics, err := metricsOf(ctx, client, rc, hub)
				if err != nil {
					return err
				}
				return topTunnels(ctx, cmd.OutOrStdout(), client, metrics, by, time.Now())
			})
		},
	}
	tunnels.Flags().StringVar(&by, "sort-by", "name", "what rows are sorted by, the highest number first: "+strings.Join(keys, ", "))
	hubFlag(tunnels, &hub)
	kubeconfigFlag(tunnels, &kubeconfig)
	// It fails only for a flag that is not there, or twice.
	_ = tunnels.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions(keys, cobra.ShellCompDirectiveNoFileComp))
	top.AddCommand(tunnels, newTopNodesDoc())
	return top
}

// newTopNodesDoc is for the help, as newKubectlDoc is.
func newTopNodesDoc() *cobra.Command {
	return &cobra.Command{
		Use: "nodes [NAME] ...", Aliases: []string{"node"},
		Short:              "CPU and memory of nodes: the same as hawser kubectl top nodes",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return errors.New("top nodes must be the first two arguments") },
	}
}

func hubFlag(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "hub", "", "URL of the hub's --health-port, such as https://127.0.0.1:8134, where the hub is beside a cluster")
}

// metricsOf is the way to the metrics of the server of a client, or to those of a hub that is
// beside it and knows its users.
func metricsOf(ctx context.Context, client kubernetes.Interface, rc *rest.Config, hub string) (rest.Interface, error) {
	if hub == "" {
		return client.Discovery().RESTClient(), nil
	}
	if _, err := setup.ServerAddress(hub); err != nil { // who asks shows that a secret
		return nil, fmt.Errorf("--hub %w", err)
	}
	trust, err := client.CoreV1().ConfigMaps(hubNamespace).Get(ctx, hubName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the hub's authority: %w", err)
	}
	rc = rest.CopyConfig(rc)
	if err = rest.LoadTLSFiles(rc); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	rc.Host, rc.ServerName, rc.CAFile = hub, "", ""
	rc.CAData = append(append(rc.CAData, '\n'), trust.Data[hubKey]...)
	at, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("--hub %s: %w", hub, err)
	}
	return at.Discovery().RESTClient(), nil
}

func topTunnels(ctx context.Context, out io.Writer, client kubernetes.Interface, metrics rest.Interface, by string, now time.Time) error {
	rows := map[string]*tunnelRow{}
	err := eachNode(ctx, client, func(n *corev1.Node) { rows[n.Name] = rowOf(n) })
	if err != nil {
		return fmt.Errorf("list nodes: %w", plainly(err))
	}
	figures, err := readMetrics(ctx, metrics)
	if err != nil {
		return fmt.Errorf("read the server's metrics: %w", plainly(err))
	}
	if !addFigures(rows, figures) {
		return errors.New("this server has no metrics of tunnels: give --hub, where the hub is beside a cluster")
	}
	away := readPage(ctx, metrics)
	for node := range away.nodes {
		if r := rows[node]; r != nil && !r.counted {
			r.state, r.since = notBack, away.started
		}
	}
	sorted := make([]*tunnelRow, 0, len(rows))
	for _, r := range rows {
		sorted = append(sorted, r)
	}
	slices.SortFunc(sorted, func(a, b *tunnelRow) int { return cmp.Or(sortKeys[by](a, b), strings.Compare(a.node, b.node)) })
	return writeTunnels(out, sorted, now)
}

// eachNode calls f for each Node, some of which are read at a time.
func eachNode(ctx context.Context, client kubernetes.Interface, f func(*corev1.Node)) error {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, o)
	}
	return pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		f(o.(*corev1.Node))
		return nil
	})
}

// rowOf is what a Node says of its tunnel.
func rowOf(n *corev1.Node) *tunnelRow {
	r := &tunnelRow{node: n.Name, site: n.Labels[auth.SiteLabel], state: noTunnel}
	if n.Annotations[setup.TransportAnnotation] == setup.SSH {
		r.state = setup.SSH
	}
	for _, c := range n.Status.Conditions {
		if c.Type == evidence.TunnelConnected {
			r.state, r.since = setup.Printable(c.Reason), c.LastTransitionTime.Time
			if c.Status == corev1.ConditionTrue { // its heartbeat is when the session came: see package tunnelhealth
				r.since = c.LastHeartbeatTime.Time
			}
		}
	}
	return r
}

// readMetrics reads all of a server.
func readMetrics(ctx context.Context, from rest.Interface) (map[string]*dto.MetricFamily, error) {
	text, err := from.Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }() // what is wrong with it, the reading has told
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(io.LimitReader(text, maxMetrics))
}

// addFigures adds the metrics by node to rows, and says whether there can be any.
func addFigures(rows map[string]*tunnelRow, all map[string]*dto.MetricFamily) bool {
	for name, family := range all {
		figure, is := strings.CutPrefix(name, nodeMetrics)
		if !is {
			continue
		}
		for _, m := range family.GetMetric() {
			label := func(name string) string {
				for _, l := range m.GetLabel() {
					if l.GetName() == name {
						return l.GetValue()
					}
				}
				return ""
			}
			node := cmp.Or(label("node"), others)
			if rows[node] == nil { // a session whose Node is gone, or was not there yet
				rows[node] = &tunnelRow{node: node, state: "no Node"}
			}
			rows[node].add(figure, m.GetGauge().GetValue()+m.GetCounter().GetValue(), label)
		}
	}
	for _, r := range rows {
		if r.node == others || r.counted && r.state == noTunnel { // its condition is not there yet
			r.state = ""
		}
	}
	return all["hawser_hub_sessions_pending"] != nil
}

// add adds a figure of a metric.
func (r *tunnelRow) add(figure string, v float64, label func(string) string) {
	r.counted = true
	switch figure {
	case "rtt_seconds":
		r.rtt = time.Duration(v * float64(time.Second))
	case "streams":
		r.streams += v
	case "link_parks_total":
		r.lost = v
	case "link_resumes_total":
		r.resumed = v
	case "bytes_total":
		if label("direction") == "to_node" {
			r.toNode = v
		} else {
			r.fromNode = v
		}
	case "dials_total":
		r.dials += v
		if label("result") != "ok" {
			r.failed = v
		}
	}
}

func writeTunnels(out io.Writer, rows []*tunnelRow, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSITE\tTUNNEL\tSINCE\tRTT\tSTREAMS\tTO-NODE\tFROM-NODE\tLOST\tRESUMED\tDIALS\tFAILED")
	for _, r := range rows {
		since, rtt := "-", "-"
		if !r.since.IsZero() {
			since = duration.HumanDuration(now.Sub(r.since))
		}
		if r.rtt > 0 {
			rtt = r.rtt.Round(max(r.rtt/1000, time.Microsecond)).String()
		}
		cells := []string{clip(r.node), clip(cmp.Or(r.site, "-")), clip(cmp.Or(r.state, "-")), since, rtt}
		for _, v := range []float64{r.streams, -1, -1, r.lost, r.resumed, r.dials, r.failed} {
			cells = append(cells, strconv.FormatFloat(v, 'f', 0, 64))
		}
		cells[6], cells[7] = humanize.IBytes(uint64(r.toNode)), humanize.IBytes(uint64(r.fromNode))
		if !r.counted {
			for i := 5; i < len(cells); i++ {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// clip bounds a text in a table.
func clip(s string) string {
	if r := []rune(s); len(r) > maxCell {
		return string(r[:maxCell-1]) + "…"
	}
	return s
}
