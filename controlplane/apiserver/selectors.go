// Selectors in access reviews, as the authorizer wants them.

package apiserver

import (
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// fieldRequirements are the requirements a in terms of package fields, as far as
// they can be said in it: it knows = and != only. What cannot be said is left
// out, with an error, which makes the question broader, never narrower.
func fieldRequirements(a *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if a == nil {
		return nil, nil
	}
	if a.RawSelector != "" {
		s, err := fields.ParseSelector(a.RawSelector)
		if err != nil {
			return nil, err
		}
		return s.Requirements(), nil
	}
	var out fields.Requirements
	var errs []error
	for _, r := range a.Requirements {
		if len(r.Values) != 1 {
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v with %d values", r.Operator, len(r.Values)))
			continue
		}
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
			out = append(out, fields.Requirement{Field: r.Key, Operator: selection.Equals, Value: r.Values[0]})
		case metav1.FieldSelectorOpNotIn:
			out = append(out, fields.Requirement{Field: r.Key, Operator: selection.NotEquals, Value: r.Values[0]})
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
		}
	}
	return out, errors.Join(errs...)
}

func labelRequirements(a *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if a == nil {
		return nil, nil
	}
	if a.RawSelector != "" {
		return labels.ParseToRequirements(a.RawSelector)
	}
	ops := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var errs []error
	for _, r := range a.Requirements {
		op, ok := ops[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		req, err := labels.NewRequirement(r.Key, op, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *req)
	}
	return out, errors.Join(errs...)
}
