package controlplane

// How events of controllers get to the API: through one queue, and from there by the client
// of the controller that made them, so that the audit log tells whose they are.

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// events are those of the controllers of one term. Whoever made it shuts it down.
type events struct {
	record.EventBroadcaster

	mu    sync.RWMutex
	sinks map[string]record.EventSink // guarded by mu: by component
}

var _ record.EventSink = (*events)(nil)

// newEvents takes events to the API until it is shut down: also what controllers, and the one
// who led them, say as they end.
func newEvents() *events {
	e := &events{EventBroadcaster: record.NewBroadcaster(), sinks: make(map[string]record.EventSink)}
	e.StartRecordingToSink(e)
	return e
}

// recorder returns a recorder of events that come from component and are written by client.
func (e *events) recorder(component string, client kubernetes.Interface) record.EventRecorder {
	e.mu.Lock()
	e.sinks[component] = &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")}
	e.mu.Unlock()
	return e.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// by is where an event of a recorder goes.
func (e *events) by(event *corev1.Event) record.EventSink {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.sinks[event.Source.Component]
}

// Create implements record.EventSink.
func (e *events) Create(event *corev1.Event) (*corev1.Event, error) { return e.by(event).Create(event) }

// Update implements record.EventSink.
func (e *events) Update(event *corev1.Event) (*corev1.Event, error) { return e.by(event).Update(event) }

// Patch implements record.EventSink.
func (e *events) Patch(old *corev1.Event, data []byte) (*corev1.Event, error) {
	return e.by(old).Patch(old, data)
}
