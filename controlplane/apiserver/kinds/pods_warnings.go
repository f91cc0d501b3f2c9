// Warnings about pods and their templates.

package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// newPodWarnings warns of a pod that is about to be made. Those that change pods are no people.
func newPodWarnings(p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	return append(dotted(p.Name, "the Pod's hostname"), podWarnings(&p.ObjectMeta, &p.Spec, nil)...)
}

// podWarnings warns of the pod or the template at path, which is nil for a pod.
func podWarnings(m *metav1.ObjectMeta, s *corev1.PodSpec, path *field.Path) []string {
	spec := path.Child("spec")
	w := append(oldNames(m, s, path), oldVolumes(s.Volumes, spec.Child("volumes"))...)
	w = append(w, overlaps(s.Volumes)...)
	w = append(w, twice(s, spec)...)
	w = append(w, fractions(s.Overhead, spec.Child("overhead"))...)
	eachContainer(s, spec, func(c *corev1.Container, p *field.Path) {
		w = append(w, fractions(c.Resources.Limits, p.Child("resources", "limits"))...)
		w = append(w, fractions(c.Resources.Requests, p.Child("resources", "requests"))...)
		w = append(w, hidden(c.Env, p.Child("env"))...)
	})
	w = append(w, portsTwice(s, spec)...)
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		w = append(w, fmt.Sprintf("%s: must be >= 0; negative values are invalid and will be treated as 1", spec.Child("terminationGracePeriodSeconds")))
	}
	w = append(w, matchesNone(s, spec)...)
	if s.DNSConfig != nil {
		for i, a := range s.DNSConfig.Nameservers {
			w = append(w, validation.GetWarningsForIP(spec.Child("dnsConfig", "nameservers").Index(i), a)...)
		}
	}
	for i, a := range s.HostAliases {
		w = append(w, validation.GetWarningsForIP(spec.Child("hostAliases").Index(i).Child("ip"), a.IP)...)
	}
	return w
}

// oldLabels are labels of nodes that have other names by now.
var oldLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  "deprecated since v1.9",
	"scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// oldAnnotations are those that nothing reads any more.
var oldAnnotations = map[string]string{
	"scheduler.alpha.kubernetes.io/critical-pod":  `non-functional in v1.16+; use the "priorityClassName" field instead`,
	"security.alpha.kubernetes.io/sysctls":        `non-functional in v1.11+; use the "sysctls" field instead`,
	"security.alpha.kubernetes.io/unsafe-sysctls": `non-functional in v1.11+; use the "sysctls" field instead`,
	corev1.SeccompPodAnnotationKey:                `non-functional in v1.27+; use the "seccompProfile" field instead`,
}

func oldNames(m *metav1.ObjectMeta, s *corev1.PodSpec, path *field.Path) []string {
	var w []string
	for _, k := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		if msg := oldLabels[k]; msg != "" {
			w = append(w, fmt.Sprintf("%s: %s", path.Child("spec", "nodeSelector").Key(k), msg))
		}
	}
	for i, c := range s.TopologySpreadConstraints {
		if msg := oldLabels[c.TopologyKey]; msg != "" {
			w = append(w, fmt.Sprintf("%s: %s is %s", path.Child("spec", "topologySpreadConstraints").Index(i).Child("topologyKey"), c.TopologyKey, msg))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.Annotations)) {
		profiled := k == corev1.SeccompPodAnnotationKey && s.SecurityContext != nil && s.SecurityContext.SeccompProfile != nil
		if msg := oldAnnotations[k]; msg != "" && !profiled {
			w = append(w, fmt.Sprintf("%s: %s", path.Child("metadata", "annotations").Key(k), msg))
		}
	}
	return w
}

// oldVolumes warns of volumes that no node mounts any more.
func oldVolumes(volumes []corev1.Volume, p *field.Path) []string {
	var w []string
	for i := range volumes {
		v := &volumes[i]
		for _, old := range []struct {
			is        bool
			name, why string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if old.is {
				w = append(w, fmt.Sprintf("%s: %s", p.Index(i).Child(old.name), old.why))
			}
		}
	}
	return w
}

