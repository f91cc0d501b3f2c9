// The table: a report for a terminal.

package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// WriteTable writes the report as an aligned table, with the ratio to the relay in
// parentheses.
func (r *Report) WriteTable(w io.Writer) error {
	rows := [][]string{{"", "unit"}}
	for _, t := range r.Results {
		rows[0] = append(rows[0], t.Transport)
	}
	for _, f := range r.Figures {
		row, has := []string{f.What, f.Unit}, false
		for _, t := range r.Results {
			cell := "-"
			if v := t.Values[f.Name]; v != nil {
				cell, has = v.String(), true
				if t.Transport == Relay {
					cell = number(v.Median)
				}
			}
			row = append(row, cell)
		}
		if has {
			rows = append(rows, row)
		}
	}
	var b strings.Builder
	for _, line := range align(rows) {
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "\nIn parentheses: ratio to the relay. Medians of %d rounds of %gs; memory once, with %d streams and %d sessions.\n",
		r.Rounds, r.Duration, r.Streams, r.Sessions)
	fmt.Fprintf(&b, "hawser %s, %s, %s/%s, Linux %s, %d CPUs, all on loopback, client and target on the same CPUs. Took %.0fs.\n",
		r.Version, r.Machine.Go, r.Machine.OS, r.Machine.Arch, r.Machine.Kernel, r.Machine.CPUs, r.Seconds)
	for _, note := range r.Notes {
		b.WriteString(note + "\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// String is the median and, if there is one, the ratio.
func (v *Value) String() string {
	if v.Ratio == 0 {
		return number(v.Median)
	}
	return number(v.Median) + " (" + number(v.Ratio) + ")"
}

// number has three digits or, of larger numbers, all before the point.
func number(x float64) string {
	switch {
	case x >= 100 || x <= -100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10 || x <= -10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	default:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
}

// align makes lines of rows: the first two columns to the left, the others to the
// right.
func align(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var lines []string
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < 2 {
				b.WriteString(cell + space)
			} else {
				b.WriteString(space + cell)
			}
			if i < len(row)-1 {
				b.WriteString("  ")
			}
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}
