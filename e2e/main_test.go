// The programs under test, and the parts that the test binary itself plays in
// pods.

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

func TestMain(m *testing.M) {
	if role, ok := os.LookupEnv(roleEnv); ok {
		if err := playRole(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

// programs are built once, when the first test asks for them.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

// bin returns the directory of hawser and hawser-agent, built as the tests are
// (with -race if they are), and client that of a hawser built plainly: kubectl
// runs hundreds of times.
func bin(t testing.TB) (under, client string) {
	t.Helper()
	programs.once.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "hawser-e2e-"); programs.err != nil {
			return
		}
		programs.err = build("client", "./cmd/hawser")
		if programs.err == nil {
			programs.err = build("under", "./cmd/...", raceFlag)
		}
	})
	if programs.err != nil {
		t.Fatal(programs.err)
	}
	return filepath.Join(programs.dir, "under"), filepath.Join(programs.dir, "client")
}

func build(to, what string, flags ...string) error { return buildFrom("..", to, what, flags...) }

// buildFrom is build, of the module in a directory.
func buildFrom(from, to, what string, flags ...string) error {
	// As make build does.
	args := []string{"build", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", filepath.Join(programs.dir, to) + "/"}
	for _, f := range flags {
		if f != "" {
			args = append(args, f)
		}
	}
	cmd := exec.Command("go", append(args, what)...)
	cmd.Dir = from
	if !slices.Contains(flags, "-race") { // which needs cgo
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", what, err, out)
	}
	return nil
}
