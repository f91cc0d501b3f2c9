// What an operator looks at: the status page's stream and the bundle of hawser diag, of a
// cluster of real programs.

package e2e

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestDiagnosis(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	c.waitNode(t, "node-1")
	t.Run("status page", c.statusPage)
	t.Run("bundle", c.bundle)
}

// statusPage reads the stream until the node is in it, well and with a tunnel.
func (c *cluster) statusPage(t *testing.T) {
	stream, err := c.client.Discovery().RESTClient().Get().AbsPath("/hawser/status/fleet").Stream(t.Context())
	must(t, err)
	defer stream.Close()
	type health struct{ Is string }
	lines := bufio.NewScanner(stream) // it ends with the test at the latest
	for lines.Scan() {
		var m struct {
			Rows []struct {
				Node                string
				Ready, Tunnel, Path health
			}
		}
		must(t, json.Unmarshal(lines.Bytes(), &m))
		for _, r := range m.Rows {
			if r.Node == "node-1" && r.Ready.Is == "True" && r.Tunnel.Is == "True" && r.Path.Is == "True" {
				return
			}
			t.Logf("%+v", r)
		}
	}
	t.Errorf("the stream ended before node-1 was well: %v", lines.Err())
}

// bundle has the flags and the profiles of the server and, through the tunnel, of the agent.
func (c *cluster) bundle(t *testing.T) {
	c.diagHas(t, map[string]string{
		"server/config.json":          `"hawser-server":`,
		"server/goroutines.txt":       "goroutine profile: total",
		"server/trace.out":            "go 1.",
		"server/sessions.ndjson":      `"node":"node-1"`,
		"nodes/node-1/config.json":    `"node-name":"node-1"`,
		"nodes/node-1/goroutines.txt": "goroutine profile: total",
		"nodes/node-1/heap.pb.gz":     "\x1f\x8b",
		"nodes/node-1/metrics.txt":    "go_build_info{",
	})
}

// diagHas gathers a bundle about node-1, in which files have texts, and all other files of
// their directories must be there.
func (c *cluster) diagHas(t *testing.T, want map[string]string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "diag.tar.gz")
	c.hawser(t, append([]string{"diag", "--output", file, "--node", "node-1"}, args...)...)
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	must(t, err)
	files := make(map[string]string)
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		text, err := io.ReadAll(in)
		must(t, err)
		files[strings.TrimPrefix(h.Name, "hawser-diag/")] = string(text)
	}
	for name, want := range want {
		if strings.Contains(files["summary.txt"], "\n"+path.Dir(name)+"/") {
			t.Errorf("something is missing beside %s: %s", name, files["summary.txt"])
		}
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q: %.300q", name, want, files[name])
		}
	}
}
