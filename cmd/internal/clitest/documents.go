// What README and the help topics say of a program's command line, checked by its own command
// tree.

package clitest

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/e2e/document"
)

// Root is the top of the module, from the directories of the programs.
const Root = "../.."

// elsewhere are the flags that documents name without a command, in backticks, and that
// hawser does not have: whose they are. Only those of hawser-agent and hawser-ccm are checked.
var elsewhere = map[string]string{
	"--apiserver-listen":                      "hawser-agent",
	"--apiserver-listen-in":                   "hawser-agent",
	"--apiserver-name":                        "hawser-agent",
	"--authorities-refresh-period":            "hawser-agent",
	"--certificate-authority":                 "hawser-agent",
	"--client-certificate":                    "hawser-agent",
	"--client-key":                            "hawser-agent",
	"--eviction-hard":                         "hawser-agent",
	"--file-check-frequency":                  "hawser-agent",
	"--hide-path":                             "hawser-agent",
	"--kube-reserved":                         "hawser-agent",
	"--kubelet":                               "hawser-agent",
	"--kubelet-port":                          "hawser-agent",
	"--maximum-dead-containers":               "hawser-agent",
	"--maximum-dead-containers-per-container": "hawser-agent",
	"--metered":                               "hawser-agent",
	"--minimum-container-ttl-duration":        "hawser-agent",
	"--node-status-max-images":                "hawser-agent",
	"--offline-patience":                      "hawser-agent",
	"--pod-manifest-path":                     "hawser-agent",
	"--pod-max-pids":                          "hawser-agent",
	"--register-node":                         "hawser-agent",
	"--seccomp-default":                       "hawser-agent",
	"--serving-certificate-addresses":         "hawser-agent",
	"--shutdown-grace-period-by-pod-priority": "hawser-agent",
	"--system-reserved":                       "hawser-agent",
	"--token-file":                            "hawser-agent",
	"--cloud-config":                          "hawser-ccm",
	"--enable-aggregator-routing":             "kube-apiserver",
	"--kubelet-preferred-address-types":       "kube-apiserver",
	"--bump-revision":                         "etcdutl",
	"--mark-compacted":                        "etcdutl",
	"--copy-to":                               "kubectl",
	"--insecure-skip-tls-verify-backend":      "kubectl",
	"--share-processes":                       "kubectl",
	"--since":                                 "kubectl",
	"--tail":                                  "kubectl",
}

// Documented fails for each command line of a document that the program does not take: in
// blocks whole ones, and in backticks a command or a flag. Nothing is run. newRoot makes the
// program's command tree, which parsing changes.
func Documented(t *testing.T, program string, newRoot func() *cobra.Command) {
	t.Helper()
	checked := 0
	for _, d := range document.All(t, Root) {
		check := func(line string, whole bool) {
			for _, words := range document.Commands(line) {
				if filepath.Base(words[0]) != program {
					continue
				}
				checked++
				if err := takes(newRoot(), words[1:], whole); err != nil {
					t.Errorf("%s: %q: %v", d.Path, strings.Join(words, " "), err)
				}
			}
		}
		for _, b := range d.Blocks() {
			check(b.Text, true)
		}
		for _, s := range d.Spans() {
			check(s, false)
			for _, err := range flagsOf(newRoot(), program, s) {
				t.Errorf("%s: `%s`: %v", d.Path, s, err)
			}
		}
	}
	if checked == 0 {
		t.Errorf("no document has a command of %s: the search is broken", program)
	}
	if program == "hawser" {
		notElsewhere(t, newRoot())
	}
}

// takes says why a program does not take a command line. A line that is not whole may lack
// arguments.
func takes(root *cobra.Command, words []string, whole bool) error {
	root.InitDefaultHelpCmd()
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "…" || w == "..." })
	cmd, rest, err := root.Find(words)
	if err != nil || cmd.DisableFlagParsing {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err = cmd.ParseFlags(rest); err != nil {
		return err
	}
	args := cmd.Flags().Args()
	if whole {
		return cmd.ValidateArgs(args)
	}
	if cmd.HasSubCommands() && len(args) > 0 {
		return fmt.Errorf("%s has no command %s", cmd.CommandPath(), args[0])
	}
	return nil
}

// flagsOf says which flags of a text that begins with one are the program's by this package,
// and not by its commands. Flags that elsewhere does not have are hawser's. A flag that ends in * or … stands for all that begin so.
func flagsOf(root *cobra.Command, program, text string) []error {
	if !strings.HasPrefix(text, "--") {
		return nil
	}
	var errs []error
	for word := range strings.FieldsSeq(text) {
		if !strings.HasPrefix(word, "--") {
			continue
		}
		name, _, _ := strings.Cut(word, "=")
		owner := elsewhere[name]
		if owner == "" {
			owner = "hawser"
		}
		if owner == program && !hasFlag(root, name) {
			errs = append(errs, fmt.Errorf("no command of %s has %s: if it is another program's, say so in elsewhere", program, name))
		}
	}
	return errs
}

// hasFlag says whether a command has a flag, or one below it.
func hasFlag(cmd *cobra.Command, name string) bool {
	name = strings.TrimPrefix(name, "--")
	prefix := strings.TrimRight(name, "*…")
	found := cmd.Flags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil
	if prefix != name {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { found = found || strings.HasPrefix(f.Name, prefix) })
	}
	return found || slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return hasFlag(c, name) })
}

// notElsewhere fails for entries of elsewhere that are hawser's, or that no document names.
func notElsewhere(t *testing.T, root *cobra.Command) {
	t.Helper()
	named := map[string]bool{}
	for _, d := range document.All(t, Root) {
		for _, s := range d.Spans() {
			for word := range strings.FieldsSeq(s) {
				name, _, _ := strings.Cut(word, "=")
				named[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(elsewhere)) {
		if !named[name] {
			t.Errorf("elsewhere has %s, which no document names", name)
		}
		if hasFlag(root, name) {
			t.Errorf("elsewhere has %s, which hawser has", name)
		}
	}
}
