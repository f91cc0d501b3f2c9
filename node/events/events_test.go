package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memorySink keeps events, and fails as often as it is told to.
type memorySink struct {
	mu      sync.Mutex
	events  map[string]*corev1.Event
	patches int
	fail    []error
	refuses string // a namespace
	most    int    // bytes of a message; larger ones have to wait for 20 s; 0 means any
	busy    bool   // everything has to wait for 1 s
	tries   int
}

func (s *memorySink) failure() error {
	s.tries++
	if s.busy {
		return apierrors.NewTooManyRequests("not ready", 1)
	}
	if len(s.fail) == 0 {
		return nil
	}
	err := s.fail[0]
	s.fail = s.fail[1:]
	return err
}

func (s *memorySink) Create(_ context.Context, e *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failure(); err != nil {
		return nil, err
	}
	if e.Namespace == s.refuses {
		return nil, apierrors.NewInternalError(errors.New("failed calling webhook"))
	}
	if s.most > 0 && len(e.Message) > s.most {
		return nil, apierrors.NewTooManyRequests("too many bytes", 20)
	}
	if s.events[e.Name] != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
	}
	s.events[e.Name] = e
	return e, nil
}

func (s *memorySink) Patch(_ context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failure(); err != nil {
		return nil, err
	}
	e := s.events[name]
	if e == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, name)
	}
	s.patches++
	e = e.DeepCopy()
	e.Count++
	s.events[name] = e
	return e, nil
}

func run(t *testing.T, f func(r *Recorder, s *memorySink)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &memorySink{events: map[string]*corev1.Event{}}
		r := New(Config{Host: "node-1", Sink: func(ns string) Sink {
			if ns != "ns" && ns != "default" {
				t.Errorf("event in namespace %q", ns)
			}
			return s
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		f(r, s)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

var pod = corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "u"}

func TestEventIsSent(t *testing.T) {
	run(t, func(r *Recorder, s *memorySink) {
		r.Event(pod, corev1.EventTypeWarning, "Failed", "it failed")
		r.Event(corev1.ObjectReference{Kind: "Node", Name: "node-1"}, corev1.EventTypeNormal, "Starting", "here")
		synctest.Wait()
		if len(s.events) != 2 {
			t.Fatalf("%d events", len(s.events))
		}
		for _, e := range s.events {
			if e.Source.Component != "kubelet" || e.Source.Host != "node-1" || e.Count != 1 || e.FirstTimestamp.IsZero() {
				t.Errorf("event %+v", e)
			}
			if want := map[string]string{"Pod": "ns", "Node": "default"}[e.InvolvedObject.Kind]; e.Namespace != want {
				t.Errorf("event about a %s is in namespace %s", e.InvolvedObject.Kind, e.Namespace)
			}
		}
	})
}

func TestRepetitionsAreCounted(t *testing.T) {
	run(t, func(r *Recorder, s *memorySink) {
		for range 5 {
			r.Event(pod, corev1.EventTypeWarning, "BackOff", "again")
		}
		synctest.Wait()
		if len(s.events) != 1 || s.patches != 4 {
			t.Errorf("%d events, %d patches", len(s.events), s.patches)
		}
	})
}

func TestASourceThatSaysTooMuchIsLimited(t *testing.T) {
	run(t, func(r *Recorder, s *memorySink) {
		for i := range 500 {
			r.Event(pod, corev1.EventTypeWarning, "Failed", fmt.Sprint(i))
		}
		synctest.Wait()
		if s.tries > 30 {
			t.Errorf("%d calls for one object in an instant", s.tries)
		}
	})
}

func TestFailuresAreRetried(t *testing.T) {
	refused := errors.New("connection refused")
	for _, tt := range []struct {
		name  string
		fail  []error
		sent  bool
		tries int
	}{
		{"no connection", []error{refused, refused}, true, 3},
		{"too many requests", []error{apierrors.NewTooManyRequests("wait", 1)}, true, 2},
		{"server error", []error{apierrors.NewInternalError(refused)}, true, 2},
		{"invalid", []error{apierrors.NewForbidden(schema.GroupResource{}, "e", refused)}, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(r *Recorder, s *memorySink) {
				s.fail = tt.fail
				r.Event(pod, corev1.EventTypeNormal, "R", "m")
				<-time.After(time.Minute)
				synctest.Wait()
				if (len(s.events) == 1) != tt.sent || s.tries != tt.tries || (r.Dropped() == 0) != tt.sent {
					t.Errorf("%d events, %d tries, %d dropped", len(s.events), s.tries, r.Dropped())
				}
			})
		})
	}
}

// TestOneNamespaceIsRefused: what the webhook of a namespace refuses does not hold up the events of
// others, is tried again, and given up.
func TestOneNamespaceIsRefused(t *testing.T) {
	run(t, func(r *Recorder, s *memorySink) {
		s.refuses = "ns"
		const many = 2 * maxLater
		for i := range many {
			ref := pod
			ref.Name = fmt.Sprint("p", i)
			r.Event(ref, corev1.EventTypeNormal, "R", "m")
		}
		r.Event(corev1.ObjectReference{Kind: "Node", Name: "n"}, corev1.EventTypeNormal, "R", "m")
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.events) != 1 || r.Dropped() != many-maxLater {
			t.Errorf("%d events of others are there, %d dropped", len(s.events), r.Dropped())
		}
		s.mu.Unlock()
		<-time.After(2 * maxTries * retryDelay)
		s.mu.Lock()
		if want := many - maxLater + maxLater*maxTries + 1; s.tries != want || r.Dropped() != many {
			t.Errorf("%d tries, want %d; %d dropped", s.tries, want, r.Dropped())
		}
	})
}

