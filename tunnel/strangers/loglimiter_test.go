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
