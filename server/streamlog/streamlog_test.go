package streamlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A slow file blocks each write until the test continues it, and may fail.
type slow struct {
	lines bytes.Buffer
	turn  chan error
}

func (s *slow) Write(p []byte) (int, error) {
	if err := <-s.turn; err != nil {
		return 0, err
	}
	return s.lines.Write(p)
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	l, err := New(Config{Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	l.Ended(server.Ended{Began: began, Took: 1500 * time.Millisecond, Caller: "jane", Node: "n", Transport: "quic", Target: "n:10250", ToNode: 7, FromNode: 9})
	l.Ended(server.Ended{Caller: strings.Repeat("x", 1000), Target: "a\n\"b", Err: &tunnel.DialError{Addr: "a", Code: tunnel.Refused, Text: "connection refused"}})
	done, cancel := context.WithCancel(t.Context())
	cancel()
	l.Run(done)
	first, rest, _ := strings.Cut(out.String(), "\n")
	if want := `{"time":"2026-01-02T02:04:05Z","user":"jane","node":"n","target":"n:10250","transport":"quic","seconds":1.5,"bytesToNode":7,"bytesFromNode":9,"result":"ok"}`; first != want {
		t.Errorf("%s, want\n%s", first, want)
	}
	var second Line
	if err := json.Unmarshal([]byte(rest), &second); err != nil || strings.Count(rest, "\n") != 1 {
		t.Fatalf("%q, %v", rest, err)
	}
	if second.Result != "refused" || !strings.Contains(second.Error, "connection refused") || len(second.User) > 310 || second.Target != "a\n\"b" {
		t.Errorf("%+v", second)
	}
	l.Ended(server.Ended{})
	if n := testutil.ToFloat64(l.metrics.dropped); n != 1 {
		t.Errorf("%v dropped after the end", n)
	}
}

// A slow or failing file delays no caller, and lost lines are counted.
func TestSlowAndFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &slow{turn: make(chan error)}
		l, err := New(Config{Out: out, Queue: 4})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		l.Ended(server.Ended{})
		synctest.Wait() // the first is being written
		for range 10 {
			l.Ended(server.Ended{})
		}
		if n := testutil.ToFloat64(l.metrics.dropped); n != 6 {
			t.Errorf("%v dropped of 10 with 4 places", n)
		}
		out.turn <- errors.New("no space left on device")
		cancel()
		for range 4 {
			out.turn <- nil
		}
		<-done
		if n := testutil.ToFloat64(l.metrics.dropped); n != 7 {
			t.Errorf("%v dropped, want 7", n)
		}
		if n := strings.Count(out.lines.String(), "\n"); n != 4 {
			t.Errorf("%d lines written, want 4", n)
		}
	})
}

func TestNewChecks(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a log without a file")
	}
}
