// Two canvases: SVG, which is text, and PNG, drawn twice as large so that it stays
// sharp.

package bench

import (
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

// An svg is a document under way.
type svg struct{ b strings.Builder }

func newSVG(width, height float64) *svg {
	s := new(svg)
	fmt.Fprintf(&s.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" font-family="Go, 'DejaVu Sans', Helvetica, Arial, sans-serif">`+"\n", width, height)
	return s
}

func (s *svg) rect(x, y, width, height float64, c color.RGBA) {
	fmt.Fprintf(&s.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#%02x%02x%02x"/>`+"\n", x, y, width, height, c.R, c.G, c.B)
}

func (s *svg) text(x, y, size float64, bold bool, c color.RGBA, text string) {
	weight := "normal"
	if bold {
		weight = "bold"
	}
	fmt.Fprintf(&s.b, `<text x="%.1f" y="%.1f" font-size="%g" font-weight="%s" fill="#%02x%02x%02x">`, x, y, size, weight, c.R, c.G, c.B)
	_ = xml.EscapeText(&s.b, []byte(text)) // a strings.Builder takes everything
	s.b.WriteString("</text>\n")
}

func (s *svg) write(w io.Writer) error {
	s.b.WriteString("</svg>\n")
	if _, err := io.WriteString(w, s.b.String()); err != nil {
		return fmt.Errorf("write SVG: %w", err)
	}
	return nil
}

// pngScale is how many pixels of the picture one of the plot has in each
// direction.
const pngScale = 2

// A picture is a PNG under way.
type picture struct {
	image         *image.RGBA
	regular, bold *opentype.Font
	err           error // the first that came up
}

func newPNG(width, height float64) (*picture, error) {
	regular, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, fmt.Errorf("parse font: %w", err)
	}
	bold, err := opentype.Parse(gobold.TTF)
	if err != nil {
		return nil, fmt.Errorf("parse font: %w", err)
	}
	bounds := image.Rect(0, 0, pixels(width), pixels(height))
	return &picture{image: image.NewRGBA(bounds), regular: regular, bold: bold}, nil
}

func pixels(x float64) int { return int(math.Round(x * pngScale)) }

func (p *picture) rect(x, y, width, height float64, c color.RGBA) {
	r := image.Rect(pixels(x), pixels(y), pixels(x+width), pixels(y+height))
	draw.Draw(p.image, r, image.NewUniform(c), image.Point{}, draw.Src)
}

func (p *picture) text(x, y, size float64, bold bool, c color.RGBA, text string) {
	f := p.regular
	if bold {
		f = p.bold
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: size * pngScale, DPI: 72, Hinting: font.HintingFull})
	if err != nil {
		p.err = errors.Join(p.err, fmt.Errorf("size font: %w", err))
		return
	}
	defer face.Close()
	d := font.Drawer{Dst: p.image, Src: image.NewUniform(c), Face: face, Dot: fixed.P(pixels(x), pixels(y))}
	d.DrawString(text)
}

func (p *picture) write(w io.Writer) error {
	if p.err != nil {
		return p.err
	}
	if err := png.Encode(w, p.image); err != nil {
		return fmt.Errorf("write PNG: %w", err)
	}
	return nil
}
