package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// planOf returns what a script plans for two nodes, a line for each event.
func planOf(t *testing.T, text string) []string {
	t.Helper()
	s, err := ParseScript(text)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.Plan([]string{"node-1", "node-2"})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range plan {
		lines = append(lines, e.String())
	}
	return lines
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"nothing", "# only words\n\n;;", nil},
		{
			"of the manual", "at 2s cut node-1 for 5s; at 10s rebind node-2",
			[]string{"2s node-1 cut both", "7s node-1 end of cut both", "10s node-2 rebind"},
		},
		{
			"sorted by time", "at 2s move node-1 # later\nheal node-2\nat 1s cut node-1 in",
			[]string{"0s node-2 heal", "1s node-1 cut in", "2s node-1 move"},
		},
		{
			"one after the other", "at 1s cut node-1 out for 1s\nat 2s cut node-1 for 1s",
			[]string{"1s node-1 cut out", "2s node-1 end of cut out", "2s node-1 cut both", "3s node-1 end of cut both"},
		},
		{
			"every fault", "reset node-1\nloss node-1 2.5% for 1s\nrate node-1 1mbit\nshape node-1 delay 5ms for 3s\nat 4s clear node-1",
			[]string{
				"0s node-1 reset", "0s node-1 loss", "0s node-1 rate", "0s node-1 shape",
				"1s node-1 end of reset", "1s node-1 end of loss", "3s node-1 end of shape", "4s node-1 clear",
			},
		},
		{
			"a series without chance", "at 1s cuts 3 between 2s kinds blackhole on node-2 for 500ms",
			[]string{
				"3s node-2 cut both", "3.5s node-2 end of cut both", "5.5s node-2 cut both", "6s node-2 end of cut both",
				"8s node-2 cut both", "8.5s node-2 end of cut both",
			},
		},
		{"instants last no time", "cuts 2 between 1s kinds rebind on node-1", []string{"1s node-1 rebind", "2s node-1 rebind"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := planOf(t, c.script); !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestSeries(t *testing.T) {
	const script = "cuts 200 between 100ms..2s kinds rst,blackhole,rebind for 50ms..1s"
	first := planOf(t, "seed 7 "+script)
	if !slices.Equal(first, planOf(t, "seed 7; "+script)) {
		t.Error("the same seed planned something else")
	}
	if slices.Equal(first, planOf(t, "seed 8 "+script)) {
		t.Error("another seed planned the same")
	}
	s, err := ParseScript("seed 7; " + script)
	must(t, err)
	plan, err := s.Plan([]string{"node-1", "node-2"})
	must(t, err)
	seen, cuts, over := map[string]int{}, 0, time.Duration(0)
	for _, e := range plan {
		seen[e.Node+" "+e.What]++
		if strings.HasPrefix(e.What, "end of") {
			over = e.At
			continue
		}
		cuts++
		if pause := e.At - over; pause < 100*time.Millisecond || pause > 2*time.Second {
			t.Errorf("%v: %v after the end of the one before", e, pause)
		}
		over = e.At
	}
	if cuts != 200 {
		t.Errorf("%d cuts, want 200", cuts)
	}
	for _, node := range []string{"node-1", "node-2"} {
		for _, what := range []string{"cut both", "reset", "rebind"} {
			if n := seen[node+" "+what]; n < 10 {
				t.Errorf("%s %s only %d times", node, what, n)
			}
		}
	}
	if seen["node-1 move"]+seen["node-2 move"] != 0 {
		t.Error("a kind occurred that was not asked for")
	}
}

func TestParseShape(t *testing.T) {
	s, err := ParseScript("shape node-1 delay 50ms jitter 5ms loss 1% reorder 2% hold 7ms duplicate 0.5% corrupt 0.25% rate 8mbit queue 65536 mtu 1280 for 2s")
	must(t, err)
	got := fmt.Sprintf("%+v", s.statements[0].shape)
	want := "{Delay:50ms Jitter:5ms Loss:0.01 Duplicate:0.005 Reorder:0.02 Corrupt:0.0025 Hold:7ms Rate:1000000 Queue:65536 MTU:1280}"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestScriptErrors(t *testing.T) {
	for script, want := range map[string]string{
		"cut":                                   "line 1: ends where a node should be",
		"at":                                    "line 1: ends where a time should be",
		"at 1s":                                 "line 1: ends where what fails should be",
		"\n\nat soon cut node-1":                `line 3: "soon": want a time`,
		"at -1s cut node-1":                     "want a time from 0s",
		"at 9999h cut node-1":                   "want a time from 0s",
		"smash node-1":                          `line 1: "smash" is not a fault: want one of clear, cut, cuts, heal, loss, move, rate, rebind, reset, shape`,
		"cut node-1 sideways":                   `"sideways": nothing more was expected`,
		"cut node-1 for 0s":                     "must last longer",
		"heal node-1; heal node-1 x":            `"x": nothing more`,
		"loss node-1 5":                         `"5": want a percentage`,
		"loss node-1 101%":                      "want a percentage",
		"loss node-1 NaN%":                      "want a percentage",
		"rate node-1 10":                        "want a rate",
		"rate node-1 0bit":                      "want a rate",
		"rate node-1 -3mbit":                    "want a rate",
		"rate node-1 infgbit":                   "want a rate",
		"shape node-1":                          "shape without a property",
		"shape node-1 colour red":               `"colour" is no property`,
		"shape node-1 mtu 0":                    "want a number from 1",
		"seed x":                                "want a number",
		"seed 1 2":                              `"2" is not a fault`,
		"cuts 5":                                "ends where between should be",
		"cuts 0 between 1s":                     "want a number from 1",
		"cuts 5 between 2s..1s":                 "ends before it begins",
		"cuts 5 between 1s..":                   "want a range of times",
		"cuts 5 among 1s":                       `"among": want between`,
		"cuts 5 between 1s kinds rst,hug":       `"hug" is no kind of cut: want some of blackhole,move,rebind,rst`,
		"cuts 5 between 1s kinds ,":             "want a list",
		"cuts 5 between 1s for 0s..1s":          "must last longer",
		"cuts 5 between 1s until dawn":          "want kinds, for or on",
		strings.Repeat("heal a;", 10_001):       "more than 10000 statements",
		strings.Repeat("#", 1<<20) + "\nheal a": "script: 1048583 bytes, more than 1048576",
	} {
		if _, err := ParseScript(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q", script, err, want)
		}
	}
}

func TestPlanRefusesUnknownNodes(t *testing.T) {
	for _, script := range []string{"\ncut node-3", "\ncuts 1 between 1s on node-1,node-3"} {
		s, err := ParseScript(script)
		must(t, err)
		_, err = s.Plan([]string{"node-1", "node-2"})
		if err == nil || !strings.Contains(err.Error(), `line 2: there is no node "node-3": there are node-1, node-2`) {
			t.Errorf("%q: error %v", script, err)
		}
	}
	s, err := ParseScript("cuts 1 between 1s")
	must(t, err)
	if _, err := s.Plan(nil); err == nil {
		t.Error("a series was planned for no nodes")
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add("seed 7\nat 2s cut node-1 for 5s; at 10s rebind node-2 # comment")
	f.Add("at 1s cuts 20 between 100ms..2s kinds rst,blackhole,rebind,move for 1s..2s on node-1")
	f.Add("shape node-1 delay 50ms jitter 5ms loss 1% reorder 2% hold 7ms duplicate 0.5% corrupt 0.25% rate 8mbit queue 65536 mtu 1280 for 2s")
	f.Add("loss node-1 0.1%; rate node-2 9gbit for 1h; reset node-1; move node-1; clear node-2; heal node-1")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScript(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "script: ") {
				t.Errorf("%q: error %v does not say what it is about", text, err)
			}
			return
		}
		total := 0
		for _, st := range s.statements {
			if bad := st.shape.Check(); bad != nil {
				t.Errorf("%q: a shape that makes no sense was taken: %v", text, bad)
			}
			if st.at < 0 || st.at > maxTime || st.length < 0 || st.length > maxTime || st.share < 0 || st.share > 1 || st.rate < 0 {
				t.Errorf("%q: out of bounds: %+v", text, st)
			}
			total += st.series.count
		}
		if total > 1000 {
			return // only long
		}
		plan, err := s.Plan([]string{"node-1", "node-2"})
		if err != nil {
			return
		}
		for i, e := range plan {
			if e.do == nil || e.Node == "" || i > 0 && e.At < plan[i-1].At {
				t.Errorf("%q: event %d is %+v", text, i, e)
			}
		}
	})
}

// TestRunCutsAStream has a stream of numbered lines survive what a script does.
func TestRunCutsAStream(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := tcpPair(t, l, n)
	s, err := ParseScript(`
		seed 7
		shape node-1 delay 5ms jitter 2ms loss 1% for 1s
		at 100ms cut node-1 for 300ms
		at 500ms cut node-1 in for 100ms; at 700ms cut node-1 out for 100ms`)
	must(t, err)
	stop, wrote, read := make(chan struct{}), make(chan int, 1), make(chan int, 1)
	go func() { wrote <- writeLines(t, node.(*net.TCPConn), stop) }()
	go func() { read <- readLines(t, host) }()
	var told []string
	if err := s.Run(t.Context(), l, func(e Event) { told = append(told, e.String()) }); err != nil {
		t.Error(err)
	}
	close(stop)
	if w, r := <-wrote, <-read; w != r || w == 0 {
		t.Errorf("wrote %d lines, read %d", w, r)
	}
	if len(told) != 8 {
		t.Errorf("told of %q", told)
	}
	if n.faults.cut != 0 || n.shaping != nil {
		t.Errorf("left behind: %+v", n.faults)
	}
}

// writeLines writes numbered lines until it is told to stop, and returns how many.
func writeLines(t *testing.T, to *net.TCPConn, stop <-chan struct{}) int {
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for lines := 0; ; lines++ {
		select {
		case <-stop:
			if err := to.CloseWrite(); err != nil {
				t.Error(err)
			}
			return lines
		case <-pace.C:
		}
		if _, err := fmt.Fprintf(to, "line %d\n", lines); err != nil {
			t.Error(err)
		}
	}
}

// readLines returns how many lines have come, each once and in order.
func readLines(t *testing.T, from net.Conn) int {
	if err := from.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Error(err)
	}
	lines := 0
	for in := bufio.NewScanner(from); in.Scan(); lines++ {
		if want := fmt.Sprintf("line %d", lines); in.Text() != want {
			t.Errorf("%q in the place of %q", in.Text(), want)
			break
		}
	}
	return lines
}

