// Package debian_test checks what the packages install beside the programs: systemd takes the
// units, and sh the scripts.
package debian_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestUnits has systemd read the units, with a program that is there in place of Hawser's.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is missing: install the package systemd")
	}
	units, err := filepath.Glob("*.service")
	if err != nil || len(units) != 3 {
		t.Fatalf("%v, %v", units, err)
	}
	for _, unit := range units {
		if out := verify(t, analyze, unit, func(text string) string { return text }); out != "" {
			t.Errorf("%s:\n%s", unit, out)
		}
	}
	// And what is wrong is found.
	if out := verify(t, analyze, units[0], func(text string) string { return strings.Replace(text, "KillMode=", "Killmode=", 1) }); !strings.Contains(out, "Killmode") {
		t.Errorf("of a setting that there is not: %q", out)
	}
}

// verify returns what systemd-analyze says of a unit after change.
func verify(t *testing.T, analyze, unit string, change func(string) string) string {
	t.Helper()
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	there, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), unit)
	changed := regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAllString(change(string(text)), "ExecStart="+there)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", file).CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}

// TestPodsOutliveTheAgent: what would end pods, or restrict them, must not come into the agent's
// unit.
func TestPodsOutliveTheAgent(t *testing.T) {
	text, err := os.ReadFile("hawser-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nKillMode=process\n") {
		t.Error("a restart of the agent would kill the supervisors of its pods")
	}
	if found := regexp.MustCompile(`(?m)^(Protect|Private|Restrict|SystemCall|NoNew|Capab|UMask|Lock|ReadOnly|Dynamic).*`).FindString(string(text)); found != "" {
		t.Errorf("%s: pods would inherit it, or their volumes would be gone after a restart", found)
	}
}

// TestSocketsOutliveARestart: an API server that mounts /run/hawser would go on with a directory
// that is not there any more.
func TestSocketsOutliveARestart(t *testing.T) {
	text, err := os.ReadFile("hawser-server.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nRuntimeDirectoryPreserve=yes\n") {
		t.Error("a restart of the server would make /run/hawser anew")
	}
}

// TestScripts has sh read the scripts.
func TestScripts(t *testing.T) {
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}