// twice warns of what is named more than once, or not at all.
func twice(s *corev1.PodSpec, p *field.Path) []string {
	var w []string
	addresses, secrets := map[string]bool{}, map[string]bool{}
	for i, a := range s.HostAliases {
		if addresses[a.IP] {
			w = append(w, fmt.Sprintf("%s: duplicate ip %q", p.Child("hostAliases").Index(i).Child("ip"), a.IP))
		}
		addresses[a.IP] = true
	}
	at := p.Child("imagePullSecrets")
	for i, r := range s.ImagePullSecrets {
		if secrets[r.Name] {
			w = append(w, fmt.Sprintf("%s: duplicate name %q", at.Index(i).Child("name"), r.Name))
		}
		secrets[r.Name] = true
	}
	for i, r := range s.ImagePullSecrets {
		if r.Name == "" {
			w = append(w, fmt.Sprintf("%s: invalid empty name %q", at.Index(i).Child("name"), r.Name))
		}
	}
	return w
}

// fractions warns of parts of a byte, as of an m that was meant to be an M.
func fractions(l corev1.ResourceList, p *field.Path) []string {
	var w []string
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, has := l[name]; has && q.MilliValue()%1000 != 0 {
			w = append(w, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", p.Key(string(name)), q.String()))
		}
	}
	return w
}

// hidden warns of variables that are set once more to something that does not build on the value
// before.
func hidden(vars []corev1.EnvVar, p *field.Path) []string {
	var w []string
	seen := map[string]bool{}
	for i, v := range vars {
		ref := "$(" + v.Name + ")"
		if seen[v.Name] && (v.ValueFrom != nil || v.Value == ref || !strings.Contains(v.Value, ref)) {
			w = append(w, fmt.Sprintf("%s: hides previous definition of %q, which may be dropped when using apply", p.Index(i), v.Name))
		}
		seen[v.Name] = true
	}
	return w
}

// portsTwice warns of ports that are told twice, or in two ways.
func portsTwice(s *corev1.PodSpec, spec *field.Path) []string {
	type told struct {
		at   *field.Path
		port corev1.ContainerPort
	}
	var w []string
	all := map[string][]told{}
	eachContainer(s, spec, func(c *corev1.Container, p *field.Path) {
		for i, port := range c.Ports {
			at := p.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w = append(w, fmt.Sprintf("%s: hostIP set without hostPort: %+v", at, port))
			}
			key := fmt.Sprintf("%d/%s", port.ContainerPort, port.Protocol)
			for _, o := range all[key] {
				if how := clash(&port, &o.port); how != "" {
					w = append(w, fmt.Sprintf("%s: %s port definition with %s", at, how, o.at))
				}
			}
			all[key] = append(all[key], told{at, port})
		}
	})
	names := map[string]*field.Path{}
	eachContainer(s, spec, func(c *corev1.Container, p *field.Path) {
		for i, port := range c.Ports {
			at := p.Child("ports").Index(i)
			if first, has := names[port.Name]; has && port.Name != "" {
				w = append(w, fmt.Sprintf("%s: duplicate port name %q with %s, services and probes that select ports by name will use %s", at, port.Name, first, first))
			} else {
				names[port.Name] = at
			}
		}
	})
	return w
}

// clash says what is the matter with two definitions of a port; empty if nothing is.
func clash(a, b *corev1.ContainerPort) string {
	switch {
	case a.HostIP == b.HostIP && a.HostPort == b.HostPort:
		return "duplicate"
	case a.HostPort == 0 || b.HostPort == 0:
		return "overlapping"
	case a.HostPort == b.HostPort && (a.HostIP == "") != (b.HostIP == ""):
		return "dangerously ambiguous"
	}
	return ""
}

// matchesNone warns of terms without a selector, which are about no pod.
func matchesNone(s *corev1.PodSpec, spec *field.Path) []string {
	const why = "a null labelSelector results in matching no pod"
	var w []string
	for i, c := range s.TopologySpreadConstraints {
		if c.LabelSelector == nil {
			w = append(w, fmt.Sprintf("%s: %s", spec.Child("topologySpreadConstraints").Index(i).Child("labelSelector"), why))
		}
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path) {
		for i, t := range required {
			if t.LabelSelector == nil {
				w = append(w, fmt.Sprintf("%s: %s", p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i).Child("labelSelector"), why))
			}
		}
		for i, t := range preferred {
			if t.PodAffinityTerm.LabelSelector == nil {
				w = append(w, fmt.Sprintf("%s: %s", p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm", "labelSelector"), why))
			}
		}
	}
	if s.Affinity == nil {
		return w
	}
	if a := s.Affinity.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, spec.Child("affinity", "podAffinity"))
	}
	if a := s.Affinity.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, spec.Child("affinity", "podAntiAffinity"))
	}
	return w
}
