package server

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// exercise changes every metric.
func exercise(t *testing.T) *testHub {
	t.Helper()
	b := newTestHub(t, Config{
		MaxNodeSeries: 2,
		BeyondName:    "ssh",
		Beyond: func(node string) (func(context.Context, tunnel.Dial) (net.Conn, error), bool) {
			return func(context.Context, tunnel.Dial) (net.Conn, error) { return nil, errors.New("no") }, node == "far"
		},
		Admit: func(_ context.Context, node string, _ tunnel.Peer) error {
			if node == "revoked" {
				return errors.New("revoked")
			}
			return nil
		},
	})
	for _, node := range []string{"a", "b", "c", "d"} {
		b.mustConnect(one(node))
	}
	b.last().park()
	b.last().resume()
	c, err := b.hub.DialContext(t.Context(), "tcp", "b:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, "12345"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len("b:1\n12345"))); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"nowhere:1", "far:1", "d:1"} {
		_, _ = b.ask(addr) // some of them fail
	}
	_, _ = b.connect(one("revoked"), nil)
	b.mustConnect(tunnel.Hello{Node: "a", Instance: 1, Sequence: 2})
	time.Sleep(5 * time.Second) // the bubble's clock: pings
	synctest.Wait()
	return b
}

func TestMetricsFollowConventions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		problems, err := testutil.GatherAndLint(exercise(t).registry)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

func TestMetricsByTransportAndNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := `
# HELP hawser_hub_handshakes_total Handshakes of clients of the tunnel, by result; no_session counts those of done that led to no session.
# TYPE hawser_hub_handshakes_total counter
hawser_hub_handshakes_total{result="done",transport="memory"} 7
hawser_hub_handshakes_total{result="failed",transport="memory"} 5
hawser_hub_handshakes_total{result="no_session",transport="memory"} 2
hawser_hub_handshakes_total{result="refused",transport="memory"} 3
# HELP hawser_hub_link_parks_total Connections that sessions lost, by transport.
# TYPE hawser_hub_link_parks_total counter
hawser_hub_link_parks_total{transport="memory"} 1
# HELP hawser_hub_link_retransmitted_bytes_total Bytes retransmitted on another connection, by transport.
# TYPE hawser_hub_link_retransmitted_bytes_total counter
hawser_hub_link_retransmitted_bytes_total{transport="memory"} 100
# HELP hawser_hub_node_bytes_total Payload carried through the tunnel, by node; nodes above the limit are summed under an empty name.
# TYPE hawser_hub_node_bytes_total counter
hawser_hub_node_bytes_total{direction="from_node",node=""} 4
hawser_hub_node_bytes_total{direction="from_node",node="a"} 0
hawser_hub_node_bytes_total{direction="from_node",node="b"} 9
hawser_hub_node_bytes_total{direction="to_node",node=""} 0
hawser_hub_node_bytes_total{direction="to_node",node="a"} 0
hawser_hub_node_bytes_total{direction="to_node",node="b"} 5
# HELP hawser_hub_node_dials_total Dials by result and by node; nodes above the limit are summed under an empty name.
# TYPE hawser_hub_node_dials_total counter
hawser_hub_node_dials_total{node="",result="error"} 0
hawser_hub_node_dials_total{node="",result="ok"} 1
hawser_hub_node_dials_total{node="a",result="error"} 0
hawser_hub_node_dials_total{node="a",result="ok"} 0
hawser_hub_node_dials_total{node="b",result="error"} 0
hawser_hub_node_dials_total{node="b",result="ok"} 1
# HELP hawser_hub_node_link_resumes_total Connections that took the place of others, by node; nodes above the limit are summed under an empty name.
# TYPE hawser_hub_node_link_resumes_total counter
hawser_hub_node_link_resumes_total{node=""} 1
hawser_hub_node_link_resumes_total{node="a"} 0
hawser_hub_node_link_resumes_total{node="b"} 0
# HELP hawser_hub_node_sessions Sessions, by node; nodes above the limit are summed under an empty name.
# TYPE hawser_hub_node_sessions gauge
hawser_hub_node_sessions{node=""} 2
hawser_hub_node_sessions{node="a"} 1
hawser_hub_node_sessions{node="b"} 1
# HELP hawser_hub_sessions Sessions, by transport.
# TYPE hawser_hub_sessions gauge
hawser_hub_sessions{transport="memory"} 4
# HELP hawser_hub_streams Open streams by who opened them, by transport.
# TYPE hawser_hub_streams gauge
hawser_hub_streams{opener="agent",transport="memory"} 0
hawser_hub_streams{opener="server",transport="memory"} 1
# HELP hawser_hub_dials_total Dials into nodes, by result.
# TYPE hawser_hub_dials_total counter
hawser_hub_dials_total{code="internal",transport="ssh"} 1
hawser_hub_dials_total{code="no_node",transport="none"} 1
hawser_hub_dials_total{code="ok",transport="memory"} 2
`
		var names []string
		for line := range strings.Lines(want) {
			if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
				names = append(names, strings.Fields(rest)[0])
			}
		}
		if err := testutil.GatherAndCompare(exercise(t).registry, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
	})
}

