// Warnings about pods and their templates.

package kinds

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// newPodWarnings warns of a pod that is about to be made. Those that change pods are no people.
func newPodWarnings(w *warnings, p, old *corev1.Pod) {
	if old != nil {
		return
	}
	dotted(w, p.Name, "the Pod's hostname")
	podWarnings(w, &p.ObjectMeta, &p.Spec, nil)
}

// podWarnings warns of the pod or the template at path, which is nil for a pod. The time it takes
// is that of reading s: what is compared is looked up, not searched for.
func podWarnings(w *warnings, m *metav1.ObjectMeta, s *corev1.PodSpec, path *field.Path) {
	spec := path.Child("spec")
	oldNames(w, m, s, path)
	oldVolumes(w, s.Volumes, spec.Child("volumes"))
	overlaps(w, s.Volumes)
	twice(w, s, spec)
	fractions(w, s.Overhead, spec.Child("overhead"))
	eachContainer(s, spec, func(c *corev1.Container, p *field.Path) {
		fractions(w, c.Resources.Limits, p.Child("resources", "limits"))
		fractions(w, c.Resources.Requests, p.Child("resources", "requests"))
		hidden(w, c.Env, p.Child("env"))
	})
	portsTwice(w, s, spec)
	portNamesTwice(w, s, spec)
	if g := s.TerminationGracePeriodSeconds; path != nil && g != nil && *g < 0 { // a pod has 1 by now, see defaultPod
		w.add("%s: must be >= 0; negative values are invalid and will be treated as 1", spec.Child("terminationGracePeriodSeconds"))
	}
	matchesNone(w, s, spec)
	if s.DNSConfig != nil {
		for i, a := range s.DNSConfig.Nameservers {
			w.addAll(validation.GetWarningsForIP(spec.Child("dnsConfig", "nameservers").Index(i), a))
		}
	}
	for i, a := range s.HostAliases {
		w.addAll(validation.GetWarningsForIP(spec.Child("hostAliases").Index(i).Child("ip"), a.IP))
	}
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

func oldNames(w *warnings, m *metav1.ObjectMeta, s *corev1.PodSpec, path *field.Path) {
	for _, k := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		if msg := oldLabels[k]; msg != "" {
			w.add("%s: %s", path.Child("spec", "nodeSelector").Key(k), msg)
		}
	}
	for i, c := range s.TopologySpreadConstraints {
		if msg := oldLabels[c.TopologyKey]; msg != "" {
			w.add("%s: %s is %s", path.Child("spec", "topologySpreadConstraints").Index(i).Child("topologyKey"), c.TopologyKey, msg)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.Annotations)) {
		profiled := k == corev1.SeccompPodAnnotationKey && s.SecurityContext != nil && s.SecurityContext.SeccompProfile != nil
		if msg := oldAnnotations[k]; msg != "" && !profiled {
			w.add("%s: %s", path.Child("metadata", "annotations").Key(k), msg)
		}
	}
}

// oldVolumes warns of volumes that no node mounts any more.
func oldVolumes(w *warnings, volumes []corev1.Volume, p *field.Path) {
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
				w.add("%s: %s", p.Index(i).Child(old.name), old.why)
			}
		}
	}
}

// twice warns of what is named more than once, or not at all.
func twice(w *warnings, s *corev1.PodSpec, p *field.Path) {
	addresses, secrets := map[string]bool{}, map[string]bool{}
	for i, a := range s.HostAliases {
		if addresses[a.IP] {
			w.add("%s: duplicate ip %q", p.Child("hostAliases").Index(i).Child("ip"), a.IP)
		}
		addresses[a.IP] = true
	}
	at := p.Child("imagePullSecrets")
	for i, r := range s.ImagePullSecrets {
		if secrets[r.Name] {
			w.add("%s: duplicate name %q", at.Index(i).Child("name"), r.Name)
		}
		secrets[r.Name] = true
	}
	for i, r := range s.ImagePullSecrets {
		if r.Name == "" {
			w.add("%s: invalid empty name %q", at.Index(i).Child("name"), r.Name)
		}
	}
}

// fractions warns of parts of a byte, as of an m that was meant to be an M.
func fractions(w *warnings, l corev1.ResourceList, p *field.Path) {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, has := l[name]; has && q.MilliValue()%1000 != 0 {
			w.add("%s: fractional byte value %q is invalid, must be an integer", p.Key(string(name)), q.String())
		}
	}
}

