// The guided tour, from where a newcomer may have put the programs.

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The programs are below /tmp, of which a container has one of its own, and the
// port that the demo's pod would like to have may be taken.
func TestDemo(t *testing.T) {
	dir := shortTempDir(t)
	if !strings.HasPrefix(dir, "/tmp/") {
		t.Skipf("SKIPPED: temporary files are in %s, not in /tmp", dir)
	}
	under, _ := bin(t)
	for _, name := range []string{"hawser", "hawser-agent"} {
		if err := os.Link(filepath.Join(under, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := net.Listen("tcp", "127.0.0.1:18080"); err == nil {
		defer l.Close()
	}
	modes := map[string]*syscall.Credential{"as who tests": nil}
	if os.Geteuid() == 0 {
		const nobody = 65534
		modes["unprivileged"] = &syscall.Credential{Uid: nobody, Gid: nobody}
		for _, path := range []string{dir, filepath.Join(dir, "hawser"), filepath.Join(dir, "hawser-agent")} {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, cred := range modes {
		t.Run(name, func(t *testing.T) { tour(t, filepath.Join(dir, "hawser"), cred) })
	}
}

// tour runs the demo and looks for what it leaves behind.
func tour(t *testing.T, hawser string, as *syscall.Credential) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	tmp := shortTempDir(t)
	cmd := exec.CommandContext(ctx, hawser, "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	if as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
		if err := os.Chown(tmp, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Hello from a pod") || !strings.Contains(string(out), "line 1: still here\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	left, err := filepath.Glob(filepath.Join(tmp, "hawser-demo-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if ps := processesOf(tmp); len(ps) > 0 {
		t.Errorf("left running: %v", fmt.Sprint(ps))
	}
}
