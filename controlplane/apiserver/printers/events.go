// The table of events, of both the core and the events.k8s.io group.

package printers

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

func eventTable(gr schema.GroupResource) rest.TableConvertor {
	doc := corev1.Event{}.SwaggerDoc()
	return &table{resource: gr, row: eventRow, columns: columns{
		text("Last Seen", doc["lastTimestamp"]),
		text("Type", doc["type"]),
		text("Reason", doc["reason"]),
		text("Object", doc["involvedObject"]),
		wide(text("Subobject", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"])),
		wide(text("Source", doc["source"])),
		text("Message", doc["message"]),
		wide(text("First Seen", doc["firstTimestamp"])),
		wide(integer("Count", doc["count"])),
		wide(nameColumn()),
	}}
}

func eventRow(o runtime.Object, now time.Time) (metav1.TableRow, bool) {
	switch e := o.(type) {
	case *corev1.Event:
		return metav1.TableRow{Cells: eventCells(e, now)}, true
	case *eventsv1.Event:
		return metav1.TableRow{Cells: eventCells(coreEvent(e), now)}, true
	default:
		return metav1.TableRow{}, false
	}
}

// coreEvent shows an event of the newer group in the older shape. The result
// shares memory with e and is only for reading.
func coreEvent(e *eventsv1.Event) *corev1.Event {
	c := &corev1.Event{
		ObjectMeta:          e.ObjectMeta,
		InvolvedObject:      e.Regarding,
		Reason:              e.Reason,
		Message:             e.Note,
		Source:              e.DeprecatedSource,
		FirstTimestamp:      e.DeprecatedFirstTimestamp,
		LastTimestamp:       e.DeprecatedLastTimestamp,
		Count:               e.DeprecatedCount,
		Type:                e.Type,
		EventTime:           e.EventTime,
		ReportingController: e.ReportingController,
		ReportingInstance:   e.ReportingInstance,
	}
	if e.Series != nil {
		c.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return c
}

func eventCells(e *corev1.Event, now time.Time) []any {
	first := age(e.FirstTimestamp, now)
	if e.FirstTimestamp.IsZero() {
		first = microAge(e.EventTime, now)
	}
	last := age(e.LastTimestamp, now)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last = microAge(e.Series.LastObservedTime, now)
		count = e.Series.Count
	} else if count == 0 {
		count = 1 // an event without a series happened once
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target = fmt.Sprintf("%s/%s", target, e.InvolvedObject.Name)
	}
	return []any{
		last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, eventSource(e),
		strings.TrimSpace(e.Message), first, int64(count), e.Name,
	}
}

func eventSource(e *corev1.Event) string {
	source := or(e.Source.Component, e.ReportingController)
	if host := or(e.Source.Host, e.ReportingInstance); host != "" {
		source += ", " + host
	}
	return source
}