// hidden warns of variables that are set once more to something that does not build on the value
// before.
func hidden(w *warnings, vars []corev1.EnvVar, p *field.Path) {
	seen := map[string]bool{}
	for i, v := range vars {
		ref := "$(" + v.Name + ")"
		if seen[v.Name] && (v.ValueFrom != nil || v.Value == ref || !strings.Contains(v.Value, ref)) {
			w.add("%s: hides previous definition of %q, which may be dropped when using apply", p.Index(i), v.Name)
		}
		seen[v.Name] = true
	}
}

// A portUse is what ports can have in common: all of it, or what is not zero here.
type portUse struct {
	port     int32
	protocol corev1.Protocol
	hostPort int32
	hostIP   string
}

// portUses are the first definitions of ports.
type portUses struct {
	same      map[portUse]*field.Path // by all of it
	any       map[portUse]*field.Path // by port and protocol
	unbound   map[portUse]*field.Path // those without a port of the node, likewise
	addressed map[portUse]*field.Path // those with an address of the node, by all but that
}

// portsTwice warns of ports that are told twice, or in two ways. It names the first of the others.
func portsTwice(w *warnings, s *corev1.PodSpec, spec *field.Path) {
	first := portUses{map[portUse]*field.Path{}, map[portUse]*field.Path{}, map[portUse]*field.Path{}, map[portUse]*field.Path{}}
	eachContainer(s, spec, func(c *corev1.Container, p *field.Path) {
		for i, port := range c.Ports {
			at := p.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.add("%s: hostIP set without hostPort: %+v", at, port)
			}
			first.clash(w, portUse{port.ContainerPort, port.Protocol, port.HostPort, port.HostIP}, at)
		}
	})
}

// clash warns of what is the matter with the definition u of a port at p, and remembers it.
func (f *portUses) clash(w *warnings, u portUse, p *field.Path) {
	group, unaddressed := portUse{port: u.port, protocol: u.protocol}, u
	unaddressed.hostIP = ""
	overlapping, ambiguous := f.unbound[group], f.same[unaddressed]
	if u.hostPort == 0 {
		overlapping, ambiguous = f.any[group], nil
	} else if u.hostIP == "" {
		ambiguous = f.addressed[unaddressed]
	}
	if same := f.same[u]; same != nil {
		w.add("%s: duplicate port definition with %s", p, same)
		return // the others have been told of that one
	}
	if overlapping != nil {
		w.add("%s: overlapping port definition with %s", p, overlapping)
	}
	if ambiguous != nil {
		w.add("%s: dangerously ambiguous port definition with %s", p, ambiguous)
	}
	f.same[u] = p
	remember := func(m map[portUse]*field.Path, key portUse, is bool) {
		if is && m[key] == nil {
			m[key] = p
		}
	}
	remember(f.any, group, true)
	remember(f.unbound, group, u.hostPort == 0)
	remember(f.addressed, unaddressed, u.hostIP != "")
}

// portNamesTwice warns of names that several ports have.
func portNamesTwice(w *warnings, s *corev1.PodSpec, spec *field.Path) {
	names := map[string]*field.Path{}
	eachContainer(s, spec, func(c *corev1.Container, p *field.Path) {
		for i, port := range c.Ports {
			at := p.Child("ports").Index(i)
			if first, has := names[port.Name]; has && port.Name != "" {
				w.add("%s: duplicate port name %q with %s, services and probes that select ports by name will use %s", at, port.Name, first, first)
			} else {
				names[port.Name] = at
			}
		}
	})
}

// matchesNone warns of terms without a selector, which are about no pod.
func matchesNone(w *warnings, s *corev1.PodSpec, spec *field.Path) {
	const why = "a null labelSelector results in matching no pod"
	for i, c := range s.TopologySpreadConstraints {
		if c.LabelSelector == nil {
			w.add("%s: %s", spec.Child("topologySpreadConstraints").Index(i).Child("labelSelector"), why)
		}
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path) {
		for i, t := range required {
			if t.LabelSelector == nil {
				w.add("%s: %s", p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i).Child("labelSelector"), why)
			}
		}
		for i, t := range preferred {
			if t.PodAffinityTerm.LabelSelector == nil {
				w.add("%s: %s", p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm", "labelSelector"), why)
			}
		}
	}
	if s.Affinity == nil {
		return
	}
	if a := s.Affinity.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, spec.Child("affinity", "podAffinity"))
	}
	if a := s.Affinity.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, spec.Child("affinity", "podAntiAffinity"))
	}
}
