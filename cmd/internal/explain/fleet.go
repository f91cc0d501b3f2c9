package explain

// The whole fleet: which layers are broken, where, since when, and what comes next.

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// A page has so many groups, and so many steps of each.
const (
	maxGroups = 6
	maxSteps  = 2
)

// A Fleet is the answer about all nodes. With a Time and nothing else it has none.
type Fleet struct {
	Time     time.Time `json:"time"` // by the server's clock
	Nodes    int       `json:"nodes"`
	Broken   int       `json:"broken"`
	Cordoned int       `json:"cordoned"`
	SSH      int       `json:"reachedBySSH,omitempty"` // of those that are not broken; no condition says whether they are reached
	Groups   []*Group  `json:"groups,omitempty"`

	groups map[groupKey]*Group
}

// A Group are the nodes of a site, or else of a zone, whose broken layer is the same.
type Group struct {
	Layer    Layer     `json:"layer"`
	Where    string    `json:"where,omitempty"`
	Nodes    int       `json:"nodes"`
	NotReady int       `json:"notReady"`
	Since    time.Time `json:"since,omitzero"` // of the first
	Text     string    `json:"text"`           // the verdict on the first by name
	Names    []string  `json:"names"`          // the first ones
	Next     []*Due    `json:"next,omitempty"`
}

// A Due is a step that comes next for some nodes of a group.
type Due struct {
	Nodes int       `json:"nodes"`
	At    time.Time `json:"at,omitzero"` // the first time
	Text  string    `json:"text"`

	kind string
}

type groupKey struct {
	layer Layer
	where string
}

// Add adds a node. Nodes are added in the order of their names; o needs no pods, and of
// events only those about evictions.
func (f *Fleet) Add(o Objects) {
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	r := Explain(o)
	f.Nodes++
	if r.Cordoned {
		f.Cordoned++
	}
	if r.Verdict.Layer == Healthy {
		if r.SSHTarget != "" {
			f.SSH++
		}
		return
	}
	f.Broken++
	key := groupKey{r.Verdict.Layer, where(o.Node)}
	g := f.groups[key]
	if g == nil {
		g = &Group{Layer: key.layer, Where: key.where, Text: r.Verdict.Text}
		if f.groups == nil {
			f.groups = map[groupKey]*Group{}
		}
		f.groups[key] = g
		f.Groups = append(f.Groups, g)
	}
	g.add(&o, r)
}

// where is the site of a node, or else its zone.
func where(n *corev1.Node) string {
	if site := setup.Printable(n.Labels[auth.SiteLabel]); site != "" {
		return "site " + site
	}
	if zone := setup.Printable(n.Labels[corev1.LabelTopologyZone]); zone != "" {
		return "zone " + zone
	}
	return ""
}

func (g *Group) add(o *Objects, r *Report) {
	g.Nodes++
	if r.Ready == nil || r.Ready.Status != corev1.ConditionTrue {
		g.NotReady++
	}
	if len(g.Names) < maxNames {
		g.Names = append(g.Names, r.Node)
	}
	if since := broken(r); !since.IsZero() && (g.Since.IsZero() || since.Before(g.Since)) {
		g.Since = since
	}
	if frozen := r.Frozen; frozen != nil {
		g.due(Due{kind: frozen.Reason, Text: fmt.Sprintf("evictions are frozen (%s): %s", frozen.Reason, frozen.Message)})
	}
	for _, t := range r.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady) {
			g.due(Due{kind: t.Key, At: t.Since, Text: fmt.Sprintf("tainted %s:%s: pods are deleted when their tolerations end", t.Key, t.Effect)})
		}
	}
	if r.Frozen == nil {
		for _, s := range turning(o, r) {
			g.due(Due{kind: s.Text, At: s.At, Text: s.Text})
		}
	}
}

// due counts a step of one node.
func (g *Group) due(d Due) {
	i := slices.IndexFunc(g.Next, func(has *Due) bool { return has.kind == d.kind })
	if i < 0 {
		g.Next = append(g.Next, &d)
		i = len(g.Next) - 1
	}
	has := g.Next[i]
	has.Nodes++
	if !d.At.IsZero() && (has.At.IsZero() || d.At.Before(has.At)) {
		has.At = d.At
	}
}

// broken is since when a node is; zero if that is not known.
func broken(r *Report) time.Time {
	var first time.Time
	for _, c := range []*Condition{r.Tunnel, r.DataPath, r.Ready} {
		if c != nil && c.Status != corev1.ConditionTrue && !c.Since.IsZero() && (first.IsZero() || c.Since.Before(first)) {
			first = c.Since
		}
	}
	if first.IsZero() {
		return r.Heartbeat.Latest
	}
	return first
}

// Sort puts the worst first: the most nodes that are not ready, then the most nodes, then
// the oldest. It is called once all nodes are there.
func (f *Fleet) Sort() {
	slices.SortStableFunc(f.Groups, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.NotReady, a.NotReady), cmp.Compare(b.Nodes, a.Nodes), a.Since.Compare(b.Since),
			strings.Compare(a.Where, b.Where), strings.Compare(string(a.Layer), string(b.Layer)))
	})
	for _, g := range f.Groups {
		slices.SortStableFunc(g.Next, func(a, b *Due) int { return cmp.Compare(b.Nodes, a.Nodes) })
	}
}

// WriteText writes f for people: the worst groups, on one page.
func (f *Fleet) WriteText(w io.Writer) error {
	var b strings.Builder
	at := &Report{Time: f.Time}
	fmt.Fprintf(&b, "%s: %d broken, %d not; %d cordoned\n", count(f.Nodes), f.Broken, f.Nodes-f.Broken, f.Cordoned)
	if f.SSH > 0 {
		fmt.Fprintf(&b, "reached by ssh and not broken otherwise: %s, which only a dial checks: %s\n", count(f.SSH), dialCommand(fmt.Sprintf("NODE:%d", kubeletPort)))
	}
	shown := min(len(f.Groups), maxGroups)
	for _, g := range f.Groups[:shown] {
		in := ""
		if g.Where != "" {
			in = " of " + g.Where
		}
		fmt.Fprintf(&b, "\n%s%s, %d not Ready, the first %s: %s\n", count(g.Nodes), in, g.NotReady, at.since(g.Since), some(g.Names, g.Nodes))
		fmt.Fprintf(&b, "  broken: %s: %s\n", g.Layer, g.Text)
		for _, d := range g.Next[:min(len(g.Next), maxSteps)] {
			when := ""
			if !d.At.IsZero() {
				when = ", the first at " + stamp(d.At)
			}
			fmt.Fprintf(&b, "  next:   %s%s: %s\n", count(d.Nodes), when, d.Text)
		}
	}
	if rest := f.Groups[shown:]; len(rest) > 0 {
		nodes := 0
		for _, g := range rest {
			nodes += g.Nodes
		}
		fmt.Fprintf(&b, "\nand %d groups more, of %s: see -o json\n", len(rest), count(nodes))
	}
	if f.Broken > 0 {
		b.WriteString("\nMore about one: hawser explain node NAME\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// count says how many nodes there are.
func count(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
