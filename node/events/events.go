// Package events sends a node's events to the API server.
//
// An event is evidence, not a log: recording one never blocks and never fails,
// repetitions are counted into one object, a source that says too much about one
// object is limited, a long message is cut, and when the server cannot be reached for
// long the newest events are dropped. The counting and limiting are client-go's correlator, the
// same that a kubelet uses, so kubectl shows what its users know.
package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/utils/clock"
)

const (
	queueLength = 1000
	// maxLater is how many events are kept to be sent again while others are sent. With as many, a
	// server that answers 429 gets none from the queue.
	maxLater   = 100
	maxTries   = 12
	retryDelay = 10 * time.Second
	// maxNamePrefix leaves room for the suffix within the 253 characters of a name.
	maxNamePrefix = 220
	// maxMessage bounds a message, in bytes, as events.k8s.io bounds its notes. A message may have
	// what a pod's author wrote, and the server bounds the bytes of all events of a node.
	maxMessage = 1024
	// warnEvery is the least time between two lines in the log that say that events are refused.
	warnEvery = time.Hour
)

// A Sink is the part of the events API that a Recorder needs. The typed client
// of a namespace is one.
type Sink interface {
	Create(ctx context.Context, e *corev1.Event, o metav1.CreateOptions) (*corev1.Event, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*corev1.Event, error)
}

// Config of a Recorder.
type Config struct {
	// Sink returns the client for a namespace. Required.
	Sink func(namespace string) Sink
	// Host and Component are the source of every event: the node's name and
	// kubelet. Host is required; Component is "kubelet" when empty.
	Host, Component string
	Log             *slog.Logger // nil discards
}

// A Recorder queues events and sends them while Run runs.
type Recorder struct {
	cfg        Config
	queue      chan *corev1.Event
	correlator *record.EventCorrelator
	dropped    atomic.Int64
	serial     atomic.Uint64
	warned     time.Time // when it was last logged that events are refused; of Run
}

// New makes a Recorder. It starts nothing.
func New(cfg Config) *Recorder {
	if cfg.Component == "" {
		cfg.Component = "kubelet"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Recorder{
		cfg:        cfg,
		queue:      make(chan *corev1.Event, queueLength),
		correlator: record.NewEventCorrelator(clock.RealClock{}),
	}
}

// Event records that something happened to the object. eventType is
// corev1.EventTypeNormal or corev1.EventTypeWarning. What the message has beyond 1 KiB is left out.
// It returns at once.
func (r *Recorder) Event(ref corev1.ObjectReference, eventType, reason, message string) {
	select {
	case r.queue <- r.make(ref, eventType, reason, message):
	default:
		r.dropped.Add(1)
	}
}

// Dropped returns how many events were not sent because the queue was full or
// the server refused them.
func (r *Recorder) Dropped() int64 { return r.dropped.Load() }

func (r *Recorder) make(ref corev1.ObjectReference, eventType, reason, message string) *corev1.Event {
	now := metav1.Now()
	ns := ref.Namespace
	if ns == "" {
		ns = metav1.NamespaceDefault
	}
	// The name must differ from that of any other event about the object, also
	// of one made in the same instant.
	suffix := strconv.FormatInt(now.UnixNano(), 16) + strconv.FormatUint(r.serial.Add(1)&0xfff, 16)
	name := strings.TrimRight(ref.Name[:min(len(ref.Name), maxNamePrefix)], ".-") + "." + suffix
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: name, Namespace: ns},
		InvolvedObject:      ref,
		Reason:              reason,
		Message:             cut(message),
		Type:                eventType,
		Source:              corev1.EventSource{Component: r.cfg.Component, Host: r.cfg.Host},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		ReportingController: r.cfg.Component,
		ReportingInstance:   r.cfg.Host,
	}
}

// cut returns the first maxMessage bytes of a message, and no part of a character.
func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	n := maxMessage
	for n > maxMessage-utf8.UTFMax && !utf8.RuneStart(message[n]) {
		n--
	}
	return message[:n]
}

// An attempt is an event that is sent again at a time.
type attempt struct {
	result *record.EventCorrelateResult
	tries  int // so far
	at     time.Time
}

