// What a static pod must be like to be run. It is what the node relies on: the API
// server, which knows every rule, is not asked, and says the rest of the mirror.

package staticpods

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// check says what is wrong with a pod, if anything.
func check(pod *corev1.Pod) error {
	s := &pod.Spec
	if what := referenced(s); what != "" {
		return fmt.Errorf("static pods may not reference %s: write the content into the file, or mount it by hostPath", what)
	}
	c := checks{volumes: map[string]bool{}, containers: map[string]bool{}}
	c.name("metadata.name", pod.Name, validation.IsDNS1123Subdomain)
	c.name("metadata.namespace", pod.Namespace, validation.IsDNS1123Label)
	c.errs = append(c.errs, metavalidation.ValidateLabels(pod.Labels, field.NewPath("metadata", "labels")).ToAggregate())
	c.errs = append(c.errs, apiclient.CheckAppArmorAnnotations(pod.Annotations, s, field.NewPath("metadata", "annotations")).ToAggregate())
	c.errs = append(c.errs, apiclient.CheckAppArmorFields(pod.Annotations, s, field.NewPath("spec")).ToAggregate())
	c.want(len(s.Containers) > 0, "spec.containers is empty")
	c.want(len(s.EphemeralContainers) == 0, "spec.ephemeralContainers cannot be set")
	c.want(len(s.SchedulingGates) == 0, "spec.schedulingGates cannot be set: nothing schedules the pod")
	switch s.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		c.want(false, "spec.restartPolicy %q is unknown", s.RestartPolicy)
	}
	c.want(*s.TerminationGracePeriodSeconds >= 0, "spec.terminationGracePeriodSeconds is negative")
	c.want(s.ActiveDeadlineSeconds == nil || *s.ActiveDeadlineSeconds > 0, "spec.activeDeadlineSeconds is not positive")
	if s.Hostname != "" {
		c.name("spec.hostname", s.Hostname, validation.IsDNS1123Label)
	}
	if s.Subdomain != "" {
		c.name("spec.subdomain", s.Subdomain, validation.IsDNS1123Label)
	}
	for i := range s.Volumes {
		c.volume(fmt.Sprintf("spec.volumes[%d]", i), &s.Volumes[i])
	}
	for i := range s.InitContainers {
		c.container(fmt.Sprintf("spec.initContainers[%d]", i), &s.InitContainers[i])
	}
	for i := range s.Containers {
		c.container(fmt.Sprintf("spec.containers[%d]", i), &s.Containers[i])
	}
	for _, err := range c.errs {
		if err != nil {
			return err // the first is enough for one line
		}
	}
	return nil
}

// checks collects what is wrong.
type checks struct {
	volumes, containers map[string]bool
	errs                []error
}

func (c *checks) want(ok bool, format string, args ...any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *checks) name(at, name string, rule func(string) []string) {
	if problems := rule(name); len(problems) > 0 {
		c.errs = append(c.errs, fmt.Errorf("%s %q: %s", at, name, problems[0]))
	}
}

func (c *checks) volume(at string, v *corev1.Volume) {
	c.name(at+".name", v.Name, validation.IsDNS1123Label)
	c.want(!c.volumes[v.Name], "%s.name %q is there twice", at, v.Name)
	c.volumes[v.Name] = true
	c.want(v.HostPath == nil || v.HostPath.Path != "" && !strings.Contains(v.HostPath.Path, ".."), "%s.hostPath.path is empty or has ..", at)
}

func (c *checks) container(at string, ctr *corev1.Container) {
	c.name(at+".name", ctr.Name, validation.IsDNS1123Label)
	c.want(!c.containers[ctr.Name], "%s.name %q is there twice", at, ctr.Name)
	c.containers[ctr.Name] = true
	c.want(ctr.Image != "" && strings.TrimSpace(ctr.Image) == ctr.Image, "%s.image is empty, or has space around it", at)
	for i := range ctr.Ports {
		p := &ctr.Ports[i]
		c.want(p.ContainerPort > 0 && p.ContainerPort <= 65535 && p.HostPort >= 0 && p.HostPort <= 65535, "%s.ports[%d] is not between 1 and 65535", at, i)
		c.want(p.Protocol == corev1.ProtocolTCP || p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolSCTP, "%s.ports[%d].protocol %q is unknown", at, i, p.Protocol)
	}
	for i := range ctr.VolumeMounts {
		m := &ctr.VolumeMounts[i]
		c.want(c.volumes[m.Name], "%s.volumeMounts[%d].name %q is no volume of the pod", at, i, m.Name)
		c.want(m.MountPath != "", "%s.volumeMounts[%d].mountPath is empty", at, i)
	}
	for i := range ctr.Env {
		c.name(fmt.Sprintf("%s.env[%d].name", at, i), ctr.Env[i].Name, validation.IsRelaxedEnvVarName)
	}
	for _, name := range slices.Sorted(maps.Keys(ctr.Resources.Requests)) {
		request := ctr.Resources.Requests[name]
		limit, limited := ctr.Resources.Limits[name]
		c.want(request.Sign() >= 0 && (!limited || request.Cmp(limit) <= 0), "%s.resources.requests.%s is negative, or more than its limit", at, name)
	}
	c.restarts(at, ctr)
	c.probe(at+".livenessProbe", ctr.LivenessProbe)
	c.probe(at+".readinessProbe", ctr.ReadinessProbe)
	c.probe(at+".startupProbe", ctr.StartupProbe)
}

