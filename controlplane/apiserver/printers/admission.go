// Tables of webhooks and policies.

package printers

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

func admissionTable(gr schema.GroupResource) rest.TableConvertor {
	webhooks := integer("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration")
	switch gr.Resource {
	case "validatingwebhookconfigurations":
		return newTable(gr, columns{nameColumn(), webhooks, ageColumn()}, func(o *admissionv1.ValidatingWebhookConfiguration, now time.Time) []any {
			return []any{o.Name, int64(len(o.Webhooks)), age(o.CreationTimestamp, now)}
		})
	case "mutatingwebhookconfigurations":
		return newTable(gr, columns{nameColumn(), webhooks, ageColumn()}, func(o *admissionv1.MutatingWebhookConfiguration, now time.Time) []any {
			return []any{o.Name, int64(len(o.Webhooks)), age(o.CreationTimestamp, now)}
		})
	case "validatingadmissionpolicies":
		return policyTable(gr)
	case "validatingadmissionpolicybindings":
		return policyBindingTable(gr)
	default:
		return nil
	}
}

func policyTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		integer("Validations", "Validations indicates the number of validation rules defined in this configuration"),
		text("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
		ageColumn(),
	}, func(o *admissionv1.ValidatingAdmissionPolicy, now time.Time) []any {
		kind := "<unset>"
		if k := o.Spec.ParamKind; k != nil {
			kind = k.APIVersion + "/" + k.Kind
		}
		return []any{o.Name, int64(len(o.Spec.Validations)), kind, age(o.CreationTimestamp, now)}
	})
}

func policyBindingTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to"),
		text("ParamRef", "ParamRef indicates the param resource which sets the configuration param"),
		ageColumn(),
	}, func(o *admissionv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
		ref := "<unset>"
		if r := o.Spec.ParamRef; r != nil {
			switch {
			case r.Name == "":
				ref = "*"
			case r.Namespace == "":
				ref = r.Name
			default:
				ref = r.Namespace + "/" + r.Name
			}
		}
		return []any{o.Name, o.Spec.PolicyName, ref, age(o.CreationTimestamp, now)}
	})
}
