package main

// Tests of how much of what libraries say is in the log.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What clients can cause by the thousand is in the log once a minute for each text, and
// for 32 texts at most. Other errors are all there.
func TestUnhandledErrors(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newQuiet(slog.NewTextHandler(&out, nil), false, nil)).With("logger", "UnhandledError")
	for i := range 1000 {
		log.Error(unhandled, "err", errors.New("http: Handler timeout"))
		log.Error(unhandled, "err", fmt.Errorf("another text %d", i))
		log.Error("other", "err", errors.New("x"))
		log.Error("Unable to authenticate the request", "err", errors.New("invalid bearer token"))
		log.Info("narrated")
		log.Error(chatter[0])
		log.Error(endedWatch, "err", fmt.Errorf("Get \"https://api\": %w", context.Canceled), "type", "*v1.Pod")
	}
	log.Error(endedWatch, "err", errors.New("refused"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	count := map[string]int{}
	for _, l := range lines {
		for _, text := range []string{"Handler timeout", "another text", "bearer token", "msg=other", "narrated", chatter[0], "refused"} {
			if strings.Contains(l, text) {
				count[text]++
			}
		}
	}
	if count["Handler timeout"] != 1 || count["another text"] != 30 || count["bearer token"] != 1 || count["msg=other"] != 1000 || count["refused"] != 1 || len(lines) != 1033 {
		t.Errorf("%v in %d lines", count, len(lines))
	}
}

// An encryption configuration that is broken is said once, though the library says so
// every time it looks; so is another fault, and one that comes again.
func TestBrokenEncryptionIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(newQuiet(slog.NewTextHandler(&out, nil), false, nil))
		for i, step := range []struct {
			fault string // empty means that there is none
			lines int
		}{{"no key", 1}, {"not YAML", 1}, {"no key", 1}, {"", 0}, {"no key", 1}} {
			for range 100 {
				if step.fault != "" {
					log.Error(unhandled, "err", fmt.Errorf("error processing encryption config file /keys: %s", step.fault))
				}
				time.Sleep(encryptionFollow) // the bubble's clock
			}
			if n := strings.Count(out.String(), "\n"); n != step.lines || n > 0 && !strings.Contains(out.String(), "/keys: "+step.fault) {
				t.Errorf("step %d: %s", i, out.String())
			}
			out.Reset()
		}
	})
}

// Of events that are not written the log says what they are about, once a minute for each
// reason, and that it is tried again only where nobody else says what is the matter.
func TestUnwrittenEvents(t *testing.T) {
	refused := &url.Error{Op: "Post", URL: "https://api", Err: errors.New("refused")}
	event := &corev1.Event{Reason: "TunnelDown", Message: "a long story", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}}
	for beside, want := range map[*atomic.Bool]int{nil: 2, new(atomic.Bool): 1} {
		var out bytes.Buffer
		log := slog.New(newQuiet(slog.NewTextHandler(&out, nil), false, beside))
		for range 100 {
			log.Error("Unable to write event (may retry after sleeping)", "err", refused, "event", event)
			log.Error("Unable to write event (retry limit exceeded!)", "event", event)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != want {
			t.Errorf("beside=%v: %d lines, want %d:\n%.2000s", beside, len(lines), want, out.String())
		}
		for _, line := range lines {
			if !strings.Contains(line, `reason=TunnelDown object="Pod ns/p"`) || strings.Contains(line, "story") {
				t.Errorf("beside=%v: %s", beside, line)
			}
		}
	}
}

// TestFailedWatches: a hub leaves it to its look at the API server to say why watches fail. If that
// says nothing, it is said once a minute that they do.
func TestFailedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		told := new(atomic.Bool)
		log := slog.New(newQuiet(slog.NewTextHandler(&out, nil), false, told))
		fail := func() (lines int) {
			out.Reset()
			for range 60 {
				log.Error(endedWatch, "err", &url.Error{Op: "Get", URL: "https://api", Err: errors.New("reset")})
				time.Sleep(time.Second) // the bubble's clock
			}
			return strings.Count(out.String(), "\n")
		}
		if n := fail(); n != 0 {
			t.Errorf("%d lines in the first minute", n)
		}
		if n := fail(); n != 1 {
			t.Errorf("%d lines in the second minute:\n%s", n, out.String())
		}
		told.Store(true)
		if n := fail(); n != 0 {
			t.Errorf("%d lines after it was told why", n)
		}
	})
}
