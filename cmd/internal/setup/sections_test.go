package setup

// Help by section.

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestSections(t *testing.T) {
	cmd := &cobra.Command{Use: "ship", Run: func(*cobra.Command, []string) {}}
	f := cmd.Flags()
	f.Bool("plain", false, "has no section")
	Section(f, "Sails", func(f *pflag.FlagSet) {
		f.String("topsail", "", "the upper one")
		f.String("mainsail", "", "the lower one")
	}, func(f *pflag.FlagSet) { f.String("jib", "", strings.Repeat("in front ", 30)) })
	Section(f, "Secrets", func(f *pflag.FlagSet) {
		f.String("treasure", "", "where it is")
		_ = f.MarkHidden("treasure")
	})
	UseSections(cmd)
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--help"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, want := range []string{"\nSails:\n", "--topsail", "--mainsail", "--jib", "\nOther:\n", "--plain", "--help"} {
		at := strings.Index(out.String(), want)
		if at <= last {
			t.Errorf("%q is not there, or not in its place:\n%s", want, &out)
		}
		last = at
	}
	if strings.Contains(out.String(), "Secrets") || strings.Contains(out.String(), "treasure") {
		t.Errorf("what is hidden is shown:\n%s", &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 121 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}
