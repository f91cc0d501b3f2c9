// The alerts: their metrics exist, and each fires when it should.

package server

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// elsewhereMetrics are metrics of alerts and of the dashboard that other packages register.
var elsewhereMetrics = map[string]bool{auth.ExpirationMetric: true, "hawser_eviction_frozen_nodes": true, "hawser_tunnel_health_nodes": true}

func TestAlerts(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	var trials struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	for file, into := range map[string]any{"alerts.yaml": &rules, "alerts_test.yaml": &trials} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, trial := range trials.Tests {
		for _, a := range trial.AlertRuleTest {
			map[bool]map[string]bool{true: fires, false: silent}[len(a.ExpAlerts) > 0][a.Alertname] = true
		}
	}
	there, count := registered(t), 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			count++
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: tried firing: %v, and silent: %v", r.Alert, fires[r.Alert], silent[r.Alert])
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("%s has no severity or no summary", r.Alert)
			}
			for _, name := range regexp.MustCompile(`hawser_\w+`).FindAllString(r.Expr, -1) {
				if !there[name] && !elsewhereMetrics[name] {
					t.Errorf("%s asks for %s, which there is not", r.Alert, name)
				}
			}
			for _, code := range regexp.MustCompile(`code=~"([^"]+)"`).FindAllStringSubmatch(r.Expr, -1) {
				for text := range strings.SplitSeq(code[1], "|") {
					if !isCode(text) {
						t.Errorf("%s asks for code %q, which there is not", r.Alert, text)
					}
				}
			}
		}
	}
	if count == 0 {
		t.Fatal("no alert is found")
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: no promtool, of the package prometheus: the alerts are not tried")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// isCode reports whether a label's value is the name of a code.
func isCode(text string) bool {
	for c := tunnel.NoNode; c <= tunnel.Revoked; c++ {
		if c.Name() == text {
			return true
		}
	}
	return false
}
