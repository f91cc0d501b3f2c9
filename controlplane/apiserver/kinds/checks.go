// Checks of single values.

package kinds

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

func wrongType(obj runtime.Object) field.ErrorList {
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("validate: unexpected object %T", obj))}
}

// messages makes an error of each of msgs.
func messages(p *field.Path, value any, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range msgs {
		errs = append(errs, field.Invalid(p, value, m))
	}
	return errs
}

func dnsLabel(value string, p *field.Path) field.ErrorList {
	return messages(p, value, validation.IsDNS1123Label(value))
}

func dnsSubdomain(value string, p *field.Path) field.ErrorList {
	return messages(p, value, validation.IsDNS1123Subdomain(value))
}

func qualifiedName(value string, p *field.Path) field.ErrorList {
	return messages(p, value, validation.IsQualifiedName(value))
}

// required reports an empty value.
func required(value string, p *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return nil
}

// oneOf reports a value that is missing or not among those allowed.
func oneOf[T ~string](value T, p *field.Path, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return optionalOneOf(&value, p, allowed...)
}

// optionalOneOf is oneOf for a field that may be left out.
func optionalOneOf[T ~string](value *T, p *field.Path, allowed ...T) field.ErrorList {
	if value == nil || slices.Contains(allowed, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(p, *value, allowed)}
}

func nonNegative[T int32 | int64 | int](v T, p *field.Path) field.ErrorList {
	return apimachineryvalidation.ValidateNonnegativeField(int64(v), p)
}

// optionalNonNegative is nonNegative for a field that may be left out.
func optionalNonNegative[T int32 | int64](v *T, p *field.Path) field.ErrorList {
	if v == nil {
		return nil
	}
	return nonNegative(*v, p)
}

func immutable(value, old any, p *field.Path) field.ErrorList {
	return apimachineryvalidation.ValidateImmutableField(value, old, p)
}

func equal(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }

// portNumber wants a port between 1 and 65535.
func portNumber(port int32, p *field.Path) field.ErrorList {
	return messages(p, port, validation.IsValidPortNum(int(port)))
}

