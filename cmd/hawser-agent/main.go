// Command hawser-agent is everything on a node: it keeps the tunnel to a server,
// registers the node, runs its pods and serves the kubelet API inside the tunnel.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node/runtime/process"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// kubeletVersion is the Kubernetes version whose kubelet this behaves like.
const kubeletVersion = "v1.37.2+hawser"

func main() {
	// A container's supervisor is this program under another name.
	process.ShimMain()
	setup.NoCores()
	ctx, stop := signal.NotifyContext(context.Background(), setup.StopSignals()...)
	defer stop()
	if err := setup.Execute(ctx, newRoot(), nil); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-agent: "+err.Error())
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	var (
		o       options
		config  setup.Config
		version bool
	)
	cmd := &cobra.Command{
		Use:   "hawser-agent --server URL --token-file FILE --discovery-token-ca-cert-hash sha256:HEX",
		Short: "Make this machine a node of a Hawser cluster",
		Long: "Makes this machine a node. The whole command line is printed, on the server, by:\n" +
			"  hawser token create --print-join-command\n" +
			"It dials out to the server and listens on no port. Pods outlive it: it can be restarted at any time.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, err := setup.ShowAtConfigz("hawser-agent", cmd.Flags())
			if err != nil {
				return err
			}
			defer stop()
			return run(cmd.Context(), &o, setup.NewLogger(o.logFormat, o.verbosity))
		},
	}
	setup.Section(cmd.Flags(), "A configuration file", config.Add)
	o.addFlags(cmd.Flags())
	config.Use(cmd, func() error { return o.check(cmd.Flags()) })
	// Not cobra's own, which would need a template: see setup.UseSections.
	cmd.Flags().BoolVar(&version, "version", false, "version for hawser-agent")
	runNode := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if version {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "hawser-agent %s\nkubelet %s\n", setup.Version(), kubeletVersion)
			return err
		}
		return runNode(cmd, args)
	}
	cmd.AddCommand(newCheck())
	setup.UseSections(cmd)
	setup.CompleteValues(cmd, flagValues)
	return cmd
}

// flagValues are those of flags that take one of a few: see setup.CompleteValues.
var flagValues = map[string][]string{
	"cloud-provider": {externalCloud},
	"log-format":     {"text", "json"},
	"runtime":        {"auto", "process"},
	"transport":      {qmux.Name, "quic", "yamux", "h2", setup.SSH},
}
