// The man pages of a program, which the packages have.

package clitest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

var manDir = flag.String("man", "", "directory into which the man pages are written; none if empty")

// ManPages writes the man pages of a program's command tree and fails for a command without one.
// The programs themselves do without the library that writes them.
func ManPages(t *testing.T, newRoot func() *cobra.Command) {
	t.Helper()
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	t.Setenv("HOME", "/root") // defaults may be below it
	root := newRoot()
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Source: "Hawser", Manual: "Hawser"}, dir); err != nil {
		t.Fatal(err)
	}
	hasManPages(t, root, dir)
}

// hasManPages fails for a command that people see, and whose page does not name each flag.
func hasManPages(t *testing.T, cmd *cobra.Command, dir string) {
	t.Helper()
	file := filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" && !strings.Contains(string(text), `--`+f.Name+`\fP`) {
			t.Errorf("%s does not name --%s", file, f.Name)
		}
	})
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			hasManPages(t, c, dir)
		}
	}
}
