// The language in which a Script says what fails when, and its parser.

package lab

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// A Script is a list of faults with times. One statement ends with a newline or a
// semicolon; # begins a comment. Times are Go's (1.5s, 200ms), counted from the
// beginning of Run.
//
//	seed 7                                  # of every chance; 0 unless told; a statement may follow
//	at 2s cut node-1 for 5s                 # both ways, in or out: cut node-1 in
//	at 8s heal node-1                       # ends cuts
//	at 10s rebind node-2                    # the NAT forgets, and maps to other ports
//	at 11s move node-2                      # another network, another address
//	at 12s reset node-1 for 500ms           # TCP resets, both ways; 1s unless told
//	at 13s loss node-1 2% for 10s           # each way, by the kernel
//	at 13s rate node-1 1mbit                # each way: bit, kbit, mbit, gbit per second
//	at 20s shape node-1 delay 50ms jitter 5ms loss 1% reorder 1% duplicate 0.1%
//	       corrupt 0.1% hold 10ms rate 10mbit queue 65536 mtu 1280   (one line) the emulator, both ways
//	at 60s clear node-1                     # ends all but rebind and move
//	at 1s cuts 200 between 100ms..2s kinds rst,blackhole,rebind,move for 100ms..5s on node-1
//
// The last is a series: so many cuts, one after the other, each of a kind, on a node
// and for a time drawn by the seed, with a pause between the end of one and the
// beginning of the next. Times are one duration or two, A..B. Without for a cut lasts
// 1s, without kinds all four occur, without on all nodes are hit. `at` may be left
// out: then a statement is for the beginning.
//
// Faults of a kind on the same node are one: the end of the first ends both.
type Script struct {
	Seed       uint64
	statements []statement
}

// statement is one line of a Script.
type statement struct {
	line   int
	at     time.Duration
	verb   string
	node   string // "" for a series
	length time.Duration
	way    Direction
	share  float64
	rate   int64
	shape  emulator.Shape
	series series
}

// series is what `cuts` says.
type series struct {
	count  int
	pause  span
	length span
	kinds  []string
	nodes  []string // nil: all
}

// span is a range of durations, both ends within.
type span struct{ from, to time.Duration }

const (
	maxScript     = 1 << 20 // bytes
	maxStatements = 10_000
	maxCuts       = 100_000
	// maxTime bounds each time in a script.
	maxTime       = 7 * 24 * time.Hour
	defaultLength = time.Second
)

// cutKinds are the kinds of cuts in a series.
var cutKinds = []string{"blackhole", "move", "rebind", "rst"}

// ParseScript reads a script. An error names the line.
func ParseScript(text string) (Script, error) {
	var s Script
	if len(text) > maxScript {
		return Script{}, fmt.Errorf("script: %d bytes, more than %d", len(text), maxScript)
	}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		for _, part := range strings.Split(line, ";") {
			words := strings.Fields(part)
			if len(words) == 0 {
				continue
			}
			if err := s.add(i+1, words); err != nil {
				return Script{}, fmt.Errorf("script: line %d: %w", i+1, err)
			}
		}
	}
	return s, nil
}

// add parses one statement.
func (s *Script) add(line int, words []string) error {
	if len(s.statements) >= maxStatements {
		return fmt.Errorf("more than %d statements", maxStatements)
	}
	in := &reader{words: words}
	if in.peek() == "seed" {
		in.next("")
		seed, err := strconv.ParseUint(in.next("a number"), 10, 64)
		if err != nil {
			in.fail("seed: want a number")
		}
		s.Seed = seed
		if in.err != nil || in.peek() == "" {
			return in.end()
		}
	}
	st := statement{line: line}
	if in.peek() == "at" {
		in.next("")
		st.at = in.duration()
	}
	st.verb = in.next("what fails")
	parse, ok := verbs[st.verb]
	if !ok && in.err == nil {
		return fmt.Errorf("%q is not a fault: want one of %s", st.verb, strings.Join(verbNames(), ", "))
	}
	if ok {
		parse(&st, in)
	}
	if err := in.end(); err != nil {
		return err
	}
	s.statements = append(s.statements, st)
	return nil
}

// verbs parse what follows each verb.
var verbs = map[string]func(*statement, *reader){
	"cut": func(st *statement, in *reader) {
		st.node, st.way = in.next("a node"), Both
		switch in.peek() {
		case "in":
			in.next("")
			st.way = In
		case "out":
			in.next("")
			st.way = Out
		}
		st.length = in.length()
	},
	"heal":   func(st *statement, in *reader) { st.node = in.next("a node") },
	"rebind": func(st *statement, in *reader) { st.node = in.next("a node") },
	"move":   func(st *statement, in *reader) { st.node = in.next("a node") },
	"clear":  func(st *statement, in *reader) { st.node = in.next("a node") },
	"reset": func(st *statement, in *reader) {
		st.node = in.next("a node")
		if st.length = in.length(); st.length == 0 {
			st.length = defaultLength
		}
	},
	"loss": func(st *statement, in *reader) {
		st.node, st.share, st.length = in.next("a node"), in.share(), in.length()
	},
	"rate": func(st *statement, in *reader) {
		st.node, st.rate, st.length = in.next("a node"), in.rate(), in.length()
	},
	"shape": parseShape,
	"cuts":  parseCuts,
}