// The bytes of a session stay counted when it ends: for its transport, and for its node as
// long as that has another session.
func TestLedgerRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		b.mustConnect(one("n"))
		for range 3 {
			if _, err := b.ask("n:1"); err != nil {
				t.Fatal(err)
			}
		}
		x := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2})
		if _, err := b.ask("n:1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := b.metric("node_bytes_total"); n != 16 {
			t.Errorf("%v bytes of the node's", n)
		}
		_ = x.session.Close()
		<-x.gone
		synctest.Wait()
		if n := b.metric("node_bytes_total"); n != 0 {
			t.Errorf("%v bytes of a node that is gone", n)
		}
		if n := b.metric("bytes_total"); n != 16 {
			t.Errorf("%v bytes of the transport's", n)
		}
	})
}

// TestNoSessionIsShown: that no node has come is a number.
func TestNoSessionIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		want := "# HELP hawser_hub_sessions Sessions, by transport.\n# TYPE hawser_hub_sessions gauge\nhawser_hub_sessions{transport=\"memory\"} 0\n"
		if err := testutil.GatherAndCompare(b.registry, strings.NewReader(want), "hawser_hub_sessions"); err != nil {
			t.Error(err)
		}
	})
}

// A registrar notes the names of the metrics that are registered.
type registrar struct {
	prometheus.Registerer
	names map[string]bool
}

var described = regexp.MustCompile(`fqName: "([^"]+)"`)

func (r *registrar) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		name := described.FindStringSubmatch(d.String())[1]
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			r.names[name+suffix] = true
		}
	}
	return r.Registerer.Register(c)
}

// MustRegister implements prometheus.Registerer.
func (r *registrar) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// registered are the names of the metrics of a hub and its front ends.
func registered(t *testing.T) map[string]bool {
	t.Helper()
	r := &registrar{prometheus.NewRegistry(), make(map[string]bool)}
	if _, err := New(Config{Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("x")}, Metrics: r}); err != nil {
		t.Fatal(err)
	}
	if _, err := connect.New(connect.Config{Dial: (&net.Dialer{}).DialContext, Metrics: r}); err != nil {
		t.Fatal(err)
	}
	port, err := NewPort(PortConfig{Listener: &failing{errs: []error{net.ErrClosed}}, Metrics: r})
	if err != nil {
		t.Fatal(err)
	}
	port.closed.WithLabelValues("slow")
	return r.names
}

// The unread bytes in the process are a metric, with their limit.
func TestUnreadIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := tunnel.NewIntake(1000)
		b := newTestHub(t, Config{Intake: i})
		i.AddUnread(7)
		if n, limit := b.metric("unread_bytes"), b.metric("unread_limit_bytes"); n != 7 || limit != 1000 {
			t.Errorf("%v of %v bytes", n, limit)
		}
	})
}
