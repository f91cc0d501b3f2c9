// Konnectivity measures systems that serve konnectivity's gRPC on a unix socket, beside
// each other: the same load, by konnectivity-client as it is, to a target in this process,
// through one after the other within each round, another one first each time.
//
//	konnectivity certs DIR
//	konnectivity run --json FILE --loads NAME,NAME --rounds N --duration D SYSTEM SYSTEM
//
// A SYSTEM is name=NAME&socket=PATH&host=HOST&pid=PID&pid=PID, as in the query of a URL.
//
// Certs makes a CA and the pairs server and agent. Run prints medians over the rounds, and
// the ratio of each system to the first: the median of the ratios within the rounds. A
// system's processor time is that of its processes; the client's is that of this process,
// which has the client and the target.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	root := &cobra.Command{Use: "konnectivity", SilenceUsage: true}
	root.AddCommand(newRun(), &cobra.Command{
		Use: "certs DIR", Short: "Make a CA and the pairs server and agent", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return makeCerts(args[0]) },
	})
	err := root.ExecuteContext(ctx) // prints the error
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func newRun() *cobra.Command {
	var (
		file     string
		names    []string
		rounds   int
		duration time.Duration
	)
	cmd := &cobra.Command{
		Use: "run SYSTEM SYSTEM", Short: "Measure systems beside each other", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			systems := make([]*system, len(args))
			for i, spec := range args {
				var err error
				if systems[i], err = parseSystem(spec); err != nil {
					return fmt.Errorf("%s: %w", spec, err)
				}
			}
			if rounds < 1 || duration <= 0 {
				return errors.New("--rounds and --duration must be positive")
			}
			picked, err := pick(names)
			if err != nil {
				return err
			}
			r, err := measure(cmd.Context(), systems, picked, rounds, duration)
			if err != nil {
				return err
			}
			if err := r.print(cmd.OutOrStdout()); err != nil || file == "" {
				return err
			}
			return r.write(file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "json", "", "file for the values of all rounds")
	f.StringSliceVar(&names, "loads", nil, "loads that are measured (default all)")
	f.IntVar(&rounds, "rounds", 3, "how often each load is measured")
	f.DurationVar(&duration, "duration", time.Second, "how long each time")
	return cmd
}

// A system serves konnectivity's gRPC.
type system struct {
	name   string
	socket string // where
	host   string // what it calls this machine's loopback
	pids   []int  // of its processes
}

func parseSystem(spec string) (*system, error) {
	q, err := url.ParseQuery(spec)
	if err != nil {
		return nil, err
	}
	s := &system{name: q.Get("name"), socket: q.Get("socket"), host: q.Get("host")}
	for _, text := range q["pid"] {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("pid: %w", err)
		}
		s.pids = append(s.pids, pid)
	}
	if s.name == "" || s.socket == "" || s.host == "" || len(s.pids) == 0 {
		return nil, errors.New("want name=NAME&socket=PATH&host=HOST&pid=PID")
	}
	return s, nil
}
