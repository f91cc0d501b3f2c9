// The kind PriorityLevelConfiguration.

package kinds

import (
	"fmt"
	"math"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

func priorityLevelConfigurations() Kind {
	return of[flowcontrolv1.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfigurationList](flowcontrolv1.SchemeGroupVersion, "PriorityLevelConfiguration", "prioritylevelconfigurations", "prioritylevelconfiguration", Kind{
		cluster: true, status: true, generation: true,
		rules:    Rules{create(validatePriorityLevel), anew(validatePriorityLevel), anew(validatePriorityLevelStatus)},
		defaults: defaulting(defaultPriorityLevel),
		table:    priorityLevelTable,
	})
}

func defaultPriorityLevel(o *flowcontrolv1.PriorityLevelConfiguration) {
	if e := o.Spec.Exempt; e != nil {
		setPtr(&e.NominalConcurrencyShares, 0)
		setPtr(&e.LendablePercent, 0)
	}
	l := o.Spec.Limited
	if l == nil {
		return
	}
	setPtr(&l.NominalConcurrencyShares, 30)
	setPtr(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		set(&q.Queues, 64)
		set(&q.HandSize, 8)
		set(&q.QueueLengthLimit, 50)
	}
}

// maxQueues bounds the queues of a priority level.
const maxQueues = 10_000_000

// validatePriorityLevelStatus checks a priority level's status.
func validatePriorityLevelStatus(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	types := make([]string, len(l.Status.Conditions))
	for i, c := range l.Status.Conditions {
		types[i] = string(c.Type)
	}
	return conditionTypes(types)
}

// validatePriorityLevel checks a priority level. Of the mandatory ones, the
// exempt level alone can be changed, and only in what it lends.
func validatePriorityLevel(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	p, s := field.NewPath("spec"), &l.Spec
	exempt := s.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if exempt != (l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) {
		return field.ErrorList{field.Invalid(p.Child("type"), s.Type, "type must be 'Exempt' if and only if name is 'exempt'")}
	}
	fixed := bootstrap.MandatoryPriorityLevelConfigurationCatchAll
	if l.Name == fixed.Name && !equal(l.Spec, fixed.Spec) {
		return field.ErrorList{field.Invalid(p, l.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", l.Name))}
	}
	switch s.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		var errs field.ErrorList
		if s.Limited != nil {
			errs = append(errs, field.Forbidden(p.Child("limited"), "must be nil if the type is not Limited"))
		}
		if s.Exempt != nil {
			errs = append(errs, shares(s.Exempt.NominalConcurrencyShares, s.Exempt.LendablePercent, p.Child("exempt"))...)
		}
		return errs
	case flowcontrolv1.PriorityLevelEnablementLimited:
		var errs field.ErrorList
		if s.Exempt != nil {
			errs = append(errs, field.Forbidden(p.Child("exempt"), "must be nil if the type is Limited"))
		}
		if s.Limited == nil {
			return append(errs, field.Required(p.Child("limited"), "must not be empty when type is Limited"))
		}
		return append(errs, limitedLevel(s.Limited, p.Child("limited"))...)
	default:
		return oneOf(s.Type, p.Child("type"), flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited)
	}
}

// shares checks how much a level gets and lends.
func shares(nominal, lendable *int32, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if nominal != nil && *nominal < 0 {
		errs = append(errs, field.Invalid(p.Child("nominalConcurrencyShares"), *nominal, "must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs, field.Invalid(p.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func limitedLevel(l *flowcontrolv1.LimitedPriorityLevelConfiguration, p *field.Path) field.ErrorList {
	errs := shares(l.NominalConcurrencyShares, l.LendablePercent, p)
	if v := l.BorrowingLimitPercent; v != nil && *v < 0 {
		errs = append(errs, field.Invalid(p.Child("borrowingLimitPercent"), *v, "if specified, must be a non-negative integer"))
	}
	r, p := &l.LimitResponse, p.Child("limitResponse")
	switch r.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		if r.Queuing != nil {
			errs = append(errs, field.Forbidden(p.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))
		}
	case flowcontrolv1.LimitResponseTypeQueue:
		if r.Queuing == nil {
			return append(errs, field.Required(p.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))
		}
		errs = append(errs, queuing(r.Queuing, p.Child("queuing"))...)
	default:
		errs = append(errs, oneOf(r.Type, p.Child("type"), flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject)...)
	}
	return errs
}

func queuing(q *flowcontrolv1.QueuingConfiguration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name  string
		value int32
		limit int32
	}{
		{"queueLengthLimit", q.QueueLengthLimit, math.MaxInt32},
		{"queues", q.Queues, maxQueues},
		{"handSize", q.HandSize, math.MaxInt32},
	} {
		if f.value <= 0 {
			errs = append(errs, field.Invalid(p.Child(f.name), f.value, "must be positive"))
		} else if f.value > f.limit {
			errs = append(errs, field.Invalid(p.Child(f.name), f.value, fmt.Sprintf("must not be greater than %d", f.limit)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	hand, queues := int(q.HandSize), int(q.Queues)
	if hand > queues {
		return field.ErrorList{field.Invalid(p.Child("handSize"), q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", queues))}
	}
	if bits := shufflesharding.RequiredEntropyBits(queues, hand); bits > shufflesharding.MaxHashBits {
		return field.ErrorList{field.Invalid(p.Child("handSize"), q.HandSize, fmt.Sprintf(
			"required entropy bits of deckSize %d and handSize %d should not be greater than %d", queues, hand, shufflesharding.MaxHashBits))}
	}
	return nil
}

func priorityLevelTable(gr schema.GroupResource) rest.TableConvertor {
	limited, queues := flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc(), flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("Type", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
		text("NominalConcurrencyShares", limited["nominalConcurrencyShares"]),
		text("Queues", queues["queues"]),
		text("HandSize", queues["handSize"]),
		text("QueueLengthLimit", queues["queueLengthLimit"]),
		ageColumn(),
	}, func(o *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
		var nominal, count, hand, length any = none, none, none, none
		if l := o.Spec.Limited; l != nil {
			nominal = derefOr(l.NominalConcurrencyShares, 0)
			if q := l.LimitResponse.Queuing; q != nil {
				count, hand, length = q.Queues, q.HandSize, q.QueueLengthLimit
			}
		}
		return []any{
			o.Name, string(o.Spec.Type), fmt.Sprint(nominal), fmt.Sprint(count), fmt.Sprint(hand), fmt.Sprint(length), age(o.CreationTimestamp, now),
		}
	})
}
