// The kind Lease.

package kinds

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func leases() Kind {
	return of[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "Lease", "leases", "lease", Kind{
		conditional: true, upsert: true, anyFinalizer: true,
		rules: Rules{Create: create(validateLease), Update: anew(validateLease)},
		table: leaseTable,
	})
}

// validateLease checks a lease, which may be held by nobody but not for no time.
func validateLease(l *coordinationv1.Lease) field.ErrorList {
	p := field.NewPath("spec")
	var errs field.ErrorList
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(p.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if t := l.Spec.LeaseTransitions; t != nil && *t < 0 {
		errs = append(errs, field.Invalid(p.Child("leaseTransitions"), *t, "must be greater than or equal to 0"))
	}
	if l.Spec.Strategy != nil {
		errs = append(errs, qualifiedName(string(*l.Spec.Strategy), p.Child("strategy"))...)
	} else if deref(l.Spec.PreferredHolder) != "" {
		errs = append(errs, field.Forbidden(p.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

func leaseTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]), ageColumn()},
		func(o *coordinationv1.Lease, now time.Time) []any {
			return []any{o.Name, derefOr(o.Spec.HolderIdentity, ""), age(o.CreationTimestamp, now)}
		})
}
