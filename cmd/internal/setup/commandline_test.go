package setup

// Command lines that are nearly right.

import (
	"io"
	"runtime/debug"
	"testing"

	"github.com/spf13/cobra"
)

func TestExecute(t *testing.T) {
	for want, args := range map[string][]string{
		"": {"node", "list"},
		`unknown command "nod" for "ship"; did you mean ship node?`:                              {"nod"},
		`unknown command "lst" for "ship node"; did you mean ship node list?`:                    {"node", "lst"},
		`unknown command "serve" for "ship"; did you mean ship server?`:                          {"serve"},
		`unknown command "zzz" for "ship"; see ship --help`:                                      {"zzz"},
		`unknown command "get" for "ship"; did you mean "ship kubectl get"?`:                     {"get"},
		`unknown command "status" for "ship"; did you mean ship top?`:                            {"status"},
		`accepts 1 arg(s), received 0; usage: ship drain NAME [flags]`:                           {"drain"},
		`unknown command "secret" for "ship"; see ship --help`:                                   {"secret"},
		`unknown flag: --namspace; did you mean --namespace?`:                                    {"node", "list", "--namspace", "x"},
		`unknown flag: --nothing-like-it; see ship node list --help`:                             {"node", "list", "--nothing-like-it"},
		`unknown shorthand flag: 'z' in -z; see ship node list --help`:                           {"node", "list", "-z"},
		`invalid argument "x" for "--count" flag: strconv.ParseInt: parsing "x": invalid syntax`: {"node", "list", "--count", "x"},
	} {
		run := func(*cobra.Command, []string) error { return nil }
		root := &cobra.Command{Use: "ship", SilenceErrors: true, SilenceUsage: true}
		node := &cobra.Command{Use: "node", Args: cobra.NoArgs, RunE: run}
		list := &cobra.Command{Use: "list", Args: cobra.NoArgs, RunE: run}
		list.Flags().String("namespace", "", "")
		list.Flags().Int("count", 0, "")
		node.AddCommand(list)
		root.AddCommand(node, &cobra.Command{Use: "top", SuggestFor: []string{"status"}, RunE: run}, &cobra.Command{Use: "drain NAME", Args: cobra.ExactArgs(1), RunE: run}, &cobra.Command{Use: "server", RunE: run}, &cobra.Command{Use: "secrets", Hidden: true, RunE: run})
		root.SetArgs(args)
		root.SetOut(io.Discard)
		err := Execute(t.Context(), root, func(name string) string {
			if name == "get" {
				return "ship kubectl get"
			}
			return ""
		})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

// TestVersionNamesTheCommit: of whatever is built from a repository.
func TestVersionNamesTheCommit(t *testing.T) {
	const revision = "1ba90601d1f5c2a4b6e8d0f2a4c6e8d0f2a4c6e8"
	for _, tt := range []struct{ version, revision, want string }{
		{"v1.2.3", revision, "v1.2.3+1ba90601d1f5"},
		{"v1.2.3+dirty", revision, "v1.2.3+dirty.1ba90601d1f5"},
		{"v0.0.0-20261128101112-1ba90601d1f5+dirty", revision, "v0.0.0-20261128101112-1ba90601d1f5+dirty"},
		{"v1.2.3", "", "v1.2.3"},
		{"(devel)", revision, revision},
		{"", revision, revision},
		{"(devel)", "", "(devel)"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: tt.version}}
		if tt.revision != "" {
			info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: tt.revision}}
		}
		if got := versionOf(info); got != tt.want {
			t.Errorf("%q of %q: %q, want %q", tt.version, tt.revision, got, tt.want)
		}
	}
}
