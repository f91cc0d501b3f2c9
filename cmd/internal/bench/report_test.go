package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"strings"
	"testing"
)

func sample() *Report {
	r := newReport(Config{Transports: []string{SSH, Relay, Direct, Yamux}, Rounds: 3, Version: "v1 <&>"})
	for _, v := range []struct{ relay, yamux float64 }{{100, 50}, {1000, 400}, {10, 20}} {
		r.add(Relay, figures{"dial_p50_us": v.relay, "down_1_control_s_per_GB": 1, "down_1_node_s_per_GB": 1})
		r.add(Yamux, figures{"dial_p50_us": v.yamux, "session_control_KiB": 1234.5})
		r.add(Direct, figures{"dial_p50_us": 9})
	}
	r.finish()
	return r
}

func TestMediansAndRatios(t *testing.T) {
	r := sample()
	if v := r.result(Yamux).Values["dial_p50_us"]; v.Median != 50 || v.Ratio != 0.5 {
		t.Errorf("median %v, ratio %v; want 50, and 0.5, which is that of the first round", v.Median, v.Ratio)
	}
	if v := r.result(Yamux).Values["session_control_KiB"]; v.Ratio != 0 {
		t.Errorf("ratio %v to nothing", v.Ratio)
	}
	for want, of := range map[float64][]float64{0: nil, 3: {3}, 2: {3, 1}, 5: {9, 5, 1}} {
		if got := median(of); got != want {
			t.Errorf("median of %v is %v", of, got)
		}
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if f := strings.Fields(lines[0]); strings.Join(f, " ") != "unit direct relay yamux ssh" {
		t.Errorf("columns %q: want those of Transports, whatever order was asked for", f)
	}
	if want := "new connection, first byte, p50          us    9.00 (0.09)    100  50.0 (0.50)    -"; lines[1] != want {
		t.Errorf("\n%s, want\n%s", lines[1], want)
	}
	if strings.Contains(b.String(), "rtt") || strings.Contains(b.String(), "round trip") {
		t.Errorf("a row of nothing:\n%s", &b)
	}
}

func TestPlot(t *testing.T) {
	r := sample()
	var b bytes.Buffer
	if err := r.WritePlot(&b, "x.svg"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "v1 &lt;&amp;&gt;") {
		t.Error("the version is not there, or not escaped")
	}
	rects := 0
	for d := xml.NewDecoder(&b); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
			rects++
		}
	}
	if want := 1 + 3 + 2 + 1; rects != want { // paper, dials, CPU in two parts, memory
		t.Errorf("%d rectangles, want %d", rects, want)
	}
	b.Reset()
	if err := r.WritePlot(&b, "X.PNG"); err != nil {
		t.Fatal(err)
	}
	p, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	colours := map[[3]uint32]bool{}
	for y := range p.Bounds().Dy() {
		for x := range p.Bounds().Dx() {
			cr, cg, cb, _ := p.At(x, y).RGBA()
			colours[[3]uint32{cr >> 8, cg >> 8, cb >> 8}] = true
		}
	}
	for _, transport := range []string{Direct, Relay, Yamux} {
		if c := hue(transport, 0); !colours[[3]uint32{uint32(c.R), uint32(c.G), uint32(c.B)}] {
			t.Errorf("nothing in the colour of %s", transport)
		}
	}
	if err := r.WritePlot(&b, "x.pdf"); err == nil {
		t.Error("drew a .pdf")
	}
}
