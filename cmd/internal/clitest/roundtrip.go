// What a program prints as its configuration, read again.

package clitest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// RoundTrip fails a test unless each flag that add adds has the value from the file that
// --print-config prints that it had when that was printed, whether it was given or not.
func RoundTrip(t *testing.T, add func(*pflag.FlagSet)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	program := func() (*cobra.Command, *strings.Builder) {
		var config setup.Config
		var out strings.Builder
		cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error { return nil }}
		setup.Section(cmd.Flags(), "A configuration file", config.Add)
		add(cmd.Flags())
		config.Use(cmd, nil)
		cmd.SetOut(&out)
		return cmd, &out
	}
	for _, given := range []bool{true, false} {
		first, out := program()
		first.SetArgs([]string{"--print-config"})
		count := 0
		first.Flags().VisitAll(func(f *pflag.Flag) {
			if given && !f.Hidden && f.Name != "config" && f.Name != "print-config" {
				if count++; first.Flags().Set(f.Name, another(f)) != nil || f.Value.String() == f.DefValue {
					t.Fatalf("--%s: %q is no value, or the default", f.Name, another(f))
				}
			}
		})
		if given && count < 20 {
			t.Fatalf("only %d flags were given: the search is broken", count)
		}
		if err := first.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		second, _ := program()
		second.SetArgs([]string{"--config", file})
		if err := second.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		same(t, first.Flags(), second.Flags(), out.String())
	}
}

// same compares the flags of a program before and after.
func same(t *testing.T, before, after *pflag.FlagSet, printed string) {
	t.Helper()
	before.VisitAll(func(f *pflag.Flag) {
		got := after.Lookup(f.Name)
		switch {
		case f.Name == "config" || f.Name == "print-config":
		case setup.IsSecret(f):
			if got.Changed || strings.Contains(printed, another(f)) {
				t.Errorf("--%s is a secret, and is printed:\n%s", f.Name, printed)
			}
		case got.Value.String() != f.Value.String() || got.Changed != f.Changed:
			t.Errorf("--%s: was %s (given: %v), is %s (given: %v)", f.Name, f.Value, f.Changed, got.Value, got.Changed)
		}
	})
}

// another is a value for f that is not its default.
func another(f *pflag.Flag) string {
	switch typ := f.Value.Type(); typ {
	case "bool":
		return map[string]string{"true": "false", "false": "true"}[f.DefValue]
	case "int", "int32", "int64":
		return "-77"
	case "float32":
		return "0.77"
	case "duration":
		return "77h0m1s"
	case "mapStringBool": // of feature gates
		return "AllAlpha=true"
	case "stringSlice":
		return `"one, two",3,*`
	default:
		return f.Name + ": #7"
	}
}
