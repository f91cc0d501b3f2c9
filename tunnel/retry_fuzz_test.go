package tunnel

import (
	"testing"
	"time"
)

// Whatever a peer asks for, nobody waits longer than the bound, and what we ask for is
// understood.
func FuzzRetryAfter(f *testing.F) {
	f.Add("retry after 5s: too many agents", int64(time.Second))
	f.Add("retry after 9223372036854775807ns: x", int64(1<<63-1))
	f.Add("retry after -5s: x", int64(-1))
	f.Fuzz(func(t *testing.T, text string, after int64) {
		if d, ok := RetryAfter(&Goodbye{Code: Busy, Text: text}); d < 0 || d > maxRetryAfter || !ok && d != 0 {
			t.Errorf("%q: %v, %t", text, d, ok)
		}
		want := min(max(time.Duration(after), 0), maxRetryAfter)
		got, ok := RetryAfter(&Goodbye{Code: Busy, Text: RetryText(time.Duration(after), text)})
		if !ok || got < want || got > min(want+time.Millisecond, maxRetryAfter) {
			t.Errorf("%v with %q: %v, %t", time.Duration(after), text, got, ok)
		}
	})
}
