// hawser help: the commands in groups, and the help topics, which are texts.

package main

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/cmd/internal/bench"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane"
	"github.com/hawser-project/hawser/controlplane/cloud"
	"github.com/hawser-project/hawser/controlplane/nodelifecycle"
	"github.com/hawser-project/hawser/controlplane/statuspage"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/pods"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

//go:embed *.md
var ownHelp embed.FS

// A topic is one text that hawser help prints.
type topic struct {
	name  string // what the user types: the file's name without .md
	title string // one line: the file's heading
	text  string // the whole file, which lies beside the code that it is about
}

// topics returns all topics, sorted by name.
func topics() []topic {
	must := func(err error) {
		if err != nil {
			panic(err) // the files are in the program
		}
	}
	var all []topic
	for _, files := range []embed.FS{
		ownHelp, auth.Help, nodekeys.Help, bench.Help, controlplane.Help, cloud.Help, nodelifecycle.Help, statuspage.Help, node.Help, pods.Help, server.Help, tunnel.Help, overssh.Help,
	} {
		names, err := fs.Glob(files, "*.md")
		must(err)
		for _, name := range names {
			text, err := files.ReadFile(name)
			must(err)
			heading, _, _ := strings.Cut(string(text), "\n")
			all = append(all, topic{name: strings.TrimSuffix(name, ".md"), title: strings.TrimPrefix(heading, "# "), text: string(text)})
		}
	}
	slices.SortFunc(all, func(a, b topic) int { return strings.Compare(a.name, b.name) })
	return all
}

// groups are the headings of hawser help, each with its commands. A command that is in none is
// listed last.
var groups = []struct {
	cobra.Group
	commands []string
}{
	{cobra.Group{ID: "run", Title: "Run a cluster:"}, []string{"up", "server", "demo"}},
	{cobra.Group{ID: "operate", Title: "Operate a cluster:"}, []string{"diag", "explain", "kubeconfig", "kubectl", "manifest", "node", "ssh", "token", "top"}},
	{cobra.Group{ID: "measure", Title: "Measure, simulate and break:"}, []string{"bench", "fleet", "lab"}},
}

// addHelp sorts the commands of root into groups and adds the topics, which cobra lists under
// "Additional help topics".
func addHelp(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&g.Group)
		for _, c := range root.Commands() {
			if slices.Contains(g.commands, c.Name()) {
				c.GroupID = g.ID
			}
		}
	}
	for _, t := range topics() {
		root.AddCommand(&cobra.Command{Use: t.name, Short: t.title, Long: t.text, DisableFlagsInUseLine: true})
	}
	root.SetHelpCommand(newHelp())
}

// newHelp replaces cobra's own help command, which completes no topics, and which prints the
// usage and succeeds when it is asked for what does not exist.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "Print the help of a command, or a help topic",
		Args: func(cmd *cobra.Command, args []string) error {
			_, err := asked(cmd.Root(), args)
			return err
		},
		ValidArgsFunction: completeHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, err := asked(cmd.Root(), args)
			if err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// asked returns the command or topic that args name, or an error that names near ones.
func asked(root *cobra.Command, args []string) (*cobra.Command, error) {
	about := root
	for _, name := range args {
		i := slices.IndexFunc(about.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no command or help topic %q%s; hawser help lists them", name, near(about, name))
		}
		about = about.Commands()[i]
	}
	return about, nil
}

// near says which commands and topics below parent are spelled like name.
func near(parent *cobra.Command, name string) string {
	var names []string
	for _, c := range parent.Commands() {
		if helpable(c) {
			names = append(names, c.Name())
		}
	}
	if found := setup.Near(names, name); len(found) > 0 {
		return ": did you mean " + strings.Join(found, " or ") + "?"
	}
	return ""
}

// helpable says whether a command is shown to users: one that runs and is not hidden, or a
// topic.
func helpable(c *cobra.Command) bool {
	return c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand()
}

// completeHelp completes commands and topics.
func completeHelp(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	about, err := asked(cmd.Root(), args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
	for _, c := range about.Commands() {
		if helpable(c) && strings.HasPrefix(c.Name(), typed) {
			found = append(found, cobra.CompletionWithDesc(c.Name(), c.Short))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