// TestRunEndsFaultsWithContext stops a script in the midst of its faults.
func TestRunEndsFaultsWithContext(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	s, err := ParseScript("cut node-1 for 1h; shape node-1 delay 1s for 1h; loss node-1 3%; at 1s rebind node-1; at 1h heal node-1")
	must(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	err = s.Run(ctx, l, func(e Event) {
		if e.What == "rebind" {
			if n.faults.cut != Both || n.shaping == nil {
				t.Errorf("not in place: %+v", n.faults)
			}
			cancel(enough)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "script: ") {
		t.Errorf("run returned %v", err)
	}
	if n.faults.cut != 0 || n.shaping != nil {
		t.Errorf("still in place: %+v", n.faults)
	}
	if n.faults.loss != 0.03 {
		t.Error("a fault without an end was ended")
	}
}

func TestRunRefusesBeforeItBegins(t *testing.T) {
	l := newLab(t, 1)
	s, err := ParseScript("cut node-1; at 1h cut node-9")
	must(t, err)
	if err := Run(t.Context(), l, s); err == nil || !strings.Contains(err.Error(), `"node-9"`) {
		t.Errorf("run returned %v", err)
	}
	if l.Nodes()[0].faults.cut != 0 {
		t.Error("the first line was done though the second is wrong")
	}
}
