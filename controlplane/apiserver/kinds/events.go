// The kind Event: two API groups over one storage.

package kinds

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func events() Kind {
	return of[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "Event", "events", "event", Kind{
		short: []string{"ev"}, upsert: true, ttl: true, anyFinalizer: true, fields: selecting(eventFields),
		rules:   Rules{Create: create(validateEvent), Update: anew(validateEvent)},
		byGroup: map[string]Rules{eventsv1.GroupName: {Create: create(validateNewerEvent), Update: update(validateNewerEventUpdate)}},
		table:   eventTable,
		more:    moreEvents,
	})
}

// moreEvents: both groups serve the same storage.
func moreEvents(_ *Config, all Storages) {
	all.Add(eventsv1.SchemeGroupVersion, "events", all[corev1.SchemeGroupVersion]["events"])
}

// addEvents makes the core group's Event the internal type of events.k8s.io and
// registers the way between the two: the one pair of kinds that is converted.
func addEvents(s *runtime.Scheme) error {
	internal := schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}
	s.AddKnownTypeWithName(internal.WithKind("Event"), &corev1.Event{})
	s.AddKnownTypeWithName(internal.WithKind("EventList"), &corev1.EventList{})

	for _, c := range []struct {
		in, out any
		fn      conversion.ConversionFunc
	}{
		{(*corev1.Event)(nil), (*eventsv1.Event)(nil), func(in, out any, _ conversion.Scope) error {
			eventFromCore(in.(*corev1.Event), out.(*eventsv1.Event))
			return nil
		}},
		{(*eventsv1.Event)(nil), (*corev1.Event)(nil), func(in, out any, _ conversion.Scope) error {
			eventToCore(in.(*eventsv1.Event), out.(*corev1.Event))
			return nil
		}},
		{(*corev1.EventList)(nil), (*eventsv1.EventList)(nil), func(in, out any, _ conversion.Scope) error {
			eventsFromCore(in.(*corev1.EventList), out.(*eventsv1.EventList))
			return nil
		}},
		{(*eventsv1.EventList)(nil), (*corev1.EventList)(nil), func(in, out any, _ conversion.Scope) error {
			eventsToCore(in.(*eventsv1.EventList), out.(*corev1.EventList))
			return nil
		}},
	} {
		if err := s.AddConversionFunc(c.in, c.out, c.fn); err != nil {
			return fmt.Errorf("convert events: %w", err)
		}
	}
	return s.AddFieldLabelConversionFunc(eventsv1.SchemeGroupVersion.WithKind("Event"), eventLabel)
}

