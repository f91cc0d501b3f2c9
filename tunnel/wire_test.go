package tunnel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func frames() map[string]frame {
	meta := Meta{"a": "1", "b": "", "": "empty key"}
	return map[string]frame{
		"dial":         {kind: kindDial, network: "tcp", addr: "node-1:10250", timeout: 1500 * time.Millisecond, meta: meta},
		"dial, bare":   {kind: kindDial},
		"answer":       {kind: kindAnswer, meta: meta},
		"answer, no":   {kind: kindAnswer, code: Refused, text: "nobody home"},
		"hello":        {kind: kindHello, hello: Hello{Node: "node-1", Instance: 1<<64 - 1, Sequence: 7, Meta: meta}},
		"welcome":      {kind: kindWelcome, welcome: Welcome{Session: 9, interval: 10 * time.Second, timeout: 30 * time.Second, Meta: meta}},
		"goodbye":      {kind: kindGoodbye, code: Replaced, text: "a newer one"},
		"drain":        {kind: kindDrain, code: Draining},
		"ping":         {kind: kindPing, number: 5},
		"pong":         {kind: kindPong, number: 1 << 63},
		"dial, full":   {kind: kindDial, network: strings.Repeat("n", maxNetwork), addr: strings.Repeat("a", maxAddr), timeout: (1<<32 - 1) * time.Millisecond},
		"answer, full": {kind: kindAnswer, code: 255, text: strings.Repeat("t", maxText)},
	}
}

func TestFramesRoundTrip(t *testing.T) {
	for name, want := range frames() {
		t.Run(name, func(t *testing.T) {
			b, err := appendFrame([]byte("before"), want)
			if err != nil {
				t.Fatal(err)
			}
			b = b[len("before"):]
			r := bytes.NewReader(append(b[:len(b):len(b)], "after"...))
			got, err := readFrame(iotest.OneByteReader(r))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("read %+v, %v; want %+v", got, err, want)
			}
			if r.Len() != len("after") {
				t.Errorf("%d bytes left behind the frame", r.Len())
			}
			for n := range b {
				cut := frameReader{r: iotest.TimeoutReader(io.MultiReader(bytes.NewReader(b[:n]), bytes.NewReader(b[n:])))}
				if f, err := cut.next(); f.kind != 0 || !errors.Is(err, iotest.ErrTimeout) {
					t.Fatalf("interrupted: %v, %v", f, err)
				}
				if f, err := cut.next(); err != nil || !reflect.DeepEqual(f, want) {
					t.Fatalf("interrupted after %d of %d bytes: %+v, %v", n, len(b), f, err)
				}
				_, err := readFrame(bytes.NewReader(b[:n]))
				if wantErr := io.ErrUnexpectedEOF; n > 0 && !errors.Is(err, wantErr) || n == 0 && !errors.Is(err, io.EOF) {
					t.Fatalf("stream of %d of %d bytes: %v", n, len(b), err)
				}
			}
		})
	}
}

func TestFrameLimits(t *testing.T) {
	many := make(Meta)
	for i := range maxMeta + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, f := range map[string]frame{
		"network":        {kind: kindDial, network: strings.Repeat("n", maxNetwork+1)},
		"address":        {kind: kindDial, addr: strings.Repeat("a", maxAddr+1)},
		"text":           {kind: kindAnswer, text: strings.Repeat("t", maxText+1)},
		"note":           {kind: kindDrain, text: strings.Repeat("t", maxText+1)},
		"node":           {kind: kindHello, hello: Hello{Node: strings.Repeat("n", maxName+1)}},
		"entries":        {kind: kindWelcome, welcome: Welcome{Meta: many}},
		"metadata key":   {kind: kindAnswer, meta: Meta{strings.Repeat("k", maxMetaKey+1): ""}},
		"metadata value": {kind: kindDial, meta: Meta{"k": strings.Repeat("v", maxMetaText+1)}},
	} {
		if _, err := appendFrame(nil, f); !errors.Is(err, ErrFrame) {
			t.Errorf("%s too long: %v", name, err)
		}
	}
	full := make(Meta)
	for i := range maxMeta {
		full[fmt.Sprintf("%0*d", maxMetaKey, i)] = strings.Repeat("v", maxMetaText)
	}
	if _, err := appendFrame(nil, frame{kind: kindDial, meta: full}); !errors.Is(err, ErrFrame) {
		t.Errorf("body over %d bytes: %v", maxBody, err)
	}
}

func TestMalformedFrames(t *testing.T) {
	for name, b := range map[string]string{
		"version":              "\x02\x06\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
		"kind":                 "\x01\x63\x00\x00",
		"body too long":        "\x01\x01\xff\xff",
		"ping cut short":       "\x01\x06\x00\x04\x00\x00\x00\x00",
		"ping with more":       "\x01\x06\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"string past the end":  "\x01\x08\x00\x04\x07\x00\x05x",
		"keys out of order":    "\x01\x02\x00\x0c\x00\x00\x00\x02\x01b\x00\x00\x01a\x00\x00",
		"key twice":            "\x01\x02\x00\x0c\x00\x00\x00\x02\x01a\x00\x00\x01a\x00\x00",
		"too many entries":     "\x01\x02\x00\x04\x00\x00\x00\xff",
		"text over its limit":  "\x01\x08\x04\x04\x07\x04\x01" + strings.Repeat("t", 1025),
		"HTTP, not a tunnel":   "GET / HTTP/1.1\r\n",
		"TLS where none is":    "\x16\x03\x01\x00\x05hello",
		"SSH server's welcome": "SSH-2.0-x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readFrame(strings.NewReader(b)); !errors.Is(err, ErrFrame) {
				t.Errorf("read: %v", err)
			}
		})
	}
}

// Whatever decodes, encodes to the very same bytes.
func FuzzFrame(f *testing.F) {
	for _, fr := range frames() {
		b, err := appendFrame(nil, fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		fr, err := readFrame(r)
		if err != nil {
			if !errors.Is(err, ErrFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		n := len(b) - r.Len()
		again, err := appendFrame(nil, fr)
		if err != nil || !bytes.Equal(again, b[:n]) {
			t.Fatalf("%x\ndecoded to %+v\nencoded to %x, %v", b[:n], fr, again, err)
		}
	})
}