func verbNames() []string {
	var names []string
	for name := range verbs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func parseShape(st *statement, in *reader) {
	st.node = in.next("a node")
	for in.err == nil && in.peek() != "" && in.peek() != "for" {
		switch key := in.next(""); key {
		case "delay":
			st.shape.Delay = in.duration()
		case "jitter":
			st.shape.Jitter = in.duration()
		case "hold":
			st.shape.Hold = in.duration()
		case "loss":
			st.shape.Loss = in.share()
		case "reorder":
			st.shape.Reorder = in.share()
		case "duplicate":
			st.shape.Duplicate = in.share()
		case "corrupt":
			st.shape.Corrupt = in.share()
		case "rate":
			st.shape.Rate = in.rate()
		case "queue":
			st.shape.Queue = in.count(emulator.MaxHeld)
		case "mtu":
			st.shape.MTU = in.count(1 << 16)
		default:
			in.fail("%q is no property of a link: want delay, jitter, loss, reorder, hold, duplicate, corrupt, rate, queue or mtu", key)
		}
	}
	if in.err == nil && st.shape == noShape {
		in.fail("shape without a property: use clear to end one")
	}
	st.length = in.length()
}

func parseCuts(st *statement, in *reader) {
	st.series = series{
		count: in.count(maxCuts), kinds: cutKinds,
		length: span{defaultLength, defaultLength},
	}
	if word := in.next("between"); word != "between" {
		in.fail("%q: want between", word)
	}
	st.series.pause = in.span()
	for in.err == nil && in.peek() != "" {
		switch key := in.next(""); key {
		case "kinds":
			st.series.kinds = in.list()
			for _, kind := range st.series.kinds {
				if !slices.Contains(cutKinds, kind) {
					in.fail("%q is no kind of cut: want some of %s", kind, strings.Join(cutKinds, ","))
				}
			}
		case "for":
			if st.series.length = in.span(); st.series.length.from == 0 {
				in.fail("for: a cut must last longer than 0s")
			}
		case "on":
			st.series.nodes = in.list()
		default:
			in.fail("%q: want kinds, for or on", key)
		}
	}
}

// reader takes the words of a statement one by one and keeps the first error.
type reader struct {
	words []string
	err   error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// end returns the first error, or one for words that are left.
func (r *reader) end() error {
	if r.err == nil && len(r.words) > 0 {
		return fmt.Errorf("%q: nothing more was expected", r.words[0])
	}
	return r.err
}

func (r *reader) peek() string {
	if len(r.words) == 0 {
		return ""
	}
	return r.words[0]
}

// next takes a word; what says what it should have been if there is none.
func (r *reader) next(what string) string {
	if len(r.words) == 0 {
		r.fail("ends where %s should be", what)
		return ""
	}
	word := r.words[0]
	r.words = r.words[1:]
	return word
}

func (r *reader) duration() time.Duration {
	word := r.next("a time")
	d, err := parseTime(word)
	if err != nil {
		r.fail("%q: %w", word, err)
	}
	return d
}

func parseTime(word string) (time.Duration, error) {
	d, err := time.ParseDuration(word)
	if err != nil {
		return 0, errors.New("want a time such as 1.5s or 200ms")
	}
	if d < 0 || d > maxTime {
		return 0, fmt.Errorf("want a time from 0s to %v", maxTime)
	}
	return d, nil
}

// length reads "for TIME", if it is there.
func (r *reader) length() time.Duration {
	if r.peek() != "for" {
		return 0
	}
	r.next("")
	d := r.duration()
	if d == 0 {
		r.fail("for: a fault must last longer than 0s")
	}
	return d
}

// span reads A..B or A.
func (r *reader) span() span {
	word := r.next("a range of times")
	from, to, two := strings.Cut(word, "..")
	if !two {
		to = from
	}
	a, errA := parseTime(from)
	b, errB := parseTime(to)
	if err := errors.Join(errA, errB); err != nil {
		r.fail("%q: want a range of times such as 100ms..2s", word)
		return span{}
	}
	if a > b {
		r.fail("%q: ends before it begins", word)
	}
	return span{a, b}
}

// share reads a percentage.
func (r *reader) share() float64 {
	word := r.next("a percentage")
	number, percent := strings.CutSuffix(word, "%")
	v, err := strconv.ParseFloat(number, 64)
	if !percent || err != nil || !(v >= 0 && v <= 100) {
		r.fail("%q: want a percentage from 0%% to 100%%", word)
		return 0
	}
	return v / 100
}

// rate reads bits per second and returns bytes per second.
func (r *reader) rate() int64 {
	word := r.next("a rate")
	for _, unit := range []struct {
		suffix string
		bits   float64
	}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}} {
		number, ok := strings.CutSuffix(word, unit.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(number, 64)
		if bytes := math.Round(v * unit.bits / 8); err == nil && bytes >= 1 && bytes <= maxRate {
			return int64(bytes)
		}
		break
	}
	r.fail("%q: want a rate such as 64kbit or 10mbit", word)
	return 0
}

func (r *reader) count(most int) int {
	word := r.next("a number")
	v, err := strconv.Atoi(word)
	if err != nil || v < 1 || v > most {
		r.fail("%q: want a number from 1 to %d", word, most)
	}
	return v
}

// list reads A,B,C.
func (r *reader) list() []string {
	word := r.next("a list")
	list := strings.Split(word, ",")
	if slices.Contains(list, "") {
		r.fail("%q: want a list such as a,b,c", word)
	}
	return list
}
