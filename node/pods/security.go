// This file is about security contexts: the settings that the runtime gets, and those
// for which a pod is refused because they cannot be enforced here.

package pods

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// securityReason is the reason of pods that are refused for a setting that the kubelet
// leaves to its container runtime. For other settings the kubelet's reason is used.
const securityReason = "SecurityContextNotSupported"

// refuseSecurity refuses a pod whose security settings cannot be enforced.
func refuseSecurity(pod *corev1.Pod) *refusal {
	if err := podSecurity(pod); err != nil {
		return securityRefusal(err)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := containerSecurity(&list[i]); err != nil {
				return securityRefusal(err)
			}
		}
	}
	return nil
}

// An unsupported setting is named by its path in the pod.
type unsupported struct{ reason, field, remedy string }

func (u *unsupported) Error() string {
	return fmt.Sprintf("%s is not supported on this node: %s", u.field, u.remedy)
}

func securityRefusal(err error) *refusal {
	r := &refusal{securityReason, err.Error()}
	var u *unsupported
	if errors.As(err, &u) && u.reason != "" {
		r.reason = u.reason
	}
	return r
}

const leaveOut = "leave it out"

func podSecurity(pod *corev1.Pod) error {
	spec := &pod.Spec
	switch {
	case isTrue(spec.ShareProcessNamespace):
		return &unsupported{field: "spec.shareProcessNamespace", remedy: "each container has process ids of its own; leave it out (kubectl debug --copy-to: --share-processes=false)"}
	case spec.HostUsers != nil && !*spec.HostUsers:
		return &unsupported{field: "spec.hostUsers: false", remedy: "users are the machine's; set securityContext.runAsUser"}
	case len(spec.ResourceClaims) > 0:
		return &unsupported{field: "spec.resourceClaims", remedy: "nobody allocates devices here; leave it out"}
	case spec.RuntimeClassName != nil && *spec.RuntimeClassName != "":
		return &unsupported{field: "spec.runtimeClassName", remedy: "there is one runtime; leave it out"}
	}
	s := spec.SecurityContext
	if s == nil {
		return nil
	}
	const at = "spec.securityContext."
	if len(s.Sysctls) > 0 {
		return &unsupported{reason: "SysctlForbidden", field: at + "sysctls", remedy: "kernel parameters are the machine's"}
	}
	if s.SupplementalGroupsPolicy != nil && *s.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return &unsupported{field: at + "supplementalGroupsPolicy: " + string(*s.SupplementalGroupsPolicy), remedy: "groups are those of the pod alone, which is Strict"}
	}
	return labels(at, s.SELinuxOptions, s.WindowsOptions, s.AppArmorProfile, s.SeccompProfile)
}

// containerSecurity checks one container, which may be an ephemeral one.
func containerSecurity(c *corev1.Container) error {
	at := "container " + c.Name + ": "
	for _, m := range c.VolumeMounts {
		if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
			return &unsupported{field: at + "volumeMounts." + m.Name + ".mountPropagation: Bidirectional", remedy: "what a container mounts stays in it"}
		}
	}
	for _, r := range c.RestartPolicyRules {
		if r.Action != corev1.ContainerRestartRuleActionRestart {
			return &unsupported{reason: "RestartRuleNotSupported", field: at + "restartPolicyRules: " + string(r.Action), remedy: "use Restart, or have a Job make another pod"}
		}
	}
	s := c.SecurityContext
	if s == nil {
		return nil
	}
	at += "securityContext."
	if s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount {
		return &unsupported{field: at + "procMount: " + string(*s.ProcMount), remedy: leaveOut}
	}
	return labels(at, s.SELinuxOptions, s.WindowsOptions, s.AppArmorProfile, s.SeccompProfile)
}

// labels checks the fields that pods and containers both have.
func labels(at string, selinux *corev1.SELinuxOptions, windows *corev1.WindowsSecurityContextOptions, armor *corev1.AppArmorProfile, seccomp *corev1.SeccompProfile) error {
	switch {
	case selinux != nil && *selinux != (corev1.SELinuxOptions{}):
		return &unsupported{field: at + "seLinuxOptions", remedy: leaveOut}
	case windows != nil:
		return &unsupported{field: at + "windowsOptions", remedy: "the node runs Linux"}
	case armor != nil && armor.Type != corev1.AppArmorProfileTypeUnconfined:
		return &unsupported{reason: "AppArmor", field: at + "appArmorProfile: " + string(armor.Type), remedy: "Cannot enforce AppArmor; leave it out or set Unconfined"}
	case seccomp != nil && seccomp.Type != corev1.SeccompProfileTypeUnconfined && seccomp.Type != corev1.SeccompProfileTypeRuntimeDefault:
		return &unsupported{field: at + "seccompProfile: " + string(seccomp.Type), remedy: "use RuntimeDefault"}
	}
	return nil
}

// securityOf returns what the runtime enforces. A setting of the container takes
// precedence over the pod's. filtered is used if neither sets a seccomp profile.
func securityOf(pod *corev1.Pod, c *corev1.Container, filtered bool) runtime.Security {
	out := runtime.Security{HostIPC: pod.Spec.HostIPC, HostPID: pod.Spec.HostPID}
	seccomp := (*corev1.SeccompProfile)(nil)
	if p := pod.Spec.SecurityContext; p != nil {
		seccomp = p.SeccompProfile
	}
	if s := c.SecurityContext; s != nil {
		out.Privileged = isTrue(s.Privileged)
		out.ReadOnlyRoot = isTrue(s.ReadOnlyRootFilesystem)
		out.NoNewPrivileges = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation
		if s.Capabilities != nil {
			out.AddCapabilities = capabilityNames(s.Capabilities.Add)
			out.DropCapabilities = capabilityNames(s.Capabilities.Drop)
		}
		if s.SeccompProfile != nil {
			seccomp = s.SeccompProfile
		}
	}
	out.DefaultSeccomp = filtered
	if seccomp != nil {
		out.DefaultSeccomp = seccomp.Type == corev1.SeccompProfileTypeRuntimeDefault
	}
	return out
}

func capabilityNames(list []corev1.Capability) []string {
	var names []string
	for _, c := range list {
		names = append(names, string(c))
	}
	return names
}
