// What the API would add to a pod, as far as running it goes by that. Its mirror gets
// the rest from the API server.

package staticpods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Priorities of the classes that each cluster has.
var priorities = map[string]int32{
	"system-cluster-critical": 2_000_000_000,
	"system-node-critical":    2_000_001_000,
}

func set[T comparable](field *T, value T) {
	if zero := *new(T); *field == zero {
		*field = value
	}
}

func defaults(s *corev1.PodSpec) {
	set(&s.RestartPolicy, corev1.RestartPolicyAlways)
	set(&s.DNSPolicy, corev1.DNSClusterFirst)
	set(&s.SchedulerName, corev1.DefaultSchedulerName)
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds)
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if p, system := priorities[s.PriorityClassName]; system && s.Priority == nil {
		s.Priority = &p
	}
	set(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	for i := range s.Volumes {
		volume(&s.Volumes[i])
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			container(&list[i], s.HostNetwork)
		}
	}
}

func volume(v *corev1.Volume) {
	mode := func(m **int32) {
		if *m == nil {
			*m = ptr.To[int32](0o644)
		}
	}
	switch {
	case v.VolumeSource == corev1.VolumeSource{}:
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	case v.DownwardAPI != nil:
		mode(&v.DownwardAPI.DefaultMode)
		fieldRefs(v.DownwardAPI.Items)
	case v.Projected != nil:
		mode(&v.Projected.DefaultMode)
		for _, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				fieldRefs(source.DownwardAPI.Items)
			}
		}
	}
}

func fieldRefs(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		if f := items[i].FieldRef; f != nil {
			set(&f.APIVersion, "v1")
		}
	}
}

func container(c *corev1.Container, hostNetwork bool) {
	set(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	set(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		set(&c.Ports[i].Protocol, corev1.ProtocolTCP)
		if hostNetwork {
			set(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			set(&from.FieldRef.APIVersion, "v1")
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; ok {
			continue
		}
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = limit.DeepCopy()
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			set(&p.TimeoutSeconds, 1)
			set(&p.PeriodSeconds, 10)
			set(&p.SuccessThreshold, 1)
			set(&p.FailureThreshold, 3)
			httpGet(p.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				httpGet(h.HTTPGet)
			}
		}
	}
}

func httpGet(a *corev1.HTTPGetAction) {
	if a != nil {
		set(&a.Path, "/")
		set(&a.Scheme, corev1.URISchemeHTTP)
	}
}

// qosClass is Guaranteed if everything is limited to what it asks for, BestEffort if
// nothing asks or is limited.
func qosClass(s *corev1.PodSpec) corev1.PodQOSClass {
	var all []corev1.ResourceRequirements
	if s.Resources != nil {
		all = append(all, *s.Resources)
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if s.Resources == nil {
				all = append(all, list[i].Resources)
			}
		}
	}
	none, fixed := true, true
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			none = none && request.IsZero() && limit.IsZero()
			fixed = fixed && !limit.IsZero() && limit.Cmp(request) == 0
		}
	}
	switch {
	case none:
		return corev1.PodQOSBestEffort
	case fixed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}
