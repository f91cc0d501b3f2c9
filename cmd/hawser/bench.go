// hawser bench: the transports compared on this machine.

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/internal/bench"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

const (
	quickDuration = 200 * time.Millisecond
	quickRounds   = 1
	quickSessions = 50
	quickStreams  = 200
)

// benchOptions are the flags of hawser bench.
type benchOptions struct {
	transports []string
	duration   time.Duration
	rounds     int
	quick      bool
	json, plot string
}

func newBench() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Compare the transports with each other and with a bare TLS relay, on this machine",
		Long: "Measures on loopback, in one run, what it costs to reach a node: latency of new connections and\n" +
			"round trips, throughput, processor time and memory of each side. Each way takes its turn in every\n" +
			"round, so that what else the machine does weighs on all of them; quote the ratios to the relay.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.transports, "transports", bench.Transports(), "what to compare; without relay there are no ratios")
	f.DurationVar(&o.duration, "duration", bench.DefaultDuration, "length of each measurement")
	f.IntVar(&o.rounds, "rounds", bench.DefaultRounds, "how often each measurement is made")
	f.BoolVar(&o.quick, "quick", false, "take about half a minute, for a rough idea: one round of short measurements")
	f.StringVar(&o.json, "json", "", "write all figures to this file as JSON")
	f.StringVar(&o.plot, "plot", "", "draw the figures into this file, .svg or .png")
	cmd.AddCommand(newBenchServe())
	return cmd
}

// newBenchServe is what hawser bench starts.
func newBenchServe() *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use:    "serve",
		Short:  "Play a role in a run of hawser bench",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.Serve(cmd.Context(), role, os.Stdin, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "the role")
	return cmd
}

func (o *benchOptions) run(cmd *cobra.Command) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	c := bench.Config{
		Transports: o.transports, Duration: o.duration, Rounds: o.rounds,
		Version: setup.Version(), Progress: cmd.ErrOrStderr(),
	}
	if o.quick {
		c.Sessions, c.Streams = quickSessions, quickStreams
	}
	report, err := bench.Run(cmd.Context(), c)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := report.WriteTable(cmd.OutOrStdout()); err != nil {
		return err
	}
	if err := writeReport("--json", o.json, report.WriteJSON); err != nil {
		return err
	}
	return writeReport("--plot", o.plot, func(w io.Writer) error { return report.WritePlot(w, o.plot) })
}

// check finds what would fail only after minutes.
func (o *benchOptions) check(cmd *cobra.Command) error {
	if err := bench.Check(o.transports); err != nil {
		return fmt.Errorf("--transports: %w", err)
	}
	if o.quick {
		if !cmd.Flags().Changed("duration") {
			o.duration = quickDuration
		}
		if !cmd.Flags().Changed("rounds") {
			o.rounds = quickRounds
		}
	}
	if o.duration < bench.MinDuration || o.duration > bench.MaxDuration {
		return fmt.Errorf("--duration: %s is not between %s and %s", o.duration, bench.MinDuration, bench.MaxDuration)
	}
	if o.rounds < 1 || o.rounds > bench.MaxRounds {
		return fmt.Errorf("--rounds: %d is not between 1 and %d", o.rounds, bench.MaxRounds)
	}
	if o.plot != "" {
		if err := bench.CheckPlot(o.plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	for flag, path := range map[string]string{"--json": o.json, "--plot": o.plot} {
		if path == "" {
			continue
		}
		if fi, err := os.Stat(filepath.Dir(path)); err != nil || !fi.IsDir() {
			return fmt.Errorf("%s: %s is not a directory: make it, or choose another", flag, filepath.Dir(path))
		}
	}
	return nil
}

// writeReport writes a file, if there is one to be written.
func writeReport(flag, path string, write func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %s: %w", flag, path, err)
	}
	return nil
}
