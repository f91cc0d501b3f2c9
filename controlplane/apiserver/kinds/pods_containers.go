// Rules for the containers of pods.

package kinds

import (
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Bounds of a container's restart rules.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// A podContext is what the rules for one container need to know of its pod.
type podContext struct {
	spec    *corev1.PodSpec
	volumes map[string]*corev1.VolumeSource
	claim   map[string]bool // names of resource claims
	names   map[string]bool // of the containers seen so far
}

func newPodContext(s *corev1.PodSpec) *podContext {
	c := &podContext{spec: s, volumes: map[string]*corev1.VolumeSource{}, claim: map[string]bool{}, names: map[string]bool{}}
	for i := range s.Volumes {
		c.volumes[s.Volumes[i].Name] = &s.Volumes[i].VolumeSource
	}
	for _, r := range s.ResourceClaims {
		c.claim[r.Name] = true
	}
	return c
}

func (c *podContext) claims(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, r := range c.spec.ResourceClaims {
		at := p.Index(i)
		if r.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, dnsLabel(r.Name, at.Child("name"))...)
		}
		if seen[r.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), r.Name))
		}
		seen[r.Name] = true
		if (r.ResourceClaimName == nil) == (r.ResourceClaimTemplateName == nil) {
			errs = append(errs, field.Invalid(at, r, "must specify exactly one of `resourceClaimName`, `resourceClaimTemplateName`"))
		}
	}
	return errs
}

func (c *podContext) containers(p *field.Path) field.ErrorList {
	if len(c.spec.Containers) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	for i := range c.spec.Containers {
		ctr, at := &c.spec.Containers[i], p.Index(i)
		errs = append(errs, c.container(ctr, at)...)
		errs = append(errs, c.lifecycle(ctr.Lifecycle, at.Child("lifecycle"))...)
		errs = append(errs, c.probes(ctr, at)...)
	}
	return append(errs, hostPortConflicts(c.spec.Containers, p)...)
}

func (c *podContext) initContainers(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range c.spec.InitContainers {
		ctr, at := &c.spec.InitContainers[i], p.Index(i)
		errs = append(errs, c.container(ctr, at)...)
		if isSidecar(ctr) {
			errs = append(errs, c.lifecycle(ctr.Lifecycle, at.Child("lifecycle"))...)
			errs = append(errs, c.probes(ctr, at)...)
			continue
		}
		for j, r := range ctr.ResizePolicy {
			if restarts(r) {
				errs = append(errs, younger(field.Invalid(at.Child("resizePolicy").Index(j).Child("restartPolicy"), string(r.RestartPolicy),
					"must not be set to 'RestartContainer' for non-sidecar initContainers"))...)
			}
		}
		const msg = "may not be set for init containers without restartPolicy=Always"
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"lifecycle", ctr.Lifecycle != nil && (ctr.Lifecycle.PostStart != nil || ctr.Lifecycle.PreStop != nil)},
			{"livenessProbe", ctr.LivenessProbe != nil},
			{"readinessProbe", ctr.ReadinessProbe != nil},
			{"startupProbe", ctr.StartupProbe != nil},
		} {
			if f.set {
				errs = append(errs, field.Forbidden(at.Child(f.name), msg))
			}
		}
	}
	return append(errs, hostPortConflicts(c.spec.InitContainers, p)...)
}

