package kubelet

// Tests of what bounds the wait for an answer.

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// awaiting is both ends of a connection that awaits an answer.
func awaiting(ctx context.Context, t *testing.T) (near, far net.Conn) {
	t.Helper()
	c, far := net.Pipe()
	near, err := answered(func(context.Context, string, string) (net.Conn, error) { return c, nil }, answerTimeout)(ctx, "tcp", "node-1:10250")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(near.Close(), far.Close()) })
	return near, far
}

// TestUpgradedConnectionIsNotBounded: an answer that upgrades lifts the bounds, in however
// many pieces it comes, and if its lines end as simple servers end them.
func TestUpgradedConnectionIsNotBounded(t *testing.T) {
	for _, header := range []string{kubeletHeader, strings.ReplaceAll(kubeletHeader, "\r\n", "\n")} {
		testNotBounded(t, header)
	}
}

func testNotBounded(t *testing.T, header string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		near, far := awaiting(ctx, t)
		go func() {
			for _, piece := range strings.SplitAfter(header, "\r") {
				_, _ = io.WriteString(far, piece) // the reader says what is missing
			}
			time.Sleep(time.Hour) // the bubble's clock
			leave()
			_, _ = io.WriteString(far, "late")
			_ = far.Close()
		}()
		if got, err := io.ReadAll(near); err != nil || string(got) != header+"late" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestAnswerThatDoesNotUpgradeIsBounded: its body is to end as well.
func TestAnswerThatDoesNotUpgradeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := awaiting(t.Context(), t)
		const answer = "HTTP/1.1 500 Internal Server Error\r\n\r\nwhy"
		go func() { _, _ = io.WriteString(far, answer) }()
		if got, err := io.ReadAll(near); !errors.Is(err, os.ErrDeadlineExceeded) || string(got) != answer {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestHeaderIsBounded: no server fills our memory with a header without an end.
func TestHeaderIsBounded(t *testing.T) {
	near, far := awaiting(t.Context(), t)
	go func() {
		for err := error(nil); err == nil; {
			_, err = io.WriteString(far, strings.Repeat("x", 64<<10))
		}
	}()
	n, err := io.Copy(io.Discard, near)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || n > http.DefaultMaxHeaderBytes {
		t.Errorf("%d bytes, %v", n, err)
	}
	_ = near.Close()
}
