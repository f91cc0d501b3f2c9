package setup

// What a shell is offered for flags that take one of a few values.

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CompleteValues has flags of cmd, and of the commands below it, complete to their values and not to
// names of files. values are by the flag, as in "log-format", or by the command's path and the flag,
// as in "hawser fleet transport", which goes before.
func CompleteValues(cmd *cobra.Command, values map[string][]string) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		of, ok := values[cmd.CommandPath()+" "+f.Name]
		if !ok {
			of, ok = values[f.Name]
		}
		if _, other := cmd.GetFlagCompletionFunc(f.Name); ok && !other {
			// It fails only for a flag that is not there, or twice.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(slices.Clone(of), cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, c := range cmd.Commands() {
		CompleteValues(c, values)
	}
}