// isSidecar tells whether an init container keeps running beside the others.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// ephemeralContainers are for looking around in a running pod: they have no
// part in its resources, ports or life.
func (c *podContext) ephemeralContainers(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	others := map[string]bool{}
	for _, list := range [][]corev1.Container{c.spec.Containers, c.spec.InitContainers} {
		for i := range list {
			others[list[i].Name] = true
		}
	}
	for i := range c.spec.EphemeralContainers {
		e, at := &c.spec.EphemeralContainers[i], p.Index(i)
		ctr := corev1.Container(e.EphemeralContainerCommon)
		errs = append(errs, c.container(&ctr, at)...)
		if e.TargetContainerName != "" && !others[e.TargetContainerName] {
			errs = append(errs, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		for j, m := range e.VolumeMounts {
			if m.SubPath != "" {
				errs = append(errs, field.Forbidden(at.Child("volumeMounts").Index(j).Child("subPath"), "cannot be set for an Ephemeral Container"))
			}
			if m.SubPathExpr != "" {
				errs = append(errs, field.Forbidden(at.Child("volumeMounts").Index(j).Child("subPathExpr"), "cannot be set for an Ephemeral Container"))
			}
		}
		r := ctr.Resources
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"ports", len(ctr.Ports) > 0},
			{"resources", len(r.Limits)+len(r.Requests)+len(r.Claims) > 0},
			{"resizePolicy", len(ctr.ResizePolicy) > 0},
			{"restartPolicy", ctr.RestartPolicy != nil},
			{"restartPolicyRules", len(ctr.RestartPolicyRules) > 0},
			{"livenessProbe", ctr.LivenessProbe != nil},
			{"readinessProbe", ctr.ReadinessProbe != nil},
			{"startupProbe", ctr.StartupProbe != nil},
			{"lifecycle", ctr.Lifecycle != nil},
		} {
			if f.set {
				errs = append(errs, field.Forbidden(at.Child(f.name), "cannot be set for an Ephemeral Container"))
			}
		}
	}
	return errs
}

