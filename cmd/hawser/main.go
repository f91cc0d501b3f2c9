// Command hawser is everything on the control side: the server (tunnel hub, API
// server, controllers) and the operator's commands.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// apiVersion is the Kubernetes version that the API speaks. Clients parse it.
const apiVersion = "v1.37.2+hawser"

func main() {
	setup.NoCores()
	// kubectl parses its own flags, wherever they stand, and sees to signals itself: many of
	// its commands look at no context.
	if args, ok := kubectlArgs(os.Args[1:]); ok {
		os.Exit(runKubectl(context.Background(), args))
	}
	ctx, stop := signal.NotifyContext(context.Background(), setup.StopSignals()...)
	defer stop()
	if err := setup.Execute(ctx, newRoot(), otherCommand); err != nil {
		fmt.Fprintln(os.Stderr, "hawser: "+err.Error())
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "hawser",
		Short: "A control plane for nodes that nobody can reach",
		Long: "Hawser is a Kubernetes-compatible control plane for nodes behind NAT. Each node dials out to\n" +
			"the server once; logs, exec, attach and port-forward travel back along that connection.",
		Version:       setup.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate(versions())
	root.AddCommand(newServer(), newUp(), newDemo(), newDemoPod(), newToken(), newNode(), newKubeconfig(), newExplain(), newTop(), newDiag(), newLab(), newSSH(), newKubectlDoc(), newManifest(), newVersion(), newBench(), newFleet())
	addHelp(root)
	setup.CompleteValues(root, flagValues)
	return root
}

// versions are those of Hawser and of the API.
func versions() string {
	return fmt.Sprintf("hawser %s\nKubernetes API %s\n", setup.Version(), apiVersion)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versions())
			return err
		},
	}
}
