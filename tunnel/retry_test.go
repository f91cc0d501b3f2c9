package tunnel

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"
)

type asking time.Duration

func (a asking) Error() string             { return "later" }
func (a asking) RetryAfter() time.Duration { return time.Duration(a) }

func TestRetryAfter(t *testing.T) {
	bye := func(after time.Duration) error {
		return fmt.Errorf("greet server: %w", &Goodbye{Code: Busy, Text: "too many agents", Retry: after})
	}
	for name, tt := range map[string]struct {
		err  error
		want time.Duration
	}{
		"nothing":       {nil, 0},
		"another error": {errors.New("retry after 5s: x"), 0},
		"a goodbye":     {bye(5 * time.Second), 5 * time.Second},
		"for ever":      {bye(9999 * time.Hour), time.Hour},
		"the past":      {bye(-5 * time.Second), 0},
		"not said":      {bye(0), 0},
		"a text":        {&Goodbye{Code: Busy, Text: "retry after 5s: x"}, 0},
		"of its own":    {fmt.Errorf("%w: %w", Busy, asking(time.Second)), time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := RetryAfter(tt.err); got != tt.want || ok != (tt.want > 0) {
				t.Errorf("%v, %v", got, ok)
			}
		})
	}
}

// A goodbye says the same by an error code as by a frame: milliseconds, rounded up, and
// an hour at most.
func TestGoodbyeComesAcross(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{
		-time.Second:            0,
		0:                       0,
		time.Nanosecond:         time.Millisecond,
		1500 * time.Microsecond: 2 * time.Millisecond,
		90 * time.Second:        90 * time.Second,
		48 * time.Hour:          time.Hour,
	} {
		sent := GoodbyeOf(fmt.Errorf("%w: %w", Busy, asking(in)))
		b, err := appendFrame(nil, frame{kind: kindGoodbye, code: sent.Code, retry: sent.Retry, text: sent.Text})
		if err != nil {
			t.Fatal(err)
		}
		f, err := readFrame(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		for way, got := range map[string]*Goodbye{
			"error code": GoodbyeBy(sent.ErrorCode(), sent.Text), "frame": f.goodbye(),
		} {
			if after, _ := RetryAfter(got); got.Code != Busy || got.Text != sent.Text || after != want {
				t.Errorf("%v by %s: %+v", in, way, got)
			}
		}
	}
}

// Whatever a peer says by an error code, nobody waits longer than the bound.
func FuzzGoodbyeBy(f *testing.F) {
	f.Add(uint64(Busy) | 5000<<8)
	f.Add(uint64(1<<62 - 1))
	f.Fuzz(func(t *testing.T, code uint64) {
		if g := GoodbyeBy(code, ""); g.Retry < 0 || g.Retry > maxRetryAfter || uint64(g.Code) != code&0xff {
			t.Errorf("%#x: %+v", code, g)
		}
	})
}