// portNumberOrName is for a port that may also be the name of a container's port.
func portNumberOrName(port intstr.IntOrString, p *field.Path) field.ErrorList {
	if port.Type == intstr.String {
		return messages(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return portNumber(port.IntVal, p)
}

func protocol(value corev1.Protocol, p *field.Path) field.ErrorList {
	return oneOf(value, p, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
}

// ip wants an address that all programs read as the same. Others may stay where they are stored.
func ip(value string, p *field.Path) field.ErrorList {
	if errs := anyIP(value, p); len(errs) > 0 {
		return errs
	}
	return younger(validation.IsValidIPForLegacyField(p, value, true, nil)...)
}

// anyIP wants an address, though another program may read another one.
func anyIP(value string, p *field.Path) field.ErrorList {
	return validation.IsValidIPForLegacyField(p, value, false, nil)
}

// cidr is for networks what ip is for addresses. A network has no address of a host in it.
func cidr(value string, p *field.Path) field.ErrorList {
	if errs := validation.IsValidCIDRForLegacyField(p, value, false, nil); len(errs) > 0 {
		return errs
	}
	return younger(validation.IsValidCIDRForLegacyField(p, value, true, nil)...)
}

// unicastIP refuses the addresses that no remote endpoint can have.
func unicastIP(value string, p *field.Path) field.ErrorList {
	a := netutils.ParseIPSloppy(value)
	msg := ""
	switch {
	case a == nil:
		msg = "must be a valid IP address"
	case a.IsUnspecified():
		msg = "may not be unspecified (" + value + ")"
	case a.IsLoopback():
		msg = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		msg = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsLinkLocalMulticast():
		msg = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(p, value, msg)}
}

// Bounds of what is compared with all objects. Controllers and the scheduler read a selector at
// each change of an object: one of a hundred thousand values would have all others wait. What was
// stored before there were these bounds may stay, see ratchet.
const (
	maxSelector    = 16 << 10 // bytes of a selector, or of a pod's node affinity, as it is encoded
	maxTolerations = 1000
)

func labelSelector(s *metav1.LabelSelector, p *field.Path) field.ErrorList {
	if n := s.Size(); n > maxSelector {
		return beyondBound(field.TooLong(p, "", maxSelector), s, n)
	}
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, p)
}

func validLabels(m map[string]string, p *field.Path) field.ErrorList {
	return metav1validation.ValidateLabels(m, p)
}

func labelName(value string, p *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelName(value, p)
}

// intOrPercent wants a number that is not negative, or a percentage.
func intOrPercent(v intstr.IntOrString, p *field.Path) field.ErrorList {
	if v.Type == intstr.String {
		return messages(p, v, validation.IsValidPercent(v.StrVal))
	}
	return nonNegative(v.IntVal, p)
}

// percent returns the number of a percentage.
func percent(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n := 0
	if _, err := fmt.Sscanf(v.StrVal, "%d%%", &n); err != nil {
		return 0, false
	}
	return n, true
}

func notMoreThan100Percent(v intstr.IntOrString, p *field.Path) field.ErrorList {
	if n, ok := percent(v); ok && n > 100 {
		return field.ErrorList{field.Invalid(p, v, "must not be greater than 100%")}
	}
	return nil
}

// isZero tells whether v is 0 or 0%.
func isZero(v intstr.IntOrString) bool {
	if v.Type == intstr.String {
		n, ok := percent(v)
		return ok && n == 0
	}
	return v.IntVal == 0
}

// atMost reports a counter of a status that exceeds the counter it is part of.
func atMost(v, limit int32, p *field.Path, msg string) field.ErrorList {
	if v > limit {
		return field.ErrorList{field.Invalid(p, v, msg)}
	}
	return nil
}

// relativePath wants a path below some directory that does not lead out of it.
func relativePath(value string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(value, "/") {
		errs = append(errs, field.Invalid(p, value, "must be a relative path"))
	}
	return append(errs, noBacksteps(value, p)...)
}

func noBacksteps(value string, p *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(value, "/"), "..") {
		return field.ErrorList{field.Invalid(p, value, "must not contain '..'")}
	}
	return nil
}

// secretReference wants both parts of a reference across namespaces.
func secretReference(r *corev1.SecretReference, p *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	return append(required(r.Name, p.Child("name")), required(r.Namespace, p.Child("namespace"))...)
}

func localReference(r *corev1.LocalObjectReference, p *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	return required(r.Name, p.Child("name"))
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// finalizer wants a name with a domain, or one of Kubernetes' own.
func finalizer(name string, p *field.Path) field.ErrorList {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	if strings.Contains(name, "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(p, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// unqualifiedFinalizers refuses the finalizers of obj without a domain that old, which may be nil,
// has not.
func unqualifiedFinalizers(obj, old runtime.Object) field.ErrorList {
	var had sets.Set[string]
	if old != nil {
		had = sets.New(old.(metav1.Object).GetFinalizers()...)
	}
	var errs field.ErrorList
	for i, name := range obj.(metav1.Object).GetFinalizers() {
		if bad := finalizer(name, field.NewPath("metadata", "finalizers").Index(i)); len(bad) > 0 && !had.Has(name) {
			errs = append(errs, bad...)
		}
	}
	return errs
}

const immutableData = "field is immutable when `immutable` is set"

// repeats returns a function that tells whether it has had a value before. A list that a request
// brings is too long to be searched for each of its values.
func repeats[T comparable]() func(T) bool {
	had := map[T]bool{}
	return func(v T) bool {
		again := had[v]
		had[v] = true
		return again
	}
}

// conditionTypes wants each of the types of a status' conditions once.
func conditionTypes(types []string) field.ErrorList {
	var errs field.ErrorList
	again := repeats[string]()
	for i, t := range types {
		p := field.NewPath("status", "conditions").Index(i).Child("type")
		errs = append(errs, required(t, p)...)
		if t != "" && again(t) {
			errs = append(errs, field.Duplicate(p, t))
		}
	}
	return errs
}

// pathSegment wants a name that can be part of a URL's path. A prefix of one may
// yet become one.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// ingressHostname wants a name where an address would be a mistake.
func ingressHostname(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	errs := dnsSubdomain(name, p)
	if len(validation.IsValidIPForLegacyField(p, name, false, nil)) == 0 {
		errs = append(errs, field.Invalid(p, name, "must be a DNS name, not an IP address"))
	}
	return errs
}
