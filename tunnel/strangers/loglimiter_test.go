package strangers

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// One line a minute about each source, and about few sources in all.
func TestLogLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s LogLimiter
		from := func(b byte) net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, b), Port: 1} }
		lines := func(sources, times int) (n, kept int) {
			for range times {
				for b := range sources {
					if k, now := s.Allow(from(byte(b))); now {
						n, kept = n+1, kept+k
					}
				}
			}
			return n, kept
		}
		if n, kept := lines(2, 100); n != 2 || kept != 0 {
			t.Errorf("%d lines and %d others of two sources", n, kept)
		}
		if n, _ := lines(200, 1); n != 30 {
			t.Errorf("%d more lines of 200 sources", n)
		}
		<-time.After(time.Minute)
		if n, kept := lines(1, 100); n != 1 || kept != 168 {
			t.Errorf("a minute later: %d lines and %d others", n, kept)
		}
	})
}

// TestRepeatLimiter: a burst of lines about each subject, of any number of subjects, then one a
// minute. What is unused is forgotten.
func TestRepeatLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l RepeatLimiter
		lines := func(subject any, times int) (n, kept int) {
			for range times {
				if k, now := l.Allow(subject); now {
					n, kept = n+1, kept+k
				}
			}
			return n, kept
		}
		if n, kept := lines("a", 100); n != repeatBurst || kept != 0 {
			t.Errorf("%d lines and %d others of the first", n, kept)
		}
		for b := range 10_000 {
			if n, _ := lines(b, 2); n != 2 {
				t.Fatalf("%d lines of subject %d", n, b)
			}
		}
		<-time.After(logInterval)
		if n, kept := lines("a", 100); n != 1 || kept != 0 {
			t.Errorf("a minute later: %d lines and %d others", n, kept)
		}
		<-time.After(logInterval)
		if n, kept := lines("b", 1); n != 1 || kept != 99 {
			t.Errorf("of another one: %d lines and %d others", n, kept)
		}
		if n := len(l.full); n != 2 {
			t.Errorf("%d subjects are remembered", n)
		}
		<-time.After(repeatBurst * logInterval)
		if n, _ := lines("a", 100); n != repeatBurst {
			t.Errorf("later: %d lines", n)
		}
	})
}