// Run sends what is queued until ctx is done. It returns nil then.
func (r *Recorder) Run(ctx context.Context) error {
	var later []attempt // in the order of their times
	busy := false       // whether the newest answer is 429
	for {
		queue := r.queue
		if busy && len(later) >= maxLater {
			queue = nil
		}
		var due <-chan time.Time
		if len(later) > 0 {
			due = time.After(time.Until(later[0].at))
		}
		var a attempt
		select {
		case <-ctx.Done():
			return nil
		case <-due:
			a, later = later[0], later[1:]
		case e := <-queue:
			result, err := r.correlator.EventCorrelate(e)
			if err != nil {
				r.lose(e, fmt.Errorf("correlate event: %w", err))
				continue
			}
			if result.Skip {
				continue
			}
			a.result = result
		}
		err := r.send(ctx, a.result)
		busy = apierrors.IsTooManyRequests(err)
		switch {
		case err == nil || ctx.Err() != nil:
		case a.tries+1 < maxTries && (busy || len(later) < maxLater):
			later = put(later, attempt{a.result, a.tries + 1, time.Now().Add(delayOf(err))})
		default:
			r.lose(a.result.Event, err)
		}
	}
}

// put inserts an attempt in the order of the times.
func put(later []attempt, a attempt) []attempt {
	i, _ := slices.BinarySearchFunc(later, a.at, func(b attempt, at time.Time) int {
		if b.at.After(at) {
			return 1
		}
		return -1
	})
	return slices.Insert(later, i, a)
}

// delayOf is how long an event waits after an error: at least as long as the server asks. If that is
// short it is random, so that events that were refused together are not sent again together.
func delayOf(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return max(retryDelay+rand.N(retryDelay), time.Duration(seconds)*time.Second)
}

// send sends an event, and waits while the server is out of reach or unavailable. It returns an
// error that may pass and may concern this event alone: that of a webhook of its namespace, or 429,
// which a server answers to an event that is too large for the bytes that the node may send, and to
// every request while it has too many of them or has not read the cluster.
func (r *Recorder) send(ctx context.Context, res *record.EventCorrelateResult) error {
	var err error
	for try := range maxTries {
		err = r.write(ctx, res)
		status, answered := errors.AsType[*apierrors.StatusError](err)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case !answered || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err):
		case apierrors.IsTooManyRequests(err):
			r.warn(err)
			return err
		case status.Status().Code >= 500:
			return err
		default:
			r.lose(res.Event, err)
			return nil
		}
		delay := retryDelay
		if try == 0 {
			// Nodes that lost the server together do not come back together.
			delay = rand.N(retryDelay)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
	r.lose(res.Event, err)
	return nil
}

func (r *Recorder) write(ctx context.Context, res *record.EventCorrelateResult) error {
	sink := r.cfg.Sink(res.Event.Namespace)
	var (
		out *corev1.Event
		err error
	)
	repeated := res.Event.Count > 1
	if repeated {
		out, err = sink.Patch(ctx, res.Event.Name, types.StrategicMergePatchType, res.Patch, metav1.PatchOptions{})
	}
	if !repeated || util.IsKeyNotFoundError(err) {
		e := res.Event.DeepCopy()
		e.ResourceVersion = ""
		out, err = sink.Create(ctx, e, metav1.CreateOptions{})
	}
	if err == nil {
		r.correlator.UpdateState(out)
	}
	return err
}

// warn logs that the server refuses events for a while.
func (r *Recorder) warn(err error) {
	if now := time.Now(); r.warned.IsZero() || now.Sub(r.warned) >= warnEvery {
		r.warned = now
		r.cfg.Log.Warn("the API server refuses events of this node for a while: they are sent again later, and some may be lost", "err", err)
	}
}

func (r *Recorder) lose(e *corev1.Event, err error) {
	r.dropped.Add(1)
	r.cfg.Log.Debug("event not recorded", "kind", e.InvolvedObject.Kind, "namespace", e.InvolvedObject.Namespace,
		"name", e.InvolvedObject.Name, "reason", e.Reason, "err", err)
}
