// The report: figures, and the JSON in which they are kept.

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Schema names the form of a Report as JSON. It changes when a program that reads
// reports would have to.
const Schema = "hawser-bench/1"

// A Report is the outcome of a run.
type Report struct {
	// Schema is the constant of that name.
	Schema string `json:"schema"`
	// Version is that of the program that was measured.
	Version string `json:"version"`
	// Started is when the run began, Seconds how long it took.
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Machine is where.
	Machine Machine `json:"machine"`
	// Duration is that of each measurement, in seconds; Rounds is how often each
	// was made.
	Duration float64 `json:"duration_s"`
	Rounds   int     `json:"rounds"`
	// Sessions and Streams are how many idle ones memory was measured with.
	Sessions int `json:"idle_sessions"`
	Streams  int `json:"idle_streams"`
	// Notes are for people.
	Notes []string `json:"notes,omitempty"`
	// Figures says what was measured, in the order of tables.
	Figures []Figure `json:"figures"`
	// Results are the figures of each transport, in the order of tables.
	Results []Result `json:"results"`
}

// A Machine is what figures depend on most.
type Machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
}

// A Figure is one thing that is measured.
type Figure struct {
	// Name is by what Result calls it.
	Name string `json:"name"`
	// What says what it is, for people.
	What string `json:"what"`
	// Unit is us (microseconds), MB/s (10⁶ bytes a second), s/GB (seconds of
	// processor time for 10⁹ bytes) or KiB.
	Unit string `json:"unit"`
	// Better is "lower" or "higher".
	Better string `json:"better"`
}

// A Result is what one transport has reached.
type Result struct {
	Transport string `json:"transport"`
	// Values are by the names of figures. What does not apply to a transport is
	// not there: direct has no sides, and the relay no sessions.
	Values map[string]*Value `json:"values"`
}

// A Value is what one transport has reached in one figure.
type Value struct {
	// Median is that of Rounds, the values of each round. Memory is measured once.
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"`
	// Ratio is the median over the rounds of this value to the relay's of the same
	// round; absent if there was no relay, or no such value of it.
	Ratio float64 `json:"ratio,omitempty"`
}

// allFigures are those that a run measures, in the order of tables.
func allFigures() []Figure {
	all := []Figure{
		{"dial_p50_us", "new connection, first byte, p50", "us", "lower"},
		{"dial_p99_us", "  p99", "us", "lower"},
		{"rtt_idle_p50_us", "round trip, idle, p50", "us", "lower"},
		{"rtt_idle_p99_us", "  p99", "us", "lower"},
		{"rtt_bulk_p50_us", fmt.Sprintf("round trip beside %d bulk streams, p50", besides), "us", "lower"},
		{"rtt_bulk_p99_us", "  p99", "us", "lower"},
		{"rtt_bulk_MBps", "  those streams", "MB/s", "higher"},
	}
	for _, t := range []struct{ name, what string }{
		{"down_1", "1 stream to the client"},
		{"up_1", "1 stream to the target"},
		{"down_16", "16 streams to the client"},
		{"down_128", "128 streams to the client"},
	} {
		all = append(
			all,
			Figure{t.name + "_MBps", t.what, "MB/s", "higher"},
			Figure{t.name + "_control_s_per_GB", "  CPU, control side", "s/GB", "lower"},
			Figure{t.name + "_node_s_per_GB", "  CPU, node side", "s/GB", "lower"},
			Figure{t.name + "_both_s_per_GB", "  CPU, both sides", "s/GB", "lower"},
		)
	}
	return append(
		all,
		Figure{"session_control_KiB", "memory of an idle session, control side", "KiB", "lower"},
		Figure{"stream_control_KiB", "memory of an idle stream, control side", "KiB", "lower"},
		Figure{"stream_node_KiB", "  node side", "KiB", "lower"},
	)
}

func newReport(c Config) *Report {
	r := &Report{
		Schema: Schema, Version: c.Version, Started: time.Now(),
		Machine:  Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernel(), CPUs: runtime.NumCPU(), Go: runtime.Version()},
		Duration: c.Duration.Seconds(), Rounds: c.Rounds, Sessions: c.Sessions, Streams: c.Streams,
		Figures: allFigures(),
	}
	for _, t := range Transports() {
		if slices.Contains(c.Transports, t) {
			r.Results = append(r.Results, Result{Transport: t, Values: make(map[string]*Value)})
		}
	}
	return r
}

// kernel is its release.
func kernel() string {
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return "unknown"
	}
	var b strings.Builder
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// result is what there is of a transport; nil if it was not measured.
func (r *Report) result(transport string) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool { return x.Transport == transport })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// add adds the values of a round.
func (r *Report) add(transport string, f figures) {
	values := r.result(transport).Values
	for name, x := range f {
		if values[name] == nil {
			values[name] = new(Value)
		}
		values[name].Rounds = append(values[name].Rounds, x)
	}
}

// finish works out medians and ratios.
func (r *Report) finish() {
	r.Seconds = time.Since(r.Started).Seconds()
	var yardstick map[string]*Value
	if relay := r.result(Relay); relay != nil {
		yardstick = relay.Values
	}
	for _, result := range r.Results {
		for name, v := range result.Values {
			v.Median = median(v.Rounds)
			if of := yardstick[name]; of != nil {
				v.Ratio = ratio(v.Rounds, of.Rounds)
			}
		}
	}
}

// ratio is the median of the ratios round by round.
func ratio(a, b []float64) float64 {
	var all []float64
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			all = append(all, a[i]/b[i])
		}
	}
	return median(all)
}

// median of an even number of values is the mean of the two in the middle; that of
// none is 0.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// WriteJSON writes the report as JSON, as its fields' comments say.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
