// Rules for pods as a whole.

package kinds

import (
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// maxHostname is the longest host name the kernel can hold.
const maxHostname = 64

// validatePod checks a pod that is about to be made.
func validatePod(pod *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := append(podItself(pod), labelKeysOnce(&pod.Spec, pod.Labels, spec)...)
	errs = append(errs, apiclient.CheckAppArmorFields(pod.Annotations, &pod.Spec, spec)...)
	if len(pod.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// podItself has the rules that hold for a pod at any time, but not for the
// template of one.
func podItself(pod *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validatePodSpec(&pod.Spec, spec)
	errs = append(errs, podAnnotations(pod.Annotations, &pod.Spec, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, trimmedImages(pod.Spec.Containers, spec.Child("containers"))...)
	return append(errs, trimmedImages(pod.Spec.InitContainers, spec.Child("initContainers"))...)
}

// trimmedImages refuses space around an image's name. Templates may have it,
// since some controllers use a blank image as a mark to be filled in.
func trimmedImages(containers []corev1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range containers {
		if strings.TrimSpace(c.Image) != c.Image {
			errs = append(errs, field.Invalid(p.Index(i).Child("image"), c.Image, "must not have leading or trailing whitespace"))
		}
	}
	return errs
}

// podAnnotations checks the annotations that are part of the API: the mirror of a static pod
// exists because a node already runs it, what it costs to delete a pod is a number, and AppArmor
// profiles are those of containers.
func podAnnotations(annotations map[string]string, spec *corev1.PodSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if mirror, ok := annotations[corev1.MirrorPodAnnotationKey]; ok && spec.NodeName == "" {
		errs = append(errs, field.Invalid(p.Key(corev1.MirrorPodAnnotationKey), mirror, "must set spec.nodeName if mirror pod annotation is set"))
	}
	if cost, ok := annotations[corev1.PodDeletionCost]; ok && !isDeletionCost(cost) {
		errs = append(errs, younger(field.Invalid(p.Key(corev1.PodDeletionCost), cost, "must be a 32bit integer"))...)
	}
	return append(errs, younger(apiclient.CheckAppArmorAnnotations(annotations, spec, p)...)...)
}

// isDeletionCost wants a number of 32 bits without a plus sign or leading zeros.
func isDeletionCost(s string) bool {
	_, err := strconv.ParseInt(s, 10, 32)
	return err == nil && s[0] != '+' && (s[0] != '0' || s == "0")
}

// IsMirror tells whether a pod is one that its node shows: that node is its controller,
// and runs it whatever becomes of the object.
func IsMirror(p *corev1.Pod) bool {
	if _, is := p.Annotations[corev1.MirrorPodAnnotationKey]; !is {
		return false
	}
	o := metav1.GetControllerOfNoCopy(p)
	return o != nil && o.APIVersion == "v1" && o.Kind == "Node" && o.Name == p.Spec.NodeName
}

// validatePodSpec checks the spec of a pod or of a template at p.
func validatePodSpec(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	c := newPodContext(s)
	errs := volumes(s.Volumes, p.Child("volumes"))
	errs = append(errs, c.claims(p.Child("resourceClaims"))...)
	errs = append(errs, c.containers(p.Child("containers"))...)
	errs = append(errs, c.initContainers(p.Child("initContainers"))...)
	errs = append(errs, c.ephemeralContainers(p.Child("ephemeralContainers"))...)
	errs = append(errs, podLevelResources(s, p)...)
	errs = append(errs, podLifetime(s, p)...)
	errs = append(errs, podPlacement(s, p)...)
	errs = append(errs, podNetwork(s, p)...)
	errs = append(errs, podSecurityContext(s, p)...)
	errs = append(errs, podReferences(s, p)...)
	return append(errs, podOS(s, p)...)
}

func podLifetime(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	errs := oneOf(s.RestartPolicy, p.Child("restartPolicy"), corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(p.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	return errs
}

// podPlacement checks what the scheduler reads.
func podPlacement(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	errs := validLabels(s.NodeSelector, p.Child("nodeSelector"))
	if s.NodeName != "" {
		errs = append(errs, dnsSubdomain(s.NodeName, p.Child("nodeName"))...)
	}
	errs = append(errs, affinity(s.Affinity, p.Child("affinity"))...)
	errs = append(errs, validateTolerations(s.Tolerations, p.Child("tolerations"))...)
	errs = append(errs, topologySpread(s.TopologySpreadConstraints, p.Child("topologySpreadConstraints"))...)
	gates := map[string]bool{}
	for i, g := range s.SchedulingGates {
		at := p.Child("schedulingGates").Index(i)
		errs = append(errs, qualifiedName(g.Name, at)...)
		if gates[g.Name] {
			errs = append(errs, field.Duplicate(at, g.Name))
		}
		gates[g.Name] = true
	}
	for i, g := range s.ReadinessGates {
		errs = append(errs, qualifiedName(string(g.ConditionType), p.Child("readinessGates").Index(i).Child("conditionType"))...)
	}
	return append(errs, optionalOneOf(s.PreemptionPolicy, p.Child("preemptionPolicy"), corev1.PreemptLowerPriority, corev1.PreemptNever)...)
}

func podNetwork(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	errs := oneOf(s.DNSPolicy, p.Child("dnsPolicy"), corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	errs = append(errs, dnsConfig(s.DNSConfig, s.DNSPolicy, p.Child("dnsConfig"))...)
	if s.Hostname != "" {
		errs = append(errs, dnsLabel(s.Hostname, p.Child("hostname"))...)
	}
	if s.Subdomain != "" {
		errs = append(errs, dnsLabel(s.Subdomain, p.Child("subdomain"))...)
	}
	if h := s.HostnameOverride; h != nil {
		at := p.Child("hostnameOverride")
		errs = append(errs, dnsSubdomain(*h, at)...)
		if len(*h) > maxHostname {
			errs = append(errs, field.TooLong(at, *h, maxHostname))
		}
		if s.HostNetwork {
			errs = append(errs, field.Forbidden(at, "may not be set when hostNetwork is true"))
		}
		if deref(s.SetHostnameAsFQDN) {
			errs = append(errs, field.Forbidden(at, "may not be set when setHostnameAsFQDN is true"))
		}
	}
	for i, a := range s.HostAliases {
		at := p.Child("hostAliases").Index(i)
		errs = append(errs, ip(a.IP, at.Child("ip"))...)
		for j, h := range a.Hostnames {
			errs = append(errs, dnsSubdomain(h, at.Child("hostnames").Index(j))...)
		}
	}
	return errs
}

// podReferences checks the names of other objects, but not those of imagePullSecrets, which may be empty.
func podReferences(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, r := range []struct{ field, name string }{
		{"serviceAccountName", s.ServiceAccountName},
		{"priorityClassName", s.PriorityClassName},
		{"runtimeClassName", deref(s.RuntimeClassName)},
	} {
		if r.name != "" {
			errs = append(errs, dnsSubdomain(r.name, p.Child(r.field))...)
		}
	}
	for _, name := range sortedNames(s.Overhead) {
		at := p.Child("overhead").Key(string(name))
		errs = append(errs, containerResourceName(name, at)...)
		errs = append(errs, validateResourceQuantity(name, s.Overhead[name], at)...)
	}
	return errs
}

// Limits of the resolver, as glibc and the kubelet know them.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func dnsConfig(c *corev1.PodDNSConfig, policy corev1.DNSPolicy, p *field.Path) field.ErrorList {
	if c == nil {
		if policy == corev1.DNSNone {
			return field.ErrorList{field.Required(p, "must provide `dnsConfig` when `dnsPolicy` is None")}
		}
		return nil
	}
	var errs field.ErrorList
	if policy == corev1.DNSNone && len(c.Nameservers) == 0 {
		errs = append(errs, field.Required(p.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None"))
	}
	if len(c.Nameservers) > maxNameservers {
		errs = append(errs, field.Invalid(p.Child("nameservers"), c.Nameservers, "must not have more than 3 nameservers"))
	}
	for i, n := range c.Nameservers {
		errs = append(errs, ip(n, p.Child("nameservers").Index(i))...)
	}
	if len(c.Searches) > maxSearches {
		errs = append(errs, field.Invalid(p.Child("searches"), c.Searches, "must not have more than 32 search paths"))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchChars {
		errs = append(errs, field.Invalid(p.Child("searches"), c.Searches, "must not have more than 2048 characters (including spaces) in the search list"))
	}
	for i, s := range c.Searches {
		// A lone dot asks for names to be looked up as they are.
		if s != "." {
			errs = append(errs, messages(p.Child("searches").Index(i), s, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(s, ".")))...)
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			errs = append(errs, field.Required(p.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}
