// Defaults of pods, and of the containers and volumes of pods and templates.

package kinds

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Defaults of a probe, in seconds or attempts.
const (
	probeTimeout          = 1
	probePeriod           = 10
	probeSuccessThreshold = 1
	probeFailureThreshold = 3
)

// defaultPod adds to the defaults of a template what belongs to a pod alone: a
// template must keep the shape its author gave it, or each change of these
// rules would look like a new revision to the controllers.
func defaultPod(o *corev1.Pod) {
	defaultPodSpec(&o.Spec)
	if g := o.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		o.Spec.TerminationGracePeriodSeconds = new(int64(1))
	}
	for i := range o.Spec.InitContainers {
		requestsFromLimits(&o.Spec.InitContainers[i].Resources)
	}
	for i := range o.Spec.Containers {
		requestsFromLimits(&o.Spec.Containers[i].Resources)
	}
	setPtr(&o.Spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if o.Spec.HostNetwork {
		defaultHostPorts(o.Spec.InitContainers)
		defaultHostPorts(o.Spec.Containers)
	}
	defaultPodStatus(&o.Status)
}

// defaultPodStatus keeps the singular addresses and the first of the plural ones
// equal. The singular one is decisive, since that is the one an older kubelet
// knows.
func defaultPodStatus(st *corev1.PodStatus) {
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
			defaultResourceList(list[i].AllocatedResources)
			if r := list[i].Resources; r != nil {
				defaultResourceList(r.Limits)
				defaultResourceList(r.Requests)
			}
		}
	}
}

func defaultPodSpec(s *corev1.PodSpec) {
	set(&s.DNSPolicy, corev1.DNSClusterFirst)
	set(&s.RestartPolicy, corev1.RestartPolicyAlways)
	set(&s.SchedulerName, corev1.DefaultSchedulerName)
	setPtr(&s.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	setPtr(&s.SecurityContext, corev1.PodSecurityContext{})
	// Two names for one field; serviceAccountName is the one that counts.
	set(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
	defaultResourceList(s.Overhead)
	if s.Resources != nil {
		defaultResourceList(s.Resources.Limits)
		defaultResourceList(s.Resources.Requests)
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainer(&c)
		s.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
}

func defaultContainer(c *corev1.Container) {
	set(&c.ImagePullPolicy, pullPolicy(c.Image))
	set(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	set(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		set(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if f := from.FileKeyRef; f != nil {
				setPtr(&f.Optional, false)
			}
		}
	}
	defaultResourceList(c.Resources.Limits)
	defaultResourceList(c.Resources.Requests)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	set(&p.TimeoutSeconds, probeTimeout)
	set(&p.PeriodSeconds, probePeriod)
	set(&p.SuccessThreshold, probeSuccessThreshold)
	set(&p.FailureThreshold, probeFailureThreshold)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setPtr(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a == nil {
		return
	}
	set(&a.Path, "/")
	set(&a.Scheme, corev1.URISchemeHTTP)
}

func defaultFieldRef(f *corev1.ObjectFieldSelector) {
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

// defaultHostPorts gives the ports of a pod in the host's network the only host port
// they can have.
func defaultHostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			set(&containers[i].Ports[j].HostPort, containers[i].Ports[j].ContainerPort)
		}
	}
}

// defaultResourceList rounds every quantity up to a thousandth, the finest unit that
// anything in the system accounts for.
func defaultResourceList(l corev1.ResourceList) {
	for name, q := range l {
		if q.RoundUp(resource.Milli) {
			continue
		}
		l[name] = q
	}
}

// Lifetimes of projected credentials, in seconds.
const (
	tokenExpiration          = 60 * 60
	podCertificateExpiration = 24 * 60 * 60
)

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.Secret != nil:
		setPtr(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.ConfigMap != nil:
		setPtr(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.DownwardAPI != nil:
		setPtr(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardAPIFiles(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.HostPath != nil:
		setPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Image != nil:
		set(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			defaultClaimSpec(&t.Spec)
		}
	case v.ISCSI != nil:
		set(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		defaultRBD(&v.RBD.RBDPool, &v.RBD.RadosUser, &v.RBD.Keyring)
	case v.AzureDisk != nil:
		defaultAzureDisk(v.AzureDisk)
	case v.ScaleIO != nil:
		defaultScaleIO(&v.ScaleIO.StorageMode, &v.ScaleIO.FSType)
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	setPtr(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.DownwardAPI != nil {
			defaultDownwardAPIFiles(s.DownwardAPI.Items)
		}
		if s.ServiceAccountToken != nil {
			setPtr(&s.ServiceAccountToken.ExpirationSeconds, tokenExpiration)
		}
		if s.PodCertificate != nil {
			setPtr(&s.PodCertificate.MaxExpirationSeconds, podCertificateExpiration)
		}
	}
}

func defaultDownwardAPIFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		defaultFieldRef(files[i].FieldRef)
	}
}

func defaultRBD(pool, user, keyring *string) {
	set(pool, "rbd")
	set(user, "admin")
	set(keyring, "/etc/ceph/keyring")
}

func defaultAzureDisk(d *corev1.AzureDiskVolumeSource) {
	setPtr(&d.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	setPtr(&d.Kind, corev1.AzureSharedBlobDisk)
	setPtr(&d.FSType, "ext4")
	setPtr(&d.ReadOnly, false)
}

func defaultScaleIO(mode, fsType *string) {
	set(mode, "ThinProvisioned")
	set(fsType, "xfs")
}
