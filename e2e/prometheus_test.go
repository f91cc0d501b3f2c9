// The alerts and the dashboard with a real Prometheus, which scrapes a server.

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

// scrapes is Prometheus' configuration: a server's address, the alerts, and the server's
// directory of keys.
const scrapes = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%[2]q]
scrape_configs:
- job_name: hawser
  scheme: https
  tls_config: {ca_file: %[3]s/ca.crt, cert_file: %[3]s/admin.crt, key_file: %[3]s/admin.key}
  static_configs: [{targets: [%[1]q]}]
`

// TestPrometheus: of a server that believes a certificate which ends within a day, Prometheus
// fires the alert that says so and no other, and it evaluates each query of the dashboard.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("SKIPPED: no prometheus, of the package prometheus: it does not scrape the server")
	}
	dir := shortTempDir(t)
	authority := filepath.Join(dir, "proxies.crt")
	must(t, os.WriteFile(authority, pkitest.New(t, "proxies").PEM(), 0o600)) // which is valid for an hour
	s := startLone(t, filepath.Join(dir, "s"), "--requestheader-client-ca-file", authority, "--requestheader-username-headers", "X-Remote-User")
	rules, err := filepath.Abs("../server/alerts.yaml")
	must(t, err)
	config := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, scrapes, s.addr, rules, filepath.Join(s.dir, "pki")), 0o600))
	p := startPrometheus(t, program, config, filepath.Join(dir, "data"))

	eventually(t, "the alert fires", func() error {
		var got struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
		if err := p.get("alerts", nil, &got); err != nil {
			return err
		}
		for _, a := range got.Alerts {
			if a.Labels["alertname"] != "HawserCertificateExpires" || a.Labels["name"] != "requestheader-client-ca" {
				t.Fatalf("another alert: %v", a)
			}
			if a.State == "firing" {
				return nil
			}
		}
		return fmt.Errorf("alerts %v", got.Alerts)
	})
	answered := 0
	for _, query := range dashboardQueries(t) {
		var got struct{ Result []any }
		if err := p.get("query", url.Values{"query": {query}}, &got); err != nil {
			t.Errorf("%s: %v", query, err)
		}
		if len(got.Result) > 0 {
			answered++
		}
	}
	if answered == 0 {
		t.Error("no query of the dashboard has a result")
	}
}

// dashboardQueries are the queries of the dashboard, with what Grafana puts in.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../server/dashboard.json")
	must(t, err)
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must(t, json.Unmarshal(text, &board))
	var queries []string
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			queries = append(queries, strings.NewReplacer("$__rate_interval", "1m", "$node", ".+").Replace(q.Expr))
		}
	}
	if len(queries) == 0 {
		t.Fatal("the dashboard has no query")
	}
	return queries
}

// A prometheus is the URL of one's API.
type prometheus string

// startPrometheus runs Prometheus until the end of the test.
func startPrometheus(t *testing.T, program, config, data string) prometheus {
	t.Helper()
	addr := "127.0.0.1:" + strconv.Itoa(await.FreePort(t))
	out := &lines{}
	cmd := exec.Command(program, "--config.file", config, "--storage.tsdb.path", data, "--web.listen-address", addr)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		if err := <-ended; err != nil || t.Failed() {
			t.Errorf("prometheus ended: %v\n%s", err, out)
		}
	})
	return prometheus("http://" + addr + "/api/v1/")
}

// get asks the API for something and reads its data.
func (p prometheus) get(what string, query url.Values, into any) error {
	resp, err := http.Get(string(p) + what + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return json.Unmarshal(text, &struct{ Data any }{into})
}
