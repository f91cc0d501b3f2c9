// The command line of hawser bench; what it measures is tested in its package.

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/cmd/internal/bench"
)

// benchmark runs hawser bench.
func benchmark(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, progress bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(append([]string{"bench"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&progress)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestBenchRefusesInOneLine(t *testing.T) {
	for want, args := range map[string][]string{
		`--transports: "pigeon" is none of direct, relay, qmux, yamux, h2, quic, ssh`: {"--transports", "direct,pigeon"},
		`--transports: "h2" is there twice`:                                           {"--transports", "h2,h2"},
		"--duration: 0s is not between 10ms and 1m0s":                                 {"--duration", "0"},
		"--rounds: 0 is not between 1 and 100":                                        {"--rounds", "0"},
		"--plot: x.pdf ends in neither .svg nor .png":                                 {"--plot", "x.pdf"},
		"--json: /nowhere is not a directory: make it, or choose another":             {"--json", "/nowhere/x.json"},
		`unknown command "more" for "hawser bench"`:                                   {"more"},
	} {
		if _, err := benchmark(t, args...); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// TestBenchWritesFiles measures what needs no other process.
func TestBenchWritesFiles(t *testing.T) {
	dir := t.TempDir()
	file, plot := filepath.Join(dir, "x.json"), filepath.Join(dir, "x.svg")
	out, err := benchmark(t, "--quick", "--duration", "20ms", "--transports", "direct", "--json", file, "--plot", plot)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "16 streams to the client") || !strings.Contains(out, "Medians of 1 rounds of 0.02s") {
		t.Error(out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(b, &r); err != nil || r.Schema != bench.Schema {
		t.Errorf("schema %q, %v", r.Schema, err)
	}
	if b, err = os.ReadFile(plot); err != nil || !bytes.HasPrefix(b, []byte("<svg ")) {
		t.Errorf("%.20q, %v", b, err)
	}
}
