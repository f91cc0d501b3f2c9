// Defaults of pods, pod templates and containers.

package defaults

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Defaults of a probe, in seconds or attempts.
const (
	probeTimeout          = 1
	probePeriod           = 10
	probeSuccessThreshold = 1
	probeFailureThreshold = 3
)

// pod adds to the defaults of a template what belongs to a pod alone: a
// template must keep the shape its author gave it, or each change of these
// rules would look like a new revision to the controllers.
func pod(o *corev1.Pod) {
	podSpec(&o.Spec)
	for i := range o.Spec.InitContainers {
		requestsFromLimits(&o.Spec.InitContainers[i].Resources)
	}
	for i := range o.Spec.Containers {
		requestsFromLimits(&o.Spec.Containers[i].Resources)
	}
	podLevelRequests(o)
	setPtr(&o.Spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if o.Spec.HostNetwork {
		hostPorts(o.Spec.InitContainers)
		hostPorts(o.Spec.Containers)
	}
	podStatus(&o.Status)
}

// podStatus keeps the singular addresses and the first of the plural ones
// equal. The singular one is decisive, since that is the one an older kubelet
// knows.
func podStatus(st *corev1.PodStatus) {
	switch {
	case st.PodIP != "" && (len(st.PodIPs) == 0 || st.PodIPs[0].IP != st.PodIP):
		st.PodIPs = []corev1.PodIP{{IP: st.PodIP}}
	case st.PodIP == "" && len(st.PodIPs) > 0:
		st.PodIP = st.PodIPs[0].IP
	}
	switch {
	case st.HostIP != "" && (len(st.HostIPs) == 0 || st.HostIPs[0].IP != st.HostIP):
		st.HostIPs = []corev1.HostIP{{IP: st.HostIP}}
	case st.HostIP == "" && len(st.HostIPs) > 0:
		st.HostIP = st.HostIPs[0].IP
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			resourceList(list[i].AllocatedResources)
			if r := list[i].Resources; r != nil {
				resourceList(r.Limits)
				resourceList(r.Requests)
			}
		}
	}
}

func podTemplateSpec(t *corev1.PodTemplateSpec) { podSpec(&t.Spec) }

func podSpec(s *corev1.PodSpec) {
	set(&s.DNSPolicy, corev1.DNSClusterFirst)
	set(&s.RestartPolicy, corev1.RestartPolicyAlways)
	set(&s.SchedulerName, corev1.DefaultSchedulerName)
	setPtr(&s.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	setPtr(&s.SecurityContext, corev1.PodSecurityContext{})
	// Two names for one field; serviceAccountName is the one that counts.
	set(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
	resourceList(s.Overhead)
	if s.Resources != nil {
		resourceList(s.Resources.Limits)
		resourceList(s.Resources.Requests)
	}
	for i := range s.Volumes {
		volume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		container(&s.InitContainers[i])
	}
	for i := range s.Containers {
		container(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		container(&c)
		s.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
}

func container(c *corev1.Container) {
	set(&c.ImagePullPolicy, pullPolicy(c.Image))
	set(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	set(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		set(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			fieldRef(from.FieldRef)
			if f := from.FileKeyRef; f != nil {
				setPtr(&f.Optional, false)
			}
		}
	}
	resourceList(c.Resources.Limits)
	resourceList(c.Resources.Requests)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		probe(p)
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				httpGet(h.HTTPGet)
			}
		}
	}
}

func probe(p *corev1.Probe) {
	if p == nil {
		return
	}
	set(&p.TimeoutSeconds, probeTimeout)
	set(&p.PeriodSeconds, probePeriod)
	set(&p.SuccessThreshold, probeSuccessThreshold)
	set(&p.FailureThreshold, probeFailureThreshold)
	httpGet(p.HTTPGet)
	if p.GRPC != nil {
		setPtr(&p.GRPC.Service, "")
	}
}

func httpGet(a *corev1.HTTPGetAction) {
	if a == nil {
		return
	}
	set(&a.Path, "/")
	set(&a.Scheme, corev1.URISchemeHTTP)
}

func fieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil {
		set(&f.APIVersion, "v1")
	}
}

// pullPolicy is Always for an image that may mean something else tomorrow: one
// with the tag latest, or with neither tag nor digest.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, pinned := strings.Cut(image, "@")
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		tag = name[i+1:]
	}
	if tag == "latest" || tag == "" && !pinned && name != "" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// requestsFromLimits makes a limit without a request a request as well.
func requestsFromLimits(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		if r.Requests == nil {
			r.Requests = make(corev1.ResourceList, len(r.Limits))
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

// podLevelRequests fills the requests of a pod that states resources for
// itself as a whole: first from the sum of its containers' requests, then from
// its own limits (KEP-2837).
func podLevelRequests(o *corev1.Pod) {
	r := o.Spec.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	requests := r.Requests.DeepCopy()
	if requests == nil {
		requests = corev1.ResourceList{}
	}
	for name, q := range resourcehelper.AggregateContainerRequests(o, resourcehelper.PodResourcesOptions{}) {
		if _, ok := requests[name]; !ok && resourcehelper.IsSupportedPodLevelResource(name) {
			requests[name] = q.DeepCopy()
		}
	}
	for name, q := range r.Limits {
		if _, ok := requests[name]; !ok {
			requests[name] = q.DeepCopy()
		}
	}
	if len(requests) > 0 {
		r.Requests = requests
	}
}

// hostPorts gives the ports of a pod in the host's network the only host port
// they can have.
func hostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			set(&containers[i].Ports[j].HostPort, containers[i].Ports[j].ContainerPort)
		}
	}
}

// resourceList rounds every quantity up to a thousandth, the finest unit that
// anything in the system accounts for.
func resourceList(l corev1.ResourceList) {
	for name, q := range l {
		if q.RoundUp(resource.Milli) {
			continue
		}
		l[name] = q
	}
}
