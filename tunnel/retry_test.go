package tunnel

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	bye := func(text string) error {
		return fmt.Errorf("greet server: %w", &Goodbye{Code: Busy, Text: text})
	}
	for name, tt := range map[string]struct {
		err  error
		want time.Duration
		ok   bool
	}{
		"nothing":          {nil, 0, false},
		"another error":    {errors.New("retry after 5s: x"), 0, false},
		"a goodbye":        {bye("retry after 5s: too many agents"), 5 * time.Second, true},
		"milliseconds":     {bye("retry after 1.25s: too many agents"), 1250 * time.Millisecond, true},
		"a dial":           {&DialError{Addr: "n:1", Code: Busy, Text: "retry after 1s: full"}, time.Second, true},
		"for ever":         {bye("retry after 9999h: x"), time.Hour, true},
		"the past":         {bye("retry after -5s: x"), 0, false},
		"no time":          {bye("retry after lunch: x"), 0, false},
		"no reason":        {bye("retry after 5s"), 0, false},
		"not at the start": {bye("please retry after 5s: x"), 0, false},
		"nothing said":     {bye("server is shutting down"), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := RetryAfter(tt.err); got != tt.want || ok != tt.ok {
				t.Errorf("%v, %v", got, ok)
			}
		})
	}
}

func TestRetryTextIsUnderstood(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{
		-time.Second:            0,
		0:                       0,
		time.Nanosecond:         time.Millisecond,
		1500 * time.Microsecond: 2 * time.Millisecond,
		90 * time.Second:        90 * time.Second,
		48 * time.Hour:          time.Hour,
	} {
		got, ok := RetryAfter(&Goodbye{Code: Busy, Text: RetryText(in, "too: many")})
		if got != want || !ok {
			t.Errorf("%v comes across as %v, %v", in, got, ok)
		}
	}
}
