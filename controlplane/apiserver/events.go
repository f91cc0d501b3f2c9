// Events: two API groups over one storage.

package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
