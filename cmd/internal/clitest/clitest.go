// Package clitest says what every command owes to whoever gave it bad input.
package clitest

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// Refused fails a test unless err is one line that contains want; unless there is no
// error if want is empty.
func Refused(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want %q", err, want)
	case err != nil && strings.Contains(err.Error(), "\n"):
		t.Errorf("more than one line: %v", err)
	}
}

// Described fails a test unless each flag of cmd that people see has a section, which the help
// shows, and a text that stands by itself: flags are found by search, and not by what is above
// them.
func Described(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	usage := cmd.UsageString()
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		if setup.SectionOf(f) == "" {
			t.Errorf("--%s is in no section of the help", f.Name)
		} else if heading := setup.SectionOf(f) + ":\n"; !strings.Contains(usage, heading) {
			t.Errorf("--%s: the help has no heading %q", f.Name, heading)
		}
		for _, leans := range []string{"the same", "that ", "these ", "those ", "it ", "after that", "instead of both"} {
			if strings.HasPrefix(f.Usage, leans) || f.Usage == "" {
				t.Errorf("--%s: %q says nothing by itself", f.Name, f.Usage)
			}
		}
	})
}

// Run runs a command as somebody who has no files of their own, and whose environment
// names a kubeconfig. What it prints is dropped.
func Run(t *testing.T, root *cobra.Command, kubeconfig string, args ...string) error {
	t.Helper()
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("HOME", t.TempDir())
	t.Chdir(t.TempDir())
	root.SetArgs(args)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	return root.ExecuteContext(t.Context())
}
