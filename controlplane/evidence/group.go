package evidence

// Groups of nodes that may have been cut by one cause, as sets of spans.

import (
	"fmt"
	"slices"
	"time"
)

// A span is a time in which a node was heard without a gap.
type span struct {
	node       string
	begin, end time.Time
	silent     bool // it ended by silence
}

// spans are those of s, oldest first.
func spans(s *Session, now time.Time, patience time.Duration) []span {
	var (
		all  []span
		open *span
		gaps = s.gaps
	)
	// add adds a span without the gaps in it.
	add := func(whole span) {
		for ; len(gaps) > 0 && !gaps[0].to.After(whole.end); gaps = gaps[1:] {
			if g := gaps[0]; !g.from.Before(whole.begin) {
				all = append(all, span{node: s.Node, begin: whole.begin, end: g.from, silent: true})
				whole.begin = g.to
			}
		}
		all = append(all, whole)
	}
	for i := range s.Changes {
		c := &s.Changes[i]
		switch {
		case c.State == Attached && open == nil:
			open = &span{node: s.Node, begin: c.At}
		case c.State != Attached && open != nil:
			open.end, open.silent = c.end(), c.Cause == Silent
			add(*open)
			open = nil
		}
	}
	if open != nil {
		open.end = now
		if !s.Heard.IsZero() {
			open.end, open.silent = s.Heard, s.quiet(now, patience)
		}
		add(*open)
	}
	return all
}

// A group is the spans of some nodes, in the order in which they began, with what
// is asked of them prepared so that an answer takes no walk.
type group struct {
	nodes int
	spans []span
	// heard[i] is the latest end of spans[:i+1], lasted[i] the length of the
	// longest of spans[i:].
	heard  []time.Time
	lasted []time.Duration
	last   []span // those that ended by silence, in that order
}

func (g *group) add(s *Session, now time.Time, patience time.Duration) {
	g.nodes++
	g.spans = append(g.spans, spans(s, now, patience)...)
}

// settle prepares the answers.
func (g *group) settle() {
	slices.SortFunc(g.spans, func(a, b span) int { return a.begin.Compare(b.begin) })
	g.heard, g.lasted = make([]time.Time, len(g.spans)), make([]time.Duration, len(g.spans))
	for i, s := range g.spans {
		g.heard[i] = s.end
		if i > 0 && g.heard[i-1].After(s.end) {
			g.heard[i] = g.heard[i-1]
		}
		if s.silent {
			g.last = append(g.last, s)
		}
	}
	for i := len(g.spans) - 1; i >= 0; i-- {
		g.lasted[i] = g.spans[i].end.Sub(g.spans[i].begin)
		if i+1 < len(g.spans) {
			g.lasted[i] = max(g.lasted[i], g.lasted[i+1])
		}
	}
	slices.SortFunc(g.last, func(a, b span) int { return a.end.Compare(b.end) })
}

// after is the index of the first span that began after t.
func (g *group) after(t time.Time) int {
	i, _ := slices.BinarySearchFunc(g.spans, t, func(s span, t time.Time) int {
		if s.begin.After(t) {
			return 1
		}
		return -1
	})
	return i
}

// near are the spans that ended by silence within window of t.
func (g *group) near(t time.Time, window time.Duration) []span {
	compare := func(s span, t time.Time) int { return s.end.Compare(t) }
	from, _ := slices.BinarySearchFunc(g.last, t.Add(-window), compare)
	to, _ := slices.BinarySearchFunc(g.last, t.Add(window+1), compare)
	return g.last[from:max(from, to)]
}

// together says whether node is not the only one whose last word came within
// window of t.
func (g *group) together(node string, t time.Time, window time.Duration) bool {
	return slices.ContainsFunc(g.near(t, window), func(s span) bool { return s.node != node })
}

// silenced says which nodes had their last word within window of t.
func (g *group) silenced(t time.Time, window time.Duration) string {
	silent := make(map[string]bool)
	for _, s := range g.near(t, window) {
		silent[s.node] = true
	}
	if len(silent) == g.nodes {
		return fmt.Sprintf("all %d nodes", g.nodes)
	}
	return fmt.Sprintf("all %d connected nodes (of %d)", len(silent), g.nodes)
}

// lived says whether somebody was heard without a gap from t or before to window
// after it.
func (g *group) lived(t time.Time, window time.Duration) bool {
	i := g.after(t)
	return i > 0 && !g.heard[i-1].Before(t.Add(window))
}

// back says whether somebody has come after t, and was heard for as long as term.
func (g *group) back(t time.Time, term time.Duration) bool {
	i := g.after(t)
	return i < len(g.spans) && g.lasted[i] >= term
}

// cut says whether whatever silenced node at t silenced the whole group.
func (g *group) cut(node string, t time.Time, window, term time.Duration) bool {
	return g != nil && g.together(node, t, window) && !g.lived(t, window) && !g.back(t, term)
}
