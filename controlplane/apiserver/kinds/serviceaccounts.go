// The kind ServiceAccount. Its tokens have a file of their own.

package kinds

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func serviceAccounts() Kind {
	return of[corev1.ServiceAccount, corev1.ServiceAccountList](corev1.SchemeGroupVersion, "ServiceAccount", "serviceaccounts", "serviceaccount", Kind{
		short: []string{"sa"},
		rules: Rules{Create: create(validateServiceAccount), Update: anew(validateServiceAccount)},
		table: serviceAccountTable,
		more:  moreServiceAccounts,
	})
}

// validateServiceAccount has no rule beyond those for metadata: what it refers
// to may come later or be left out.
func validateServiceAccount(*corev1.ServiceAccount) field.ErrorList { return nil }

func serviceAccountTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), ageColumn()},
		func(o *corev1.ServiceAccount, now time.Time) []any {
			return []any{o.Name, age(o.CreationTimestamp, now)}
		})
}
