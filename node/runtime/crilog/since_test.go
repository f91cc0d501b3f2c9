package crilog

// Tests of Options.Since, which says where reading begins.

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// setBack is a log whose writer's clock was set back by eight seconds after its second line.
const setBack = "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:10Z stdout F two\n" +
	"2026-01-01T00:00:02Z stdout F three\n2026-01-01T00:00:03Z stdout F four\n"

func second(n int) time.Time { return time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC) }

// TestSinceIsTheBeginning: no line after the first is left out for its time.
func TestSinceIsTheBeginning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, setBack)
	for since, want := range map[int]string{1: "one\ntwo\nthree\nfour\n", 10: "two\nthree\nfour\n", 11: ""} {
		if got := read(t, path, Options{Since: second(since)}); got != want {
			t.Errorf("since second %d: %q, want %q", since, got, want)
		}
	}
}

// TestSinceInFileBeforeClockWasSetBack: a log that is followed again goes on after a line in
// a file that was last written at an earlier time.
func TestSinceInFileBeforeClockWasSetBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, rotatedName(path, 1), setBack)
	write(t, path, "2026-01-01T00:00:04Z stdout F five\n")
	if err := os.Chtimes(rotatedName(path, 1), second(3), second(3)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	close(ended)
	if got, want := read(t, path, Options{Since: second(10), Follow: ended}), "two\nthree\nfour\nfive\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestFollowedLinesAreShownWhateverTheirTime: what is written after the request is new.
func TestFollowedLinesAreShownWhateverTheirTime(t *testing.T) {
	w := create(t, 0, 0)
	out := w.Stream(Stdout)
	_, _ = out.Write([]byte("old\n"))
	ended, got := make(chan struct{}), &progress{more: make(chan struct{}, 1)}
	read := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		failed <- Read(t.Context(), w.path, Options{Since: time.Now().Add(time.Hour), Follow: ended}, got, func() {
			select {
			case read <- struct{}{}:
			default:
			}
		})
	}()
	<-read // all that there was
	_, _ = out.Write([]byte("new\n"))
	close(ended)
	if err := <-failed; err != nil || got.b.String() != "new\n" {
		t.Errorf("%q, %v", got.b.String(), err)
	}
}