func (c *checks) restarts(at string, ctr *corev1.Container) {
	switch p := ctr.RestartPolicy; {
	case p == nil:
		c.want(len(ctr.RestartPolicyRules) == 0, "%s.restartPolicyRules cannot be set without restartPolicy", at)
	case *p != corev1.ContainerRestartPolicyAlways && *p != corev1.ContainerRestartPolicyOnFailure && *p != corev1.ContainerRestartPolicyNever:
		c.want(false, "%s.restartPolicy %q is unknown", at, *p)
	}
	for i, r := range ctr.RestartPolicyRules {
		rule := fmt.Sprintf("%s.restartPolicyRules[%d]", at, i)
		c.want(r.Action == corev1.ContainerRestartRuleActionRestart || r.Action == corev1.ContainerRestartRuleActionRestartAllContainers, "%s.action %q is unknown", rule, r.Action)
		c.want(r.ExitCodes != nil, "%s.exitCodes is missing", rule)
		if codes := r.ExitCodes; codes != nil {
			c.want(codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn || codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn,
				"%s.exitCodes.operator %q is unknown", rule, codes.Operator)
		}
	}
}

func (c *checks) probe(at string, p *corev1.Probe) {
	if p == nil {
		return
	}
	c.want(oneHandler(&p.ProbeHandler), "%s has no action, or more than one", at)
	c.want(p.InitialDelaySeconds >= 0 && p.TimeoutSeconds > 0 && p.PeriodSeconds > 0 && p.SuccessThreshold > 0 && p.FailureThreshold > 0,
		"%s has a time or a count that is not positive", at)
}

func oneHandler(h *corev1.ProbeHandler) bool {
	n := 0
	for _, has := range []bool{h.Exec != nil, h.HTTPGet != nil, h.TCPSocket != nil, h.GRPC != nil} {
		if has {
			n++
		}
	}
	return n == 1
}

// referenced says what of the API a pod refers to: a node must be able to run it
// without, and gets none of it for a pod of its own making.
func referenced(s *corev1.PodSpec) string {
	switch {
	case s.ServiceAccountName != "":
		return "serviceaccounts"
	case len(s.ImagePullSecrets) > 0:
		return "secrets"
	case len(s.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for i := range s.Volumes {
		if what := volumeOf(&s.Volumes[i]); what != "" {
			return what
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if what := environmentOf(&list[i]); what != "" {
				return what
			}
		}
	}
	return ""
}

// volumeOf says what object a volume is made of. Other volumes than these are either made
// of an object, or such as no node mounts here.
func volumeOf(v *corev1.Volume) string {
	switch {
	case v.EmptyDir != nil, v.HostPath != nil, v.DownwardAPI != nil:
		return ""
	case v.Secret != nil:
		return "secrets"
	case v.ConfigMap != nil:
		return "configmaps"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistentvolumeclaims"
	case v.Projected == nil:
		return fmt.Sprintf("volume %q, which is neither emptyDir, hostPath, downwardAPI nor projected", v.Name)
	}
	for i := range v.Projected.Sources {
		if v.Projected.Sources[i].DownwardAPI == nil {
			return fmt.Sprintf("anything but downwardAPI in the projected volume %q", v.Name)
		}
	}
	return ""
}

// environmentOf says what object a container's environment is from.
func environmentOf(c *corev1.Container) string {
	switch {
	case len(c.EnvFrom) == 0:
	case c.EnvFrom[0].SecretRef != nil:
		return "secrets"
	default:
		return "configmaps"
	}
	for i := range c.Env {
		switch from := c.Env[i].ValueFrom; {
		case from == nil:
		case from.SecretKeyRef != nil:
			return "secrets"
		case from.ConfigMapKeyRef != nil:
			return "configmaps"
		}
	}
	return ""
}