// TestLargeEventsAreRefused: a node that sends too many bytes gets 429 for large events and not for
// small ones. The large do not hold up the small while they are fewer than maxLater, wait as long as
// the server asks, and the log says it once.
func TestLargeEventsAreRefused(t *testing.T) {
	var log bytes.Buffer
	run(t, func(r *Recorder, s *memorySink) {
		r.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		s.most = 1000
		for i := range 24 {
			ref := pod
			ref.Name = fmt.Sprint("p", i)
			r.Event(ref, corev1.EventTypeWarning, "Unhealthy", strings.Repeat("x", 10<<10))
		}
		r.Event(pod, corev1.EventTypeNormal, "Started", "m")
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.events) != 1 || s.tries != 25 {
			t.Errorf("%d events were stored of %d tries, want the small one of 25", len(s.events), s.tries)
		}
		s.most = 0
		s.mu.Unlock()
		<-time.After(19 * time.Second)
		s.mu.Lock()
		if s.tries != 25 {
			t.Errorf("%d tries before the time for which the server asked, want 25", s.tries)
		}
		s.mu.Unlock()
		<-time.After(2 * time.Second)
		s.mu.Lock()
		if len(s.events) != 25 || r.Dropped() != 0 {
			t.Errorf("%d events were stored later, %d dropped; want 25 and 0", len(s.events), r.Dropped())
		}
	})
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings in the log, want 1:\n%s", n, log.String())
	}
}

// TestEverythingIsRefused: while the server answers 429 to everything, events wait in the bounded
// queue, and none that fits is lost before it has been tried maxTries times.
func TestEverythingIsRefused(t *testing.T) {
	run(t, func(r *Recorder, s *memorySink) {
		s.busy = true
		record := func(from, to int) {
			for i := from; i < to; i++ {
				ref := pod
				ref.Name = fmt.Sprint("p", i)
				r.Event(ref, corev1.EventTypeNormal, "R", "m")
			}
			synctest.Wait()
		}
		const most = maxLater + queueLength
		record(0, 300)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := r.Dropped(); n != 0 || s.tries != maxLater {
			t.Errorf("%d dropped after %d tries, want 0 after %d", n, s.tries, maxLater)
		}
		s.mu.Unlock()
		record(300, most+10)
		if n := r.Dropped(); n != 10 {
			t.Errorf("%d dropped, want the 10 beyond the queue's bound", n)
		}
		<-time.After(time.Minute)
		s.mu.Lock()
		if s.tries > maxLater*(1+int(time.Minute/retryDelay)) {
			t.Errorf("%d tries in a minute", s.tries)
		}
		s.busy = false
		s.mu.Unlock()
		<-time.After(2 * retryDelay)
		synctest.Wait()
		s.mu.Lock()
		if len(s.events) != most || r.Dropped() != 10 {
			t.Errorf("%d events were stored later, %d dropped; want %d and 10", len(s.events), r.Dropped(), most)
		}
	})
}

// TestRetriesInOrder: of events that wait, those of an earlier time are sent first.
func TestRetriesInOrder(t *testing.T) {
	now := time.Now()
	var later []attempt
	for _, s := range []int{3, 1, 2, 1} {
		later = put(later, attempt{tries: s, at: now.Add(time.Duration(s) * time.Second)})
	}
	var got []int
	for _, a := range later {
		got = append(got, a.tries)
	}
	if !slices.Equal(got, []int{1, 1, 2, 3}) {
		t.Errorf("the order is %v", got)
	}
}

// TestLongMessagesAreCut: between characters, and bytes that are no characters are cut, too.
func TestLongMessagesAreCut(t *testing.T) {
	r := New(Config{Host: "n"})
	for message, want := range map[string]int{
		strings.Repeat("x", maxMessage):               maxMessage,
		strings.Repeat("x", maxMessage+1):             maxMessage,
		strings.Repeat("x", maxMessage-1) + "€":       maxMessage - 1,
		strings.Repeat("\x80", 2*maxMessage):          maxMessage - utf8.UTFMax,
		strings.Repeat("x", maxMessage-3) + "€" + "y": maxMessage,
	} {
		if got := r.make(pod, corev1.EventTypeNormal, "R", message).Message; len(got) != want || !strings.HasPrefix(message, got) {
			t.Errorf("%d bytes are left of %d, want %d", len(got), len(message), want)
		}
	}
}

func TestFullQueueDropsTheNewest(t *testing.T) {
	s := &memorySink{events: map[string]*corev1.Event{}}
	r := New(Config{Host: "n", Sink: func(string) Sink { return s }})
	for range queueLength + 10 {
		r.Event(pod, corev1.EventTypeNormal, "R", "m") // nobody sends
	}
	if r.Dropped() != 10 {
		t.Errorf("%d dropped, want 10", r.Dropped())
	}
}

func TestNamesFit(t *testing.T) {
	r := New(Config{Host: "n"})
	ref := pod
	ref.Name = strings.Repeat("a", maxNamePrefix-1) + "." + strings.Repeat("b", 33)
	a, b := r.make(ref, "Normal", "R", "m"), r.make(ref, "Normal", "R", "m")
	if len(a.Name) > 253 || strings.Contains(a.Name, "..") {
		t.Errorf("name %q of %d characters", a.Name, len(a.Name))
	}
	if a.Name == b.Name {
		t.Error("two events have one name")
	}
}
