package process

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnswering: one file system whose server is away delays what is asked by a second, and nothing
// else is left out. It is asked no second time while the first question cannot be ended, and delays
// nobody then.
func TestAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		asked := make(chan string, 100)
		l := newLooks(func(ctx context.Context, point string) error {
			asked <- point
			switch point {
			case "/slow":
				time.Sleep(time.Second / 2) // the bubble's clock
			case "/killed":
				<-ctx.Done()
				return ctx.Err()
			case "/stuck":
				<-back
			case "/broken":
				return errors.New("stale file handle")
			}
			return nil
		})
		points := []string{"/broken", "/killed", "/slow", "/stuck", "/well"}
		check := func(points, want []string, took time.Duration) {
			t.Helper()
			began := time.Now()
			if got := l.answering(t.Context(), points); !slices.Equal(got, want) || time.Since(began) != took {
				t.Errorf("%q after %v, want %q after %v", got, time.Since(began), want, took)
			}
			synctest.Wait()
		}
		check(points, []string{"/slow", "/well"}, time.Second)
		check([]string{"/stuck", "/well"}, []string{"/well"}, 0)
		if got := len(asked); got != len(points)+1 {
			t.Errorf("asked %d times", got)
		}
		close(back)
		synctest.Wait()
		check([]string{"/stuck"}, []string{"/stuck"}, 0)
		check(nil, nil, 0)
	})
}
