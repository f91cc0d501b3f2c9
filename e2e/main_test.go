// The programs under test, and the parts that the test binary itself plays in
// pods.

package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// programs are built when the first test asks for them: plain ones, and those that watch for
// races.
var programs struct {
	dir                string
	plain, raced       sync.Once
	plainErr, racedErr error
}

// racedTests are the tests whose programs watch for races, if the tests do: between them they
// start each program, open each kind of stream, cut links, stop servers, and run the
// controllers. The others start the programs as users have them, which cost a quarter of
// that; -e2e.race-all has them watch too.
var racedTests = []string{
	"TestBeside", "TestCloud", "TestControllerInPod", "TestEgressSelector", "TestServerDrain", "TestSilence", "TestTunnelAudit", "TestTwoServers",
}

// raced says whether the programs that a test starts watch for races.
func raced(t testing.TB) bool {
	name, _, _ := strings.Cut(t.Name(), "/")
	return raceFlag != "" && (*raceAll || slices.Contains(racedTests, name))
}

var raceAll = flag.Bool("e2e.race-all", false, "have the programs of every test watch for races, if the tests do")

// bin returns the directory of hawser, hawser-agent and hawser-ccm for the test, and client
// that of a plain hawser: kubectl runs hundreds of times.
func bin(t testing.TB) (under, client string) {
	t.Helper()
	programs.plain.Do(func() {
		if programs.dir, programs.plainErr = os.MkdirTemp("", "hawser-e2e-"); programs.plainErr == nil {
			programs.plainErr = build("plain", "./cmd/...")
		}
	})
	if programs.plainErr != nil {
		t.Fatal(programs.plainErr)
	}
	client = filepath.Join(programs.dir, "plain")
	if !raced(t) {
		return client, client
	}
	programs.raced.Do(func() { programs.racedErr = build("raced", "./cmd/...", raceFlag) })
	if programs.racedErr != nil {
		t.Fatal(programs.racedErr)
	}
	return filepath.Join(programs.dir, "raced"), client
}

func build(to, what string, flags ...string) error { return buildFrom("..", to, what, flags...) }

// buildFrom is build, of the module in a directory.
func buildFrom(from, to, what string, flags ...string) error {
	// As make build does; with -trimpath a package is compiled once for all directories that have
	// the same, and for tests.
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", filepath.Join(programs.dir, to) + "/"}
	for _, f := range flags {
		if f != "" {
			args = append(args, f)
		}
	}
	env := os.Environ()
	if !slices.Contains(flags, "-race") { // which needs cgo
		env, args = append(env, "CGO_ENABLED=0"), append(args, "-gcflags", "k8s.io/kubectl/...=-l", "-gcflags", "sigs.k8s.io/kustomize/...=-l")
	}
	cmd := exec.Command("go", append(args, what)...)
	cmd.Dir, cmd.Env = from, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", what, err, out)
	}
	return nil
}
