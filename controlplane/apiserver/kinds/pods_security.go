// Rules for security contexts and what depends on a pod's operating system.

package kinds

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	sysctlPattern   = `([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?`
	maxSysctlLength = 253
)

// sysctlName is the regular expression of sysctlPattern, anchored.
var sysctlName = regexp.MustCompile("^" + sysctlPattern + "$")

func podSecurityContext(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	sc, at := s.SecurityContext, p.Child("securityContext")
	var errs field.ErrorList
	if deref(s.ShareProcessNamespace) && s.HostPID {
		errs = append(errs, field.Invalid(p.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	errs = append(errs, hostUsers(s, p)...)
	if sc == nil {
		return errs
	}
	errs = append(errs, userID(sc.RunAsUser, at.Child("runAsUser"))...)
	errs = append(errs, groupID(sc.RunAsGroup, at.Child("runAsGroup"))...)
	errs = append(errs, groupID(sc.FSGroup, at.Child("fsGroup"))...)
	for i, g := range sc.SupplementalGroups {
		errs = append(errs, groupID(&g, at.Child("supplementalGroups").Index(i))...)
	}
	errs = append(errs, optionalOneOf(sc.SupplementalGroupsPolicy, at.Child("supplementalGroupsPolicy"),
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	errs = append(errs, optionalOneOf(sc.FSGroupChangePolicy, at.Child("fsGroupChangePolicy"),
		corev1.FSGroupChangeOnRootMismatch, corev1.FSGroupChangeAlways)...)
	errs = append(errs, optionalOneOf(sc.SELinuxChangePolicy, at.Child("seLinuxChangePolicy"),
		corev1.SELinuxChangePolicyRecursive, corev1.SELinuxChangePolicyMountOption)...)
	errs = append(errs, sysctls(s, at.Child("sysctls"))...)
	errs = append(errs, seccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	return append(errs, appArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
}

// hostUsers keeps a pod with a user namespace of its own out of the node's
// other namespaces.
func hostUsers(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	if s.HostUsers == nil || *s.HostUsers {
		return nil
	}
	const msg = "when `hostUsers` is false"
	var errs field.ErrorList
	if s.HostNetwork {
		errs = append(errs, field.Forbidden(p.Child("hostNetwork"), msg))
	}
	if s.HostPID {
		errs = append(errs, field.Forbidden(p.Child("hostPID"), msg))
	}
	if s.HostIPC {
		errs = append(errs, field.Forbidden(p.Child("hostIPC"), msg))
	}
	return errs
}

func userID(id *int64, p *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return messages(p, *id, validation.IsValidUserID(*id))
}

func groupID(id *int64, p *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return messages(p, *id, validation.IsValidGroupID(*id))
}

// sysctls checks names, and that none belongs to a namespace the pod shares
// with its node.
func sysctls(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, ctl := range s.SecurityContext.Sysctls {
		at := p.Index(i).Child("name")
		name := strings.ReplaceAll(ctl.Name, "/", ".")
		switch {
		case ctl.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(ctl.Name) > maxSysctlLength || !sysctlName.MatchString(ctl.Name):
			errs = append(errs, field.Invalid(at, ctl.Name, "must have at most 253 characters and match regex ^"+sysctlPattern+"$"))
		case seen[name]:
			errs = append(errs, field.Duplicate(at, ctl.Name))
		case s.HostNetwork && strings.HasPrefix(name, "net."):
			errs = append(errs, field.Invalid(at, ctl.Name, "may not be specified when 'hostNetwork' is true"))
		case s.HostIPC && isIPCSysctl(name):
			errs = append(errs, field.Invalid(at, ctl.Name, "may not be specified when 'hostIPC' is true"))
		}
		seen[name] = true
	}
	return errs
}

func isIPCSysctl(name string) bool {
	return name == "kernel.sem" || slices.ContainsFunc([]string{"kernel.shm", "kernel.msg", "fs.mqueue."}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

func seccomp(s *corev1.SeccompProfile, p *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := oneOf(s.Type, p.Child("type"), corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	at := p.Child("localhostProfile")
	switch {
	case s.Type != corev1.SeccompProfileTypeLocalhost:
		if s.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(at, s, "can only be set when seccomp type is Localhost"))
		}
	case s.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	default:
		errs = append(errs, relativePath(*s.LocalhostProfile, at)...)
	}
	return errs
}

func (c *podContext) securityContext(sc *corev1.SecurityContext, p *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := userID(sc.RunAsUser, p.Child("runAsUser"))
	errs = append(errs, groupID(sc.RunAsGroup, p.Child("runAsGroup"))...)
	at := p.Child("procMount")
	errs = append(errs, optionalOneOf(sc.ProcMount, at, corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
	if deref(sc.ProcMount) == corev1.UnmaskedProcMount && (c.spec.HostUsers == nil || *c.spec.HostUsers) {
		errs = append(errs, field.Invalid(at, *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
	}
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if deref(sc.Privileged) {
			errs = append(errs, field.Invalid(p, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs, field.Invalid(p, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	errs = append(errs, seccomp(sc.SeccompProfile, p.Child("seccompProfile"))...)
	return append(errs, appArmor(sc.AppArmorProfile, p.Child("appArmorProfile"))...)
}

// podOS checks that a pod which names its operating system sets nothing that
// only the other one knows.
func podOS(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	if s.OS == nil {
		return nil
	}
	at := p.Child("os", "name")
	switch s.OS.Name {
	case corev1.Linux:
		return linuxOnly(s, p)
	case corev1.Windows:
		return windowsOnly(s, p)
	default:
		return oneOf(s.OS.Name, at, corev1.Linux, corev1.Windows)
	}
}

func linuxOnly(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	const msg = "windows options cannot be set for a linux pod"
	var errs field.ErrorList
	if s.SecurityContext != nil && s.SecurityContext.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(p.Child("securityContext", "windowsOptions"), msg))
	}
	eachContainer(s, p, func(c *corev1.Container, p *field.Path) {
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(p.Child("securityContext", "windowsOptions"), msg))
		}
	})
	return errs
}

func windowsOnly(s *corev1.PodSpec, p *field.Path) field.ErrorList {
	const msg = "cannot be set for a windows pod"
	var errs field.ErrorList
	forbid := func(set bool, p *field.Path) {
		if set {
			errs = append(errs, field.Forbidden(p, msg))
		}
	}
	forbid(s.HostPID, p.Child("hostPID"))
	forbid(s.HostIPC, p.Child("hostIPC"))
	forbid(s.HostUsers != nil, p.Child("hostUsers"))
	forbid(s.ShareProcessNamespace != nil, p.Child("shareProcessNamespace"))
	if sc := s.SecurityContext; sc != nil {
		at := p.Child("securityContext")
		forbid(sc.AppArmorProfile != nil, at.Child("appArmorProfile"))
		forbid(sc.SELinuxOptions != nil, at.Child("seLinuxOptions"))
		forbid(sc.SeccompProfile != nil, at.Child("seccompProfile"))
		forbid(sc.FSGroup != nil, at.Child("fsGroup"))
		forbid(sc.FSGroupChangePolicy != nil, at.Child("fsGroupChangePolicy"))
		forbid(len(sc.Sysctls) > 0, at.Child("sysctls"))
		forbid(sc.RunAsUser != nil, at.Child("runAsUser"))
		forbid(sc.RunAsGroup != nil, at.Child("runAsGroup"))
		forbid(sc.SupplementalGroups != nil, at.Child("supplementalGroups"))
		forbid(sc.SupplementalGroupsPolicy != nil, at.Child("supplementalGroupsPolicy"))
	}
	eachContainer(s, p, func(c *corev1.Container, p *field.Path) {
		sc, at := c.SecurityContext, p.Child("securityContext")
		if sc == nil {
			return
		}
		forbid(sc.AppArmorProfile != nil, at.Child("appArmorProfile"))
		forbid(sc.SELinuxOptions != nil, at.Child("seLinuxOptions"))
		forbid(sc.SeccompProfile != nil, at.Child("seccompProfile"))
		forbid(sc.Capabilities != nil, at.Child("capabilities"))
		forbid(sc.ReadOnlyRootFilesystem != nil, at.Child("readOnlyRootFilesystem"))
		forbid(sc.Privileged != nil, at.Child("privileged"))
		forbid(sc.AllowPrivilegeEscalation != nil, at.Child("allowPrivilegeEscalation"))
		forbid(sc.ProcMount != nil, at.Child("procMount"))
		forbid(sc.RunAsUser != nil, at.Child("runAsUser"))
		forbid(sc.RunAsGroup != nil, at.Child("runAsGroup"))
	})
	return errs
}

// eachContainer calls f for every container of a pod with its path.
func eachContainer(s *corev1.PodSpec, p *field.Path, f func(*corev1.Container, *field.Path)) {
	for i := range s.InitContainers {
		f(&s.InitContainers[i], p.Child("initContainers").Index(i))
	}
	for i := range s.Containers {
		f(&s.Containers[i], p.Child("containers").Index(i))
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		f(&c, p.Child("ephemeralContainers").Index(i))
	}
}
