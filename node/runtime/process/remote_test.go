package process

import (
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnswering: one file system whose server is away delays what is asked by a second, and nothing
// else is left out.
func TestAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		stat := func(path string) (os.FileInfo, error) {
			switch path {
			case "/slow":
				time.Sleep(time.Second / 2) // the bubble's clock
			case "/away":
				<-back
			case "/broken":
				return nil, errors.New("stale file handle")
			}
			return nil, nil
		}
		began := time.Now()
		got := answering([]string{"/away", "/broken", "/slow", "/well"}, time.Second, stat)
		slices.Sort(got)
		if want := []string{"/slow", "/well"}; !slices.Equal(got, want) || time.Since(began) != time.Second {
			t.Errorf("%q after %v, want %q", got, time.Since(began), want)
		}
		close(back)
		if got := answering(nil, time.Second, stat); len(got) != 0 {
			t.Errorf("of none %q answer", got)
		}
	})
}
