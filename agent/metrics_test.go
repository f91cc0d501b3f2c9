// Tests of the agent's metrics.

package agent

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/tunnel"
)

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		ln, err := h.net.Listen(t.Context(), "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		h.group.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "hi")
			_, _ = io.Copy(io.Discard, c)
		})
		reg := prometheus.NewRegistry()
		a := h.start(Config{Servers: []string{"hub:9", "hub:1"}, Allow: targets(t, "10.0.0.0/8"), Metrics: reg})
		m := next(t, h.sessions)
		if _, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:81"); err == nil {
			t.Fatal("nobody listens there")
		}
		c, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "ahoy there"); err != nil {
			t.Fatal(err)
		}
		api, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		exchangeText(t, api)
		synctest.Wait()
		want := `
# HELP hawser_agent_connect_failures_total Attempts to connect to a server that failed, by reason.
# TYPE hawser_agent_connect_failures_total counter
hawser_agent_connect_failures_total{reason="refused"} 1
# HELP hawser_agent_connected 1 if the agent has a session with a server and a connection for it.
# TYPE hawser_agent_connected gauge
hawser_agent_connected 1
# HELP hawser_agent_dials_total Streams opened, by direction (in: by a server, out: by the node) and result.
# TYPE hawser_agent_dials_total counter
hawser_agent_dials_total{direction="in",result="ok"} 1
hawser_agent_dials_total{direction="in",result="refused"} 1
hawser_agent_dials_total{direction="out",result="ok"} 1
# HELP hawser_agent_streams Open streams, by direction (in: opened by a server, out: opened by the node).
# TYPE hawser_agent_streams gauge
hawser_agent_streams{direction="in"} 1
hawser_agent_streams{direction="out"} 0
# HELP hawser_agent_sessions_total Sessions established with a server, by transport.
# TYPE hawser_agent_sessions_total counter
hawser_agent_sessions_total{transport="inproc"} 1
# HELP hawser_agent_stream_bytes_total Bytes on streams, by direction (in, out) and way (sent to the server, received from it).
# TYPE hawser_agent_stream_bytes_total counter
hawser_agent_stream_bytes_total{direction="in",way="received"} 10
hawser_agent_stream_bytes_total{direction="in",way="sent"} 2
hawser_agent_stream_bytes_total{direction="out",way="received"} 4
hawser_agent_stream_bytes_total{direction="out",way="sent"} 4
`
		err = testutil.GatherAndCompare(reg, strings.NewReader(want),
			"hawser_agent_connect_failures_total", "hawser_agent_connected", "hawser_agent_dials_total",
			"hawser_agent_streams", "hawser_agent_sessions_total", "hawser_agent_stream_bytes_total")
		if err != nil {
			t.Error(err)
		}
		_ = c.Close()
		a.stop()
		<-a.done
		want = `
# HELP hawser_agent_connected 1 if the agent has a session with a server and a connection for it.
# TYPE hawser_agent_connected gauge
hawser_agent_connected 0
# HELP hawser_agent_streams Open streams, by direction (in: opened by a server, out: opened by the node).
# TYPE hawser_agent_streams gauge
hawser_agent_streams{direction="in"} 0
hawser_agent_streams{direction="out"} 0
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "hawser_agent_connected", "hawser_agent_streams"); err != nil {
			t.Error(err)
		}
	})
}
