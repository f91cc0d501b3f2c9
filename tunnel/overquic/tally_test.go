package overquic

import (
	"bytes"
	"testing"
	"time"
)

func TestWords(t *testing.T) {
	for _, w := range []word{
		{kind: kindAccepted},
		{kind: kindMoved},
		{kind: kindHello, window: time.Minute, interval: 14 * time.Second},
		{kind: kindHello, interval: time.Millisecond},
		{kind: kindBeat, interval: maxInterval},
	} {
		b := appendWord(nil, w)
		for i := range b {
			if _, size, err := decodeWord(b[:i]); size != 0 || err != nil {
				t.Errorf("%+v, %d of %d bytes: size %d, %v", w, i, len(b), size, err)
			}
		}
		got, size, err := decodeWord(append(b, 0xff))
		if got != w || size != len(b) || err != nil {
			t.Errorf("%+v came back as %+v, size %d, %v", w, got, size, err)
		}
	}
	for _, b := range [][]byte{{kindHurry}, {kindDeaf}, {6}, {kindHello, 0, 0, 0, 1, 0, 0, 0, 0}} {
		if _, _, err := decodeWord(b); err == nil {
			t.Errorf("%v means something", b)
		}
	}
}

func FuzzWord(f *testing.F) {
	f.Add(appendWord(nil, word{kind: kindHello, window: time.Minute, interval: time.Second}))
	f.Add(appendWord(appendWord(nil, word{kind: kindAccepted}), word{kind: kindBeat, interval: time.Second}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			w, size, err := decodeWord(b)
			if err != nil || size == 0 {
				return
			}
			again := appendWord(nil, w)
			if len(again) != size || w.kind != kindBeat && !bytes.Equal(again, b[:size]) {
				t.Fatalf("%v came back as %v", b[:size], again)
			}
			b = b[size:]
		}
	})
}
