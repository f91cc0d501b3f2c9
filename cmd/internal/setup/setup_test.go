package setup

import (
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Durations are for people, in both formats.
func TestLogShowsDurations(t *testing.T) {
	for format, want := range map[string]string{"json": `"parked":"1m0.5s","link":{"rtt":"20ms"}`, "text": "parked=1m0.5s link.rtt=20ms"} {
		t.Run(format, func(t *testing.T) {
			var out strings.Builder
			log := slog.New(newHandler(&out, format, 0))
			log.Info("session resumed", "parked", 60500*time.Millisecond, slog.Group("link", "rtt", 20*time.Millisecond))
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s, want %s", out.String(), want)
			}
		})
	}
}

func TestDataDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	got, err := CheckDataDir(dir)
	if err != nil || got != dir {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Dir(dir)); err == nil {
		t.Error("a check made something")
	}
	unlock, err := TakeDataDir(dir, "agent.lock")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	// What an earlier run has left is Hawser's, whatever was put beside it.
	if err := os.WriteFile(filepath.Join(dir, "c.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckDataDir(dir); err != nil {
		t.Errorf("a second run: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if got, err := CheckDataDir(link); err != nil || got != dir {
		t.Errorf("a link: %q, %v", got, err)
	}
}

func TestRefusedDataDirs(t *testing.T) {
	private := func(names ...string) string {
		dir := filepath.Join(t.TempDir(), "dir")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	open := private("server.lock")
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(private("file"), "file")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(private("thesis.tex"), link); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"":                                "the path is empty",
		"/":                               "/ is open to other users (mode 0755)",
		"/tmp":                            "/tmp ",
		open:                              "is open to other users (mode 0755)",
		private("thesis.tex"):             `holds files that are not Hawser's, such as "thesis.tex"`,
		private("agent.log", ".profile"):  `such as ".profile"`,
		link:                              `such as "thesis.tex"`,
		file:                              file + " is not a directory",
		file + "/below":                   file,
		private():                         "",
		private("agent.log", "agent.pid"): "",
		private("up.lock", "x"):           "",
		private("lost+found"):             "",
		private(".writing-123"):           "",
	} {
		_, err := CheckDataDir(dir)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", dir, err, want)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir, "lock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Lock(dir, "lock"); err == nil || !strings.Contains(err.Error(), dir+" is in use") {
		t.Errorf("taken twice: %v", err)
	}
	unlock()
	again, err := Lock(dir, "lock")
	if err != nil {
		t.Fatalf("not given back: %v", err)
	}
	go func() { // as the child of a killed process does
		<-time.After(100 * time.Millisecond)
		again()
	}()
	last, err := Lock(dir, "lock")
	if err != nil {
		t.Fatalf("not waited for: %v", err)
	}
	last()
}

func TestLogFormat(t *testing.T) {
	for format, ok := range map[string]bool{"text": true, "json": true, "xml": false, "": false} {
		if err := CheckLogFormat(format); (err == nil) != ok {
			t.Errorf("%q: %v", format, err)
		}
	}
}

// TestServerAddress: no certificate names the zone of an address, and a password is not shown.
func TestServerAddress(t *testing.T) {
	for text, want := range map[string]string{
		"https://hub.example": "hub.example:6443", "https://[fd00::1]:17743": "[fd00::1]:17743", "https://[fe80::1]": "[fe80::1]:6443",
		"https://[fe80::1%25eth0]:17743": "without a zone", "https://10.0.0.1%25eth0": "without a zone", "https://[fe80::1%eth0]": "want https://HOST:PORT",
		"https://joe:pass@hub:1": `"...@hub:1": want https`, "https://joe:pa@ss w@hub": `"...@hub": want https`,
		"https://hub:1?a=b": "want https://HOST:PORT", "https://hub:1/#a": "want https://HOST:PORT", "https://hub?": "want https://HOST:PORT",
	} {
		got, err := ServerAddress(text)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || (err == nil) != (got == want) {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestAround(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"up/nodes/node-1", "alone"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "up", "server.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string][]string{
		"up/nodes/node-1": {filepath.Join(dir, "up/nodes/node-1"), ServerDir, "/etc/hawser", filepath.Join(dir, "up")},
		"alone":           {filepath.Join(dir, "alone"), ServerDir, "/etc/hawser"},
	} {
		if got := Around(filepath.Join(dir, from)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", from, got, want)
		}
	}
}

// TestStopSignals: who started a program to go on without its terminal (nohup) has it go on.
func TestStopSignals(t *testing.T) {
	hangsUp := func() bool { return slices.Contains(StopSignals(), os.Signal(syscall.SIGHUP)) }
	if hangsUp() == signal.Ignored(syscall.SIGHUP) {
		t.Errorf("SIGHUP is ignored: %v, and stops: %v", signal.Ignored(syscall.SIGHUP), hangsUp())
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if hangsUp() {
		t.Error("SIGHUP is ignored, and stops")
	}
}
