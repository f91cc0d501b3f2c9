// The kind Lease.

package kinds

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func leases() Kind {
	return of[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "Lease", "leases", "lease", Kind{
		conditional: true, upsert: true, anyFinalizer: true, onCreate: creating(newLease), onUpdate: updating(updateLease),
		rules: Rules{Create: create(validateLease), Update: anew(validateLease)},
		table: leaseTable,
	})
}

// newLease drops what is for electing leaders by choice, which is off by default in Kubernetes.
func newLease(ctx context.Context, l *coordinationv1.Lease) {
	updateLease(ctx, l, &coordinationv1.Lease{})
}

// updateLease keeps it where it was stored.
func updateLease(_ context.Context, l, old *coordinationv1.Lease) {
	if old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
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
	}
	if deref(l.Spec.PreferredHolder) != "" && deref(l.Spec.Strategy) == "" {
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
