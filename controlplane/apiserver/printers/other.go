// Tables of the small groups.

package printers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/registry/rest"
)

func otherTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr {
	case schema.GroupResource{Group: "events.k8s.io", Resource: "events"}:
		return eventTable(gr)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return newTable(gr, columns{nameColumn(), text("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]), ageColumn()},
			func(o *coordinationv1.Lease, now time.Time) []any {
				return []any{o.Name, deref(o.Spec.HolderIdentity, ""), age(o.CreationTimestamp, now)}
			})
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}:
		return csrTable(gr)
	case schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}:
		return disruptionBudgetTable(gr)
	case schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:
		return priorityClassTable(gr)
	case schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}:
		return flowSchemaTable(gr)
	case schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}:
		return priorityLevelTable(gr)
	case schema.GroupResource{Group: "autoscaling", Resource: "scales"}:
		return newTable(gr, columns{
			nameColumn(), integer("Desired", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
			integer("Available", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]), ageColumn(),
		}, func(o *autoscalingv1.Scale, now time.Time) []any {
			return []any{o.Name, int64(o.Spec.Replicas), int64(o.Status.Replicas), age(o.CreationTimestamp, now)}
		})
	case schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}:
		return newTable(gr, columns{nameColumn(), text("Handler", nodev1.RuntimeClass{}.SwaggerDoc()["handler"]), ageColumn()},
			func(o *nodev1.RuntimeClass, now time.Time) []any {
				return []any{o.Name, o.Handler, age(o.CreationTimestamp, now)}
			})
	default:
		return nil
	}
}

func csrTable(gr schema.GroupResource) rest.TableConvertor {
	doc := certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		ageColumn(),
		text("SignerName", doc["signerName"]),
		text("Requestor", doc["username"]),
		text("RequestedDuration", doc["expirationSeconds"]),
		text("Condition", certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
	}, func(o *certificatesv1.CertificateSigningRequest, now time.Time) []any {
		requested := none
		if s := o.Spec.ExpirationSeconds; s != nil {
			requested = duration.HumanDuration(time.Duration(*s) * time.Second)
		}
		return []any{o.Name, age(o.CreationTimestamp, now), or(o.Spec.SignerName, none), o.Spec.Username, requested, csrCondition(o)}
	})
}

// csrCondition says what was decided and what came of it. A denial outweighs
// an approval.
func csrCondition(o *certificatesv1.CertificateSigningRequest) string {
	has := func(t certificatesv1.RequestConditionType) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
	}
	s := "Pending"
	if has(certificatesv1.CertificateDenied) {
		s = "Denied"
	} else if has(certificatesv1.CertificateApproved) {
		s = "Approved"
	}
	if has(certificatesv1.CertificateFailed) {
		s += ",Failed"
	}
	if len(o.Status.Certificate) > 0 {
		s += ",Issued"
	}
	return s
}

func disruptionBudgetTable(gr schema.GroupResource) rest.TableConvertor {
	doc := policyv1.PodDisruptionBudgetSpec{}.SwaggerDoc()
	cell := func(v *intstr.IntOrString) string {
		if v == nil {
			return "N/A"
		}
		return v.String()
	}
	return newTable(gr, columns{
		nameColumn(),
		text("Min Available", doc["minAvailable"]),
		text("Max Unavailable", doc["maxUnavailable"]),
		integer("Allowed Disruptions", policyv1.PodDisruptionBudgetStatus{}.SwaggerDoc()["disruptionsAllowed"]),
		ageColumn(),
	}, func(o *policyv1.PodDisruptionBudget, now time.Time) []any {
		return []any{
			o.Name, cell(o.Spec.MinAvailable), cell(o.Spec.MaxUnavailable), int64(o.Status.DisruptionsAllowed), age(o.CreationTimestamp, now),
		}
	})
}

func priorityClassTable(gr schema.GroupResource) rest.TableConvertor {
	doc := schedulingv1.PriorityClass{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		integer("Value", doc["value"]),
		boolean("Global-Default", doc["globalDefault"]),
		ageColumn(),
		text("PreemptionPolicy", doc["preemptionPolicy"]),
	}, func(o *schedulingv1.PriorityClass, now time.Time) []any {
		return []any{
			o.Name, int64(o.Value), o.GlobalDefault, age(o.CreationTimestamp, now),
			string(deref(o.PreemptionPolicy, corev1.PreemptLowerPriority)),
		}
	})
}

func flowSchemaTable(gr schema.GroupResource) rest.TableConvertor {
	doc := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("PriorityLevel", doc["priorityLevelConfiguration"]),
		integer("MatchingPrecedence", doc["matchingPrecedence"]),
		text("DistinguisherMethod", doc["distinguisherMethod"]),
		ageColumn(),
		text("MissingPL", "references a broken or non-existent PriorityLevelConfiguration"),
	}, func(o *flowcontrolv1.FlowSchema, now time.Time) []any {
		method, missing := none, "?"
		if d := o.Spec.DistinguisherMethod; d != nil {
			method = string(d.Type)
		}
		for _, c := range o.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
				missing = string(c.Status)
			}
		}
		return []any{
			o.Name, o.Spec.PriorityLevelConfiguration.Name, int64(o.Spec.MatchingPrecedence), method, age(o.CreationTimestamp, now), missing,
		}
	})
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
			nominal = deref(l.NominalConcurrencyShares, 0)
			if q := l.LimitResponse.Queuing; q != nil {
				count, hand, length = q.Queues, q.HandSize, q.QueueLengthLimit
			}
		} else if e := o.Spec.Exempt; e != nil {
			nominal = deref(e.NominalConcurrencyShares, 0)
		}
		return []any{
			o.Name, string(o.Spec.Type), fmt.Sprint(nominal), fmt.Sprint(count), fmt.Sprint(hand), fmt.Sprint(length), age(o.CreationTimestamp, now),
		}
	})
}

func rbacTable(gr schema.GroupResource) rest.TableConvertor {
	bindingColumns := columns{
		nameColumn(),
		text("Role", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		ageColumn(),
		wide(text("Users", "Users in the roleBinding")),
		wide(text("Groups", "Groups in the roleBinding")),
		wide(text("ServiceAccounts", "ServiceAccounts in the roleBinding")),
	}
	switch gr.Resource {
	case "rolebindings":
		return newTable(gr, bindingColumns, func(o *rbacv1.RoleBinding, now time.Time) []any {
			users, groups, accounts := subjectCells(o.Subjects)
			return []any{o.Name, o.RoleRef.Kind + "/" + o.RoleRef.Name, age(o.CreationTimestamp, now), users, groups, accounts}
		})
	case "clusterrolebindings":
		return newTable(gr, bindingColumns, func(o *rbacv1.ClusterRoleBinding, now time.Time) []any {
			users, groups, accounts := subjectCells(o.Subjects)
			return []any{o.Name, o.RoleRef.Kind + "/" + o.RoleRef.Name, age(o.CreationTimestamp, now), users, groups, accounts}
		})
	default:
		return nil
	}
}

// subjectCells lists users, groups and service accounts.
func subjectCells(subjects []rbacv1.Subject) (string, string, string) {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")
}