// container has the rules that all sorts of containers share.
func (c *podContext) container(ctr *corev1.Container, p *field.Path) field.ErrorList {
	name := p.Child("name")
	var errs field.ErrorList
	if ctr.Name == "" {
		errs = append(errs, field.Required(name, ""))
	} else {
		errs = append(errs, dnsLabel(ctr.Name, name)...)
		if c.names[ctr.Name] {
			errs = append(errs, field.Duplicate(name, ctr.Name))
		}
		c.names[ctr.Name] = true
	}
	errs = append(errs, required(ctr.Image, p.Child("image"))...)
	errs = append(errs, oneOf(ctr.TerminationMessagePolicy, p.Child("terminationMessagePolicy"),
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, oneOf(ctr.ImagePullPolicy, p.Child("imagePullPolicy"), corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	errs = append(errs, c.ports(ctr.Ports, p.Child("ports"))...)
	errs = append(errs, c.env(ctr.Env, p.Child("env"))...)
	errs = append(errs, envFrom(ctr.EnvFrom, p.Child("envFrom"))...)
	errs = append(errs, c.volumeMounts(ctr, p.Child("volumeMounts"))...)
	errs = append(errs, c.volumeDevices(ctr, p.Child("volumeDevices"))...)
	errs = append(errs, containerResources(&ctr.Resources, c.claim, p.Child("resources"))...)
	errs = append(errs, resizePolicy(ctr.ResizePolicy, p.Child("resizePolicy"))...)
	errs = append(errs, restartRules(ctr, p)...)
	return append(errs, c.securityContext(ctr.SecurityContext, p.Child("securityContext"))...)
}

func (c *podContext) ports(ports []corev1.ContainerPort, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, port := range ports {
		at := p.Index(i)
		if port.Name != "" {
			if msgs := validation.IsValidPortName(port.Name); len(msgs) > 0 {
				errs = append(errs, messages(at.Child("name"), port.Name, msgs)...)
			} else if names[port.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, portNumber(port.ContainerPort, at.Child("containerPort"))...)
		}
		if port.HostPort != 0 {
			errs = append(errs, portNumber(port.HostPort, at.Child("hostPort"))...)
			if c.spec.HostNetwork && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(at.Child("containerPort"), port.ContainerPort, "must match `hostPort` when `hostNetwork` is true"))
			}
		}
		if port.HostIP != "" {
			errs = append(errs, anyIP(port.HostIP, at.Child("hostIP"))...)
		}
		errs = append(errs, protocol(port.Protocol, at.Child("protocol"))...)
	}
	return errs
}

// hostPortConflicts reports a port of the node that two containers want.
func hostPortConflicts(containers []corev1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range containers {
		for j, port := range containers[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if seen[key] {
				errs = append(errs, field.Duplicate(p.Index(i).Child("ports").Index(j).Child("hostPort"), key))
			}
			seen[key] = true
		}
	}
	return errs
}

func resizePolicy(list []corev1.ContainerResizePolicy, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.ResourceName]bool{}
	for i, r := range list {
		at := p.Index(i)
		errs = append(errs, oneOf(r.ResourceName, at.Child("resourceName"), corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, oneOf(r.RestartPolicy, at.Child("restartPolicy"), corev1.NotRequired, corev1.RestartContainer)...)
		if seen[r.ResourceName] {
			errs = append(errs, field.Duplicate(at, r.ResourceName))
		}
		seen[r.ResourceName] = true
	}
	return errs
}

// restartRules checks a container's own restart policy and the exit codes that
// make exceptions from it (KEP-5307).
func restartRules(ctr *corev1.Container, p *field.Path) field.ErrorList {
	errs := optionalOneOf(ctr.RestartPolicy, p.Child("restartPolicy"),
		corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	rules := p.Child("restartPolicyRules")
	if len(ctr.RestartPolicyRules) > 0 && ctr.RestartPolicy == nil {
		errs = append(errs, field.Required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if n := len(ctr.RestartPolicyRules); n > maxRestartRules {
		errs = append(errs, field.TooMany(rules, n, maxRestartRules))
	}
	for i, r := range ctr.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, oneOf(r.Action, at.Child("action"), corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, oneOf(r.ExitCodes.Operator, at.Child("exitCodes", "operator"),
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > maxExitCodes {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, maxExitCodes))
		}
	}
	return errs
}

// signalNames are those of linux.
var signalNames = regexp.MustCompile(`^SIG(ABRT|ALRM|BUS|CHLD|CLD|CONT|FPE|HUP|ILL|INT|IO|IOT|KILL|PIPE|POLL|PROF|PWR|QUIT|SEGV|STKFLT|STOP|SYS|` +
	`TERM|TRAP|TSTP|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH|XCPU|XFSZ|RTMIN(\+([1-9]|1[0-5]))?|RTMAX(-([1-9]|1[0-4]))?)$`)

// stopSignal wants the name of a signal that there is on the pod's operating system. A pod that
// names none may have any: Kubernetes, where this is alpha, takes it.
func stopSignal(s *corev1.Signal, os *corev1.PodOS, p *field.Path) field.ErrorList {
	switch {
	case s == nil || os == nil || os.Name == "":
		return nil
	case os.Name == corev1.Windows:
		return oneOf(*s, p, corev1.SIGKILL, corev1.SIGTERM)
	case !signalNames.MatchString(string(*s)):
		return field.ErrorList{field.Invalid(p, *s, "must be the name of a signal, such as SIGTERM")}
	}
	return nil
}

// podLevelResources checks the resources a pod states as a whole (KEP-2837).
func podLevelResources(spec *corev1.PodSpec, p *field.Path) field.ErrorList {
	if spec.Resources == nil {
		return nil
	}
	at := p.Child("resources")
	errs := requirements(spec.Resources, func(name corev1.ResourceName, at *field.Path) field.ErrorList {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || IsHugePages(name) {
			return nil
		}
		return field.ErrorList{field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceHugePagesPrefix})}
	}, at)
	if len(spec.Resources.Claims) > 0 {
		errs = append(errs, field.Forbidden(at.Child("claims"), "claims cannot be set for Resources at pod-level"))
	}
	sum := resourcehelper.AggregateContainerRequests(&corev1.Pod{Spec: *spec}, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedNames(spec.Resources.Requests) {
		q, all := spec.Resources.Requests[name], sum[name]
		if q.Cmp(all) < 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), q.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", all.String())))
		}
	}
	for i, c := range spec.Containers {
		for _, name := range sortedNames(c.Resources.Limits) {
			q := c.Resources.Limits[name]
			if limit, ok := spec.Resources.Limits[name]; ok && q.Cmp(limit) > 0 {
				errs = append(errs, field.Invalid(p.Child("containers").Index(i).Child("resources", "limits").Key(string(name)), q.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", limit.String())))
			}
		}
	}
	return errs
}
