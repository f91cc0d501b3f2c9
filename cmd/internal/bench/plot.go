// The plot: a report as bars, one small chart for each of the main figures.

package bench

import (
	"fmt"
	"image/color"
	"io"
	"path/filepath"
	"strings"
)

// A canvas is something to draw on. Lengths are in pixels, from the top left
// corner.
type canvas interface {
	rect(x, y, width, height float64, c color.RGBA)
	// text draws s with its base line at y, beginning at x.
	text(x, y, size float64, bold bool, c color.RGBA, s string)
	// write ends the drawing.
	write(w io.Writer) error
}

// A chart shows one figure, or several whose sum matters, of each transport.
type chart struct {
	title string
	names []string
}

// charts are those of a plot, in rows.
func charts() []chart {
	return []chart{
		{"new connection, first byte, p50, µs", []string{"dial_p50_us"}},
		{"round trip, idle, p50, µs", []string{"rtt_idle_p50_us"}},
		{fmt.Sprintf("round trip beside %d bulk streams, p50, µs", besides), []string{"rtt_bulk_p50_us"}},
		{"1 stream to the client, MB/s", []string{"down_1_MBps"}},
		{"16 streams to the client, MB/s", []string{"down_16_MBps"}},
		{"128 streams to the client, MB/s", []string{"down_128_MBps"}},
		{"CPU of 1 stream, control + node, s/GB", []string{"down_1_control_s_per_GB", "down_1_node_s_per_GB"}},
		{"CPU of 16 streams, control + node, s/GB", []string{"down_16_control_s_per_GB", "down_16_node_s_per_GB"}},
		{"CPU of 128 streams, control + node, s/GB", []string{"down_128_control_s_per_GB", "down_128_node_s_per_GB"}},
		{"1 stream to the target, MB/s", []string{"up_1_MBps"}},
		{"memory of an idle session, control side, KiB", []string{"session_control_KiB"}},
		{"memory of an idle stream, control + node, KiB", []string{"stream_control_KiB", "stream_node_KiB"}},
	}
}

// Measures of a plot, in pixels.
const (
	columns     = 3
	chartWidth  = 330.0
	barHeight   = 18.0
	barGap      = 6.0
	margin      = 24.0
	nameWidth   = 48.0
	valueWidth  = 56.0
	headHeight  = 64.0
	titleHeight = 26.0
	smallText   = 11.0
	titleText   = 12.0
	headText    = 18.0
)

// Colours of a plot.
func ink() color.RGBA   { return color.RGBA{0x1b, 0x26, 0x31, 0xff} }
func faint() color.RGBA { return color.RGBA{0x5f, 0x6f, 0x7f, 0xff} }
func paper() color.RGBA { return color.RGBA{0xff, 0xff, 0xff, 0xff} }

// hue is that of a transport; a second part of its bar is paler.
func hue(transport string, part int) color.RGBA {
	c := map[string]color.RGBA{
		Direct: {0x9a, 0xa5, 0xb1, 0xff}, Relay: {0x52, 0x60, 0x6d, 0xff}, QMux: {0xb0, 0x2a, 0x4c, 0xff}, Yamux: {0x0b, 0x69, 0xa3, 0xff},
		H2: {0x0e, 0x7c, 0x66, 0xff}, QUIC: {0xb4, 0x53, 0x09, 0xff}, SSH: {0x7e, 0x3a, 0x93, 0xff},
	}[transport]
	for range part {
		c.R, c.G, c.B = c.R/2+0x80, c.G/2+0x80, c.B/2+0x80
	}
	return c
}

// CheckPlot says what is wrong with the name of a file for a plot.
func CheckPlot(name string) error {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".svg", ".png":
		return nil
	default:
		return fmt.Errorf("%s ends in neither .svg nor .png", name)
	}
}

// WritePlot draws the report in the format that the ending of name says, .svg or
// .png.
func (r *Report) WritePlot(w io.Writer, name string) error {
	if err := CheckPlot(name); err != nil {
		return err
	}
	shown := r.shown()
	rows := (len(shown) + columns - 1) / columns
	width := margin + columns*(chartWidth+margin)
	height := headHeight + float64(rows)*(r.chartHeight()+margin)
	var c canvas
	if strings.EqualFold(filepath.Ext(name), ".svg") {
		c = newSVG(width, height)
	} else {
		var err error
		if c, err = newPNG(width, height); err != nil {
			return err
		}
	}
	c.rect(0, 0, width, height, paper())
	c.text(margin, 28, headText, true, ink(), "hawser bench")
	c.text(margin, 46, smallText, false, faint(), fmt.Sprintf("%s, %s, %s/%s, %d CPUs, loopback, medians of %d rounds of %gs",
		r.Version, r.Machine.Go, r.Machine.OS, r.Machine.Arch, r.Machine.CPUs, r.Rounds, r.Duration))
	for i, ch := range shown {
		r.draw(c, ch, margin+float64(i%columns)*(chartWidth+margin), headHeight+float64(i/columns)*(r.chartHeight()+margin))
	}
	return c.write(w)
}

// shown are the charts for which there is something to show.
func (r *Report) shown() []chart {
	var all []chart
	for _, ch := range charts() {
		for _, t := range r.Results {
			if t.sum(ch.names) > 0 {
				all = append(all, ch)
				break
			}
		}
	}
	return all
}

func (r *Report) chartHeight() float64 {
	return titleHeight + float64(len(r.Results))*(barHeight+barGap)
}

// sum is that of medians.
func (r Result) sum(names []string) (sum float64) {
	for _, name := range names {
		if v := r.Values[name]; v != nil {
			sum += v.Median
		}
	}
	return sum
}

// draw draws a chart at x, y. The scale is that of the tunnels and the relay: what
// direct has beyond it is cut off, and the number says how much it is.
func (r *Report) draw(c canvas, ch chart, x, y float64) {
	c.text(x, y+titleText, titleText, true, ink(), ch.title)
	y += titleHeight
	highest := 0.0
	for _, t := range r.Results {
		if t.Transport != Direct || len(r.Results) == 1 {
			highest = max(highest, t.sum(ch.names))
		}
	}
	room := chartWidth - nameWidth - valueWidth
	for _, t := range r.Results {
		c.text(x, y+barHeight-5, smallText, false, ink(), t.Transport)
		at, end := x+nameWidth, x+nameWidth+room
		for part, name := range ch.names {
			if v := t.Values[name]; v != nil && highest > 0 {
				length := min(v.Median/highest*room, end-at)
				c.rect(at, y, length, barHeight, hue(t.Transport, part))
				at += length
			}
		}
		value := "–"
		if sum := t.sum(ch.names); sum > 0 {
			value = number(sum)
		}
		c.text(at+4, y+barHeight-5, smallText, false, faint(), value)
		y += barHeight + barGap
	}
}
