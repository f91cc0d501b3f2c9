// The report: medians and ratios, as a table and as JSON.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A report is as that of hawser bench, whose fields of these names mean the same.
type report struct {
	Schema   string    `json:"schema"`
	Started  time.Time `json:"started"`
	CPUs     int       `json:"cpus"`
	Go       string    `json:"go"`
	Duration float64   `json:"duration_s"`
	Rounds   int       `json:"rounds"`
	Results  []result  `json:"results"`

	loads []load
}

// A result is what one system has reached.
type result struct {
	System string            `json:"system"`
	Values map[string]*value `json:"values"`
}

// A value is what one system has reached in one figure.
type value struct {
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"`
	Ratio  float64   `json:"ratio,omitempty"` // to the first system
}

func measure(ctx context.Context, systems []*system, loads []load, rounds int, d time.Duration) (*report, error) {
	t, err := startTarget(ctx)
	if err != nil {
		return nil, err
	}
	defer t.listener.Close()
	r := &report{
		Schema: "hawser-bench-konnectivity/1", Started: time.Now(), CPUs: runtime.NumCPU(), Go: runtime.Version(),
		Duration: d.Seconds(), Rounds: rounds, loads: loads,
	}
	for _, s := range systems {
		if err := s.ready(ctx, t); err != nil {
			return nil, fmt.Errorf("%s does not carry a connection: %w", s.name, err)
		}
		r.Results = append(r.Results, result{System: s.name, Values: make(map[string]*value)})
	}
	for round := range rounds {
		for i, l := range loads {
			for j := range systems {
				k := (j + i + round) % len(systems)
				figures, err := l.measure(ctx, systems[k], t, d)
				if err == nil {
					err = t.settle()
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", systems[k].name, err)
				}
				r.Results[k].add(figures)
			}
		}
	}
	for _, of := range r.Results {
		for name, v := range of.Values {
			v.Median, v.Ratio = median(v.Rounds), ratio(v.Rounds, r.Results[0].Values[name].Rounds)
		}
	}
	return r, nil
}

func (r *result) add(figures map[string]float64) {
	for name, x := range figures {
		if r.Values[name] == nil {
			r.Values[name] = new(value)
		}
		r.Values[name].Rounds = append(r.Values[name].Rounds, x)
	}
}

// ratio is the median of the ratios round by round.
func ratio(a, b []float64) float64 {
	var all []float64
	for i := range a {
		if b[i] != 0 {
			all = append(all, a[i]/b[i])
		}
	}
	return median(all)
}

func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

func (r *report) print(out io.Writer) error {
	var b strings.Builder
	for i, of := range r.Results {
		b.WriteString("\t" + of.System)
		if i > 0 {
			b.WriteString("\tratio")
		}
	}
	b.WriteString("\t\n")
	for _, l := range r.loads {
		for _, name := range l.figures {
			b.WriteString(name)
			for i, of := range r.Results {
				v := of.Values[name]
				fmt.Fprintf(&b, "\t%.4g", v.Median)
				if i > 0 {
					fmt.Fprintf(&b, "\t%.2f", v.Ratio)
				}
			}
			b.WriteString("\t\n")
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return w.Flush()
}

func (r *report) write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644) //nolint:gosec // figures are no secret
}