func eventFromCore(in *corev1.Event, out *eventsv1.Event) {
	*out = eventsv1.Event{
		ObjectMeta:               in.ObjectMeta,
		EventTime:                in.EventTime,
		ReportingController:      in.ReportingController,
		ReportingInstance:        in.ReportingInstance,
		Action:                   in.Action,
		Reason:                   in.Reason,
		Regarding:                in.InvolvedObject,
		Related:                  in.Related,
		Note:                     in.Message,
		Type:                     in.Type,
		DeprecatedSource:         in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp,
		DeprecatedLastTimestamp:  in.LastTimestamp,
		DeprecatedCount:          in.Count,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func eventToCore(in *eventsv1.Event, out *corev1.Event) {
	*out = corev1.Event{
		ObjectMeta:          in.ObjectMeta,
		EventTime:           in.EventTime,
		ReportingController: in.ReportingController,
		ReportingInstance:   in.ReportingInstance,
		Action:              in.Action,
		Reason:              in.Reason,
		InvolvedObject:      in.Regarding,
		Related:             in.Related,
		Message:             in.Note,
		Type:                in.Type,
		Source:              in.DeprecatedSource,
		FirstTimestamp:      in.DeprecatedFirstTimestamp,
		LastTimestamp:       in.DeprecatedLastTimestamp,
		Count:               in.DeprecatedCount,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func eventsFromCore(in *corev1.EventList, out *eventsv1.EventList) {
	out.ListMeta = in.ListMeta
	out.Items = make([]eventsv1.Event, len(in.Items))
	for i := range in.Items {
		eventFromCore(&in.Items[i], &out.Items[i])
	}
}

func eventsToCore(in *eventsv1.EventList, out *corev1.EventList) {
	out.ListMeta = in.ListMeta
	out.Items = make([]corev1.Event, len(in.Items))
	for i := range in.Items {
		eventToCore(&in.Items[i], &out.Items[i])
	}
}

// eventLabel is the core group's field label for one of events.k8s.io.
func eventLabel(label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "metadata.namespace", "reason", "type":
		return label, value, nil
	case "reportingController":
		return "reportingComponent", value, nil
	case "regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
		"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath":
		return "involvedObject" + label[len("regarding"):], value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// eventFields are what events can be selected by.
func eventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

// Bounds of an event's texts, in bytes.
const (
	maxEventName = 128
	maxEventNote = 1024
)

const wrongNamespace = "does not match event.namespace"

// validateEvent checks an event that is written by the core group. One with an event time was
// made by the rules of the newer group and is held to them.
func validateEvent(e *corev1.Event) field.ErrorList { return event(e, "reportingComponent") }

// event has the rules of both groups, which name the field of the reporting controller
// differently.
func event(e *corev1.Event, reporting string) field.ErrorList {
	if e.EventTime.IsZero() {
		return eventNamespace(e.Namespace, e.InvolvedObject.Namespace, []string{metav1.NamespaceNone, metav1.NamespaceDefault}, true)
	}
	errs := eventNamespace(e.Namespace, e.InvolvedObject.Namespace, []string{metav1.NamespaceDefault, metav1.NamespaceSystem}, false)
	errs = append(errs, reporter(reporting, e.ReportingController, e.ReportingInstance)...)
	return append(errs, eventTexts(e)...)
}

// eventNamespace wants an event to be where its object is; events about what
// has no namespace are kept in one of the given ones.
func eventNamespace(event, object string, clusterScoped []string, same bool) field.ErrorList {
	p := field.NewPath("involvedObject", "namespace")
	if object == "" {
		for _, ns := range clusterScoped {
			if event == ns {
				return nil
			}
		}
		return field.ErrorList{field.Invalid(p, object, wrongNamespace)}
	}
	if same && event != object {
		return field.ErrorList{field.Invalid(p, object, wrongNamespace)}
	}
	return nil
}

func reporter(name, controller, instance string) field.ErrorList {
	p := field.NewPath(name)
	errs := required(controller, p)
	if controller != "" {
		errs = append(errs, qualifiedName(controller, p)...)
	}
	return append(errs, eventText(instance, maxEventName, "can have at most 128 characters", true, "reportingInstance")...)
}

func eventTexts(e *corev1.Event) field.ErrorList {
	errs := eventText(e.Action, maxEventName, "can have at most 128 characters", true, "action")
	errs = append(errs, eventText(e.Reason, maxEventName, "can have at most 128 characters", true, "reason")...)
	return append(errs, eventText(e.Message, maxEventNote, "can have at most 1024 characters", false, "message")...)
}

func eventText(s string, limit int, msg string, must bool, name string) field.ErrorList {
	p := field.NewPath(name)
	switch {
	case s == "" && must:
		return field.ErrorList{field.Required(p, "")}
	case len(s) > limit:
		return field.ErrorList{field.Invalid(p, "", msg)}
	default:
		return nil
	}
}

// validateNewerEvent checks a new event that is written by events.k8s.io. Kubernetes names the
// fields as the core group does here, too.
func validateNewerEvent(e *corev1.Event) field.ErrorList {
	errs := append(unqualifiedFinalizers(e, nil), event(e, "reportingController")...)
	errs = append(errs, eventSeries(e.Series)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !e.FirstTimestamp.IsZero()},
		{"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0},
		{"source", e.Source != corev1.EventSource{}},
	} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

func eventSeries(s *corev1.EventSeries) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateNewerEventUpdate checks that only the series of an event changes by events.k8s.io.
func validateNewerEventUpdate(e, old *corev1.Event) field.ErrorList {
	errs := append(unqualifiedFinalizers(e, old), event(e, "reportingController")...)
	if !equal(e.Series, old.Series) {
		errs = append(errs, eventSeries(e.Series)...)
	}
	for _, f := range []struct {
		name     string
		new, old any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject},
		{"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count},
		{"type", e.Type, old.Type},
		{"eventTime", e.EventTime, old.EventTime},
		{"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, immutable(f.new, f.old, field.NewPath(f.name))...)
	}
	return errs
}

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
