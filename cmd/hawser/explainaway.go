// Which nodes have no session, whatever their conditions say: these are of before for a while after
// a server was started again. The status page tells, and beside another cluster the Leases of the
// hubs do.

package main

import (
	"context"
	"encoding/json"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/cmd/internal/explain"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/evidence"
	hubs "github.com/hawser-project/hawser/controlplane/servers"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
)

// absentTime bounds the wait for what the status page says.
const absentTime = 5 * time.Second

// absences are the nodes that are away, as far as somebody tells.
type absences struct {
	started time.Time            // the server whose page tells
	nodes   map[string]bool      // by its page; nil if there is none
	hubs    map[string]time.Time // by ID, when each was started
}

// readAbsences asks the status page, and the Leases where there is none. Who may read neither is
// told nothing.
func readAbsences(ctx context.Context, client kubernetes.Interface) (*absences, error) {
	a := readPage(ctx, client.Discovery().RESTClient())
	if a.nodes != nil {
		return a, ctx.Err()
	}
	leases, err := client.CoordinationV1().Leases(hubs.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return a, ctx.Err()
	}
	a.hubs = map[string]time.Time{}
	for i := range leases.Items {
		l := &leases.Items[i]
		a.hubs[l.Name], _ = time.Parse(time.RFC3339Nano, l.Annotations[hubs.Started]) // older hubs do not say it
	}
	return a, nil
}

// readPage reads the first lines of the status page's stream, which have all nodes.
func readPage(ctx context.Context, from rest.Interface) *absences {
	a := &absences{}
	ctx, cancel := context.WithTimeout(ctx, absentTime)
	defer cancel()
	stream, err := from.Get().AbsPath(apiserver.StatusPath + "fleet").MaxRetries(0).Stream(ctx)
	if err != nil {
		return a
	}
	defer func() { _ = stream.Close() }() // what is wrong with it, the reading has told
	away := map[string]bool{}
	for lines, rows := json.NewDecoder(io.LimitReader(stream, maxMetrics)), 0; ; {
		var line struct {
			Started int64
			Nodes   int
			Rows    []struct {
				Node string
				Away bool
			}
		}
		if lines.Decode(&line) != nil {
			return a
		}
		for _, r := range line.Rows {
			if r.Away {
				away[r.Node] = true
			}
		}
		if line.Started != 0 {
			a.started = time.Unix(line.Started, 0)
		}
		if rows += len(line.Rows); rows >= line.Nodes {
			a.nodes = away
			return a
		}
	}
}

// of is what is known of a node; nil if it is not away. That of a page is certain.
func (a *absences) of(n *corev1.Node) *explain.Away {
	if a.nodes[n.Name] {
		return &explain.Away{Started: a.started, Certain: true}
	}
	if len(a.hubs) == 0 {
		return nil
	}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type != evidence.TunnelConnected || c.Status != corev1.ConditionTrue {
			continue
		}
		id, only := tunnelhealth.ServerOf(c.Message)
		started, there := a.hubs[id]
		switch {
		case id == "" || !only:
		case !there:
			return &explain.Away{}
		case started.After(c.LastHeartbeatTime.Add(time.Second)): // that counts in seconds
			return &explain.Away{Started: started}
		}
	}
	return nil
}

// awayOf is of for one node, if it says that it has a tunnel.
func awayOf(ctx context.Context, client kubernetes.Interface, n *corev1.Node) (*explain.Away, error) {
	if n == nil || !connected(n) {
		return nil, nil
	}
	a, err := readAbsences(ctx, client)
	if err != nil {
		return nil, err
	}
	return a.of(n), nil
}

// connected reports whether a node's condition says that it has a tunnel.
func connected(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == evidence.TunnelConnected {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
