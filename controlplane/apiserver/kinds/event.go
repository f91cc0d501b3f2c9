// Rules for events of both groups.

package kinds

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of an event's texts, in bytes.
const (
	maxEventName = 128
	maxEventNote = 1024
)

const wrongNamespace = "does not match event.namespace"

// ValidateEvent checks an event of the core group. One with an event time was
// made by the rules of the newer group and is held to them.
func ValidateEvent(e *corev1.Event) field.ErrorList {
	if e.EventTime.IsZero() {
		return eventNamespace(e.Namespace, e.InvolvedObject.Namespace, []string{metav1.NamespaceNone, metav1.NamespaceDefault}, true)
	}
	errs := eventNamespace(e.Namespace, e.InvolvedObject.Namespace, []string{metav1.NamespaceDefault, metav1.NamespaceSystem}, false)
	errs = append(errs, reporter("reportingComponent", e.ReportingController, e.ReportingInstance)...)
	return append(errs, eventTexts(e.Action, e.Reason, e.Message, "message")...)
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

func eventTexts(action, reason, note, noteField string) field.ErrorList {
	errs := eventText(action, maxEventName, "can have at most 128 characters", true, "action")
	errs = append(errs, eventText(reason, maxEventName, "can have at most 128 characters", true, "reason")...)
	return append(errs, eventText(note, maxEventNote, "can have at most 1024 characters", false, noteField)...)
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

// ValidateEventsEvent checks an event of the group events.k8s.io.
func ValidateEventsEvent(e *eventsv1.Event) field.ErrorList {
	errs := eventNamespace(e.Namespace, e.Regarding.Namespace, []string{metav1.NamespaceDefault, metav1.NamespaceSystem}, false)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	errs = append(errs, reporter("reportingController", e.ReportingController, e.ReportingInstance)...)
	errs = append(errs, eventTexts(e.Action, e.Reason, e.Note, "note")...)
	errs = append(errs, oneOf(e.Type, field.NewPath("type"), corev1.EventTypeNormal, corev1.EventTypeWarning)...)
	errs = append(errs, unsetDeprecated(e)...)
	if s := e.Series; s != nil {
		if s.Count < 2 {
			errs = append(errs, field.Invalid(field.NewPath("series", "count"), s.Count, "should be at least 2"))
		}
		if s.LastObservedTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("series", "lastObservedTime"), ""))
		}
	}
	return errs
}

// unsetDeprecated refuses the fields of the older group in the newer one.
func unsetDeprecated(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"deprecatedSource", e.DeprecatedSource != corev1.EventSource{}},
		{"deprecatedFirstTimestamp", !e.DeprecatedFirstTimestamp.IsZero()},
		{"deprecatedLastTimestamp", !e.DeprecatedLastTimestamp.IsZero()},
		{"deprecatedCount", e.DeprecatedCount != 0},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(field.NewPath(f.name), "must not be set"))
		}
	}
	return errs
}

// ValidateEventsEventUpdate checks that only the series of an event changes.
func ValidateEventsEventUpdate(e, old *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name     string
		new, old any
	}{
		{"regarding", e.Regarding, old.Regarding},
		{"reason", e.Reason, old.Reason},
		{"note", e.Note, old.Note},
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
