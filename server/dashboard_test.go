// The dashboard: Grafana can read it, and its queries ask for metrics that there are.

package server

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// A dashboard is what Grafana needs of one of version 39 of its schema.
type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []panel
}

// A panel is a row's heading or a graph.
type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               source
	GridPos                  struct{ H, W, X, Y int }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                source
	}
}

// A source is where a panel's values come from.
type source struct{ Type, UID string }

// gridWidth is how many columns Grafana's grid has.
const gridWidth = 24

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	raw, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// problems returns what Grafana would not show, or not as it is meant.
func (d dashboard) problems() []error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	variables := map[string]bool{"__rate_interval": true} // which is Grafana's own
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Query != "" && (v.Type == "datasource" || v.Type == "query")
	}
	if d.Title == "" || d.UID == "" || d.SchemaVersion != 39 || !variables["datasource"] {
		add("title %q, uid %q, schema %d, variables %v", d.Title, d.UID, d.SchemaVersion, variables)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if p.ID <= 0 || ids[p.ID] || p.Title == "" || p.Type != "row" && p.Type != "timeseries" {
			add("panel %q: number %d, which another has: %v; type %q", p.Title, p.ID, ids[p.ID], p.Type)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.H <= 0 || g.W <= 0 || g.X < 0 || g.Y < 0 || g.X+g.W > gridWidth {
			add("panel %q: %+v is not in the grid", p.Title, g)
		}
		for cell := range p.GridPos.H * p.GridPos.W {
			at := [2]int{p.GridPos.X + cell%p.GridPos.W, p.GridPos.Y + cell/p.GridPos.W}
			if other := taken[at]; other != "" {
				add("panel %q lies on %q", p.Title, other)
				break
			}
			taken[at] = p.Title
		}
		if p.Type != "row" {
			errs = append(errs, p.queryProblems(variables)...)
		}
	}
	return errs
}

// queryProblems returns what is wrong with the queries of a panel.
func (p panel) queryProblems(variables map[string]bool) []error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("panel %q: "+format, append([]any{p.Title}, args...)...))
	}
	ours := source{Type: "prometheus", UID: "${datasource}"}
	if len(p.Targets) == 0 || p.Description == "" || p.Datasource != ours {
		add("%d queries, description %q, data source %v", len(p.Targets), p.Description, p.Datasource)
	}
	refs := map[string]bool{}
	for _, q := range p.Targets {
		if q.RefID == "" || refs[q.RefID] || q.LegendFormat == "" || q.Datasource != ours {
			add("query %q: name %q, which another has: %v; legend %q, data source %v", q.Expr, q.RefID, refs[q.RefID], q.LegendFormat, q.Datasource)
		}
		refs[q.RefID] = true
		for _, name := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
			if !variables[name[1]] {
				add("query %q: there is no variable %s", q.Expr, name[1])
			}
		}
	}
	return errs
}

func TestDashboardIsReadByGrafana(t *testing.T) {
	for _, err := range readDashboard(t).problems() {
		t.Error(err)
	}
	// And each fault is found.
	for name, spoil := range map[string]func(d *dashboard){
		"variable":    func(d *dashboard) { d.Templating.List = d.Templating.List[1:] },
		"number":      func(d *dashboard) { d.Panels[1].ID = d.Panels[2].ID },
		"type":        func(d *dashboard) { d.Panels[1].Type = "graph" },
		"overlap":     func(d *dashboard) { d.Panels[1].GridPos.W++ },
		"outside":     func(d *dashboard) { d.Panels[0].GridPos.W++ },
		"data source": func(d *dashboard) { d.Panels[1].Targets[0].Datasource.UID = "x" },
		"name":        func(d *dashboard) { d.Panels[1].Targets[0].RefID = "B" },
		"unknown":     func(d *dashboard) { d.Panels[1].Targets[0].Expr += "$x" },
	} {
		d := readDashboard(t)
		spoil(&d)
		if d.problems() == nil {
			t.Errorf("%s: no problem is found", name)
		}
	}
}

// TestDashboard: the metrics of the dashboard exist, each metric has a panel, and Prometheus
// parses the queries.
func TestDashboard(t *testing.T) {
	there, asked := registered(t), make(map[string]bool)
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			names := regexp.MustCompile(`hawser_\w+`).FindAllString(q.Expr, -1)
			for _, name := range names {
				asked[strings.TrimSuffix(name, "_bucket")] = true
				if !there[name] && !elsewhereMetrics[name] {
					t.Errorf("panel %q asks for %s, which there is not", p.Title, name)
				}
			}
			if len(names) == 0 {
				t.Errorf("panel %q: query %q asks for no metric", p.Title, q.Expr)
			}
			rules = append(rules, rule{fmt.Sprintf("r%d", len(rules)), strings.NewReplacer("$__rate_interval", "1m", "$node", "a|b").Replace(q.Expr)})
		}
	}
	there["hawser_tunnel_health_nodes"], there["hawser_eviction_frozen_nodes"] = true, true
	for name := range there {
		base := strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count")
		if !base && !asked[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: no promtool, of the package prometheus: the queries of the dashboard are not parsed")
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
