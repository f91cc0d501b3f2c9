// The names and help texts of the programs' own metrics, by Prometheus' linter.

package e2e

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// testMetricNames lints what the server and the agent of node-1 show. Only names that
// start with hawser_ are ours to choose; the others are Kubernetes'.
func testMetricNames(t *testing.T, c *cluster) {
	for program, want := range map[string]string{"server": "hawser_hub_sessions", "node-1": "hawser_agent_connected"} {
		text, err := c.client.Discovery().RESTClient().Get().AbsPath(metricsOf(program)).DoRaw(t.Context())
		must(t, err)
		if !strings.Contains(string(text), "\n# HELP "+want+" ") {
			t.Errorf("%s does not show %s", program, want)
		}
		problems, err := promlint.New(strings.NewReader(string(text))).Lint()
		must(t, err)
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "hawser_") {
				t.Errorf("%s: %s: %s", program, p.Metric, p.Text)
			}
		}
	}
}
