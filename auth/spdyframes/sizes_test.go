package spdyframes

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/moby/spdystream/spdy"
)

// TestSizes: sizes pass, however many there are, and one without an end does not.
func TestSizes(t *testing.T) {
	for _, text := range []string{
		`{"Width":80,"Height":24}` + "\n",
		`{"x":"}\"}{"}`,
		`{"x":[{},{"y":["]"]}]}`,
		`{"x":"\\"}`,
	} {
		if err := new(sizes).take([]byte(strings.Repeat(text, maxSize))); err != nil {
			t.Errorf("%d times %s: %v", maxSize, text, err)
		}
	}
	for _, text := range []string{`{"x":"`, `{"x":"}`, `{"x":"\"}`, `[`, ` `, `null `} {
		head, tail := text[:len(text)-1], text[len(text)-1:]
		if err := new(sizes).take([]byte(head + strings.Repeat(tail, 2*maxSize))); err == nil {
			t.Errorf("%s and so on passes", text)
		}
	}
	if err := new(sizes).take([]byte(`{"x":[` + strings.Repeat(`{},`, maxSize))); err == nil {
		t.Error("objects in an array without an end pass")
	}
}

// TestGuardBoundsSizes: many sizes pass a guard, and one in many frames does not.
func TestGuardBoundsSizes(t *testing.T) {
	for text, want := range map[string]bool{`{"Width":80,"Height":24}`: true, `}`: false} {
		c := newClient(t)
		c.open(1, errorType)
		c.open(3, resizeType)
		c.open(5, "stdin")
		if !want {
			c.say(3, 0, `{"x":"`)
		}
		for range maxSize {
			c.say(3, 0, text)
			c.say(5, 0, text)
		}
		c.say(3, spdy.DataFlagFin, "")
		_, err := new(bytes.Buffer).ReadFrom(NewGuard(iotest.HalfReader(&c.Buffer), Limits{}))
		if (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzSizes: the library needs no more than the bound for any size that has passed.
func FuzzSizes(f *testing.F) {
	for _, text := range []string{`{"Width":80,"Height":24}` + "\n{}", `{"x":"}\"}`, `{"x":[{},{}]}`, "null 1 [] }{"} {
		f.Add([]byte(text), []byte(text))
	}
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		b := append(head, bytes.Repeat(tail, min(2*maxSize, 1<<20/max(1, len(tail))))...)
		if new(sizes).take(b) != nil {
			return
		}
		checkSizes(t, b)
	})
}

// checkSizes has sizes read as the library does.
func checkSizes(t *testing.T, b []byte) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	for before := int64(0); ; {
		var size struct{ Width, Height uint16 }
		if d.Decode(&size) != nil {
			break
		}
		if n := d.InputOffset() - before; n > maxSize {
			t.Fatalf("a size of %d bytes passes", n)
		}
		before = d.InputOffset()
	}
	// What the decoder has read of a value that does not end.
	if rest := int64(len(b)) - d.InputOffset(); rest > maxSize && json.Valid(append(b[d.InputOffset():], '}')) {
		t.Fatalf("%d bytes of an incomplete size pass", rest)
	}
}
