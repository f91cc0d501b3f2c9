package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func parseFleet(t *testing.T, args ...string) (*fleetOptions, error) {
	t.Helper()
	var o fleetOptions
	f := pflag.NewFlagSet("fleet", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse(append([]string{"--dir", t.TempDir()}, args...)); err != nil {
		t.Fatal(err)
	}
	return &o, o.check(f)
}

// What cannot work is refused at the start, in a line that names the flag.
func TestFleetOptions(t *testing.T) {
	for args, want := range map[string]string{
		"": "",
		"--nodes 1000 --zones 4 --faults kill:10%@30s,silence:zone-1@60s+120s,flap:5%@10s~15s": "",
		"--server https://hub.example --transport h2 --weight full --labels a=b":               "",
		"--transport quic --nodes 2":             "",
		"--nodes 0":                              "--nodes 0",
		"--nodes 100001":                         "--nodes 100001",
		"--zones 101":                            "--zones 101",
		"--zones 0":                              "--zones 0",
		"--weight heavy":                         `--weight "heavy"`,
		"--transport ssh":                        `--transport "ssh"`,
		"--duration -1s":                         "--duration -1s",
		"--max-pods 0":                           "--max-pods 0",
		"--node-status-update-frequency 1ms":     "--node-status-update-frequency 1ms",
		"--node-status-report-frequency 1ms":     "--node-status-report-frequency 1ms",
		"--node-lease-duration-seconds 0":        "--node-lease-duration-seconds 0",
		"--prefix Sim_":                          "--prefix",
		"--prefix Sim-":                          `--prefix "Sim-": want lower case`,
		"--labels node-role.kubernetes.io/bad=1": "--labels",
		"--faults kill:1@soon":                   `--faults "kill:1@soon": AT "soon"`,
		"--server http://hub.example":            `--server "http://hub.example"`,
		"--server https://hub.example/path":      `--server "https://hub.example/path"`,
		"--data-dir /proc/version/x":             "--data-dir",
		"--link-keepalive 0":                     "--link-keepalive 0s",
	} {
		_, err := parseFleet(t, strings.Fields(args)...)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", args, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

func TestFleetDefaults(t *testing.T) {
	o, err := parseFleet(t)
	if err != nil {
		t.Fatal(err)
	}
	if o.statusReport != 5*time.Minute || o.addr != "" || o.dataDir != filepath.Join(o.dir, "fleet") || o.kubeconfig != filepath.Join(o.dir, adminKubeconfig) {
		t.Errorf("defaults: %+v", o)
	}
	// As with hawser-agent, who sets only the update frequency sets both.
	if o, err = parseFleet(t, "--node-status-update-frequency", "1s", "--server", "https://hub.example"); err != nil || o.statusReport != time.Second || o.addr != "hub.example:6443" {
		t.Errorf("%+v, %v", o, err)
	}
}
