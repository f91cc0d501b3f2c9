package loop

// Tests of what is made of empty fields.

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"
)

func TestDefault(t *testing.T) {
	for had, want := range map[int]int{-1: 7, 0: 7, 1: 1, 9: 9} {
		if Default(&had, 7); had != want {
			t.Errorf("got %d, want %d", had, want)
		}
	}
	var d time.Duration
	if Default(&d, time.Minute); d != time.Minute {
		t.Errorf("got %v", d)
	}
}

func TestLogger(t *testing.T) {
	Logger(nil, "c").Error("nobody hears this")
	var out bytes.Buffer
	Logger(slog.New(slog.NewTextHandler(&out, nil)), "c").Info("m")
	if !strings.HasSuffix(out.String(), " msg=m controller=c\n") {
		t.Errorf("got %q", &out)
	}
}

func TestRecorder(t *testing.T) {
	Recorder(nil).Event(nil, "Normal", "Reason", "nobody hears this")
	r := record.NewFakeRecorder(1)
	Recorder(r).Event(nil, "Normal", "Reason", "m")
	if e := <-r.Events; e != "Normal Reason m" {
		t.Errorf("got %q", e)
	}
}
