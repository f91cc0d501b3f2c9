// hawser lab: break the links of a cluster that hawser up --netns runs, as a script says.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/lab"
)

// maxLabScript bounds a script.
const maxLabScript = 1 << 20

func newLab() *cobra.Command {
	var dir string
	var plan bool
	cmd := &cobra.Command{
		Use:   "lab SCRIPT",
		Short: "Break the links of a cluster of hawser up --netns, as a script says",
		Long: "Breaks the links of the nodes of a cluster that hawser up --netns runs on this machine, as a script says; - is standard\n" +
			"input. A statement has a line, or ends with a semicolon:\n\n" +
			"  seed 7                                   the same seed and nodes give the same faults\n" +
			"  at 2s cut node-1 for 5s                  both ways; cut node-1 in, cut node-1 out: one way\n" +
			"  at 10s rebind node-1                     the NAT forgets, and maps to other ports\n" +
			"  at 11s move node-2                       another network, another address\n" +
			"  at 12s reset node-1 for 500ms            TCP resets\n" +
			"  at 13s loss node-1 2% for 10s\n" +
			"  at 13s rate node-1 1mbit for 10s\n" +
			"  at 20s shape node-1 delay 50ms jitter 5ms loss 1% reorder 1% duplicate 0.1% rate 10mbit mtu 1280\n" +
			"  at 60s clear node-1                      ends all but rebind and move\n" +
			"  at 1s cuts 200 between 100ms..2s kinds rst,blackhole,rebind,move for 100ms..5s on node-1\n\n" +
			"Each event is printed when it happens. At the end, and after Ctrl-C, the faults end.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, err := readScript(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return runScript(cmd.Context(), cmd.OutOrStdout(), dir, script, plan)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", defaultDir, "directory of the cluster, as of hawser up")
	cmd.Flags().BoolVar(&plan, "plan", false, "print what would happen, and end")
	return cmd
}

func readScript(file string, stdin io.Reader) (lab.Script, error) {
	from := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return lab.Script{}, err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxLabScript+1))
	if err != nil {
		return lab.Script{}, err
	}
	return lab.ParseScript(string(text))
}

func runScript(ctx context.Context, out io.Writer, dir string, script lab.Script, plan bool) (err error) {
	if err = lab.CheckFaults(); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	l, err := lab.Open(ctx, dir)
	if err != nil {
		return fmt.Errorf("--dir %s: %w; hawser up --netns makes one", dir, err)
	}
	var names []string
	for _, n := range l.Nodes() {
		names = append(names, n.Name)
	}
	events, err := script.Plan(names)
	if err != nil {
		return err // nothing has been changed that Close would heal
	}
	if plan {
		for _, e := range events {
			if _, werr := fmt.Fprintln(out, e); werr != nil {
				return werr
			}
		}
		return nil
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	var lost error
	err = script.Run(ctx, l, func(e lab.Event) {
		if _, werr := fmt.Fprintln(out, e); werr != nil {
			lost = werr
		}
	})
	return errors.Join(err, lost)
}
