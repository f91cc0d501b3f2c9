// The names, help texts and labels of the programs' own metrics.

package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// outcomes are the labels whose values come from closed lists of words.
var outcomes = regexp.MustCompile(`(?m)^hawser_.*\b(?:code|result|reason|transport|direction)="([^"]*)"`)

// testMetricNames lints what the server and the agent of node-1 show, by Prometheus' linter.
// Only names that start with hawser_ are ours to choose; the others are Kubernetes'.
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
		values := outcomes.FindAllStringSubmatch(string(text), -1)
		if len(values) == 0 {
			t.Errorf("%s shows no label of outcomes", program)
		}
		for _, v := range values {
			if strings.ContainsFunc(v[1], func(r rune) bool { return r == ' ' || r == ':' }) {
				t.Errorf("%s: a label's value is a sentence: %s", program, v[0])
			}
		}
	}
}
