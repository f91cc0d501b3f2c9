// hawser up: a whole cluster on this machine, in the foreground.

package main

import (
	"errors"
	"fmt"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"
)

func newUp() *cobra.Command {
	cfg := clusterConfig{}
	cmd := &cobra.Command{
		Use: "up", SuggestFor: []string{"init", "start"},
		Short: "Run a server and some nodes on this machine until Ctrl-C",
		Long: "Runs a server and some nodes on this machine, each a process of its own, until Ctrl-C.\n" +
			"With --netns each node is in a network namespace behind a NAT, where nothing can reach it.\n" +
			"Log and process id of each are in DIR; a second run with the same DIR finds the same cluster.\n" +
			"Its nodes report no disk pressure: the disk of this machine has more on it than pods.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg.out, cfg.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			c, err := startCluster(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.close()) }()
			if _, err := fmt.Fprintf(cfg.out, "ready: export KUBECONFIG=%s\n", shellescape.Quote(c.kubeconfig())); err != nil {
				return err
			}
			return c.wait(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.dir, "dir", defaultDir, "directory of the cluster; made if missing")
	f.IntVar(&cfg.nodes, "nodes", 2, "number of nodes: node-1, node-2, …")
	f.IntVar(&cfg.port, "port", 6443, "port of the API and of the tunnel")
	f.BoolVar(&cfg.netns, "netns", false, "put each node into a network namespace behind its own NAT (needs root)")
	f.StringArrayVar(&cfg.serverArgs, "server-arg", nil, "a further argument for hawser server; may be repeated")
	f.StringArrayVar(&cfg.agentArgs, "agent-arg", nil, "a further argument for each hawser-agent; may be repeated")
	return cmd
}
