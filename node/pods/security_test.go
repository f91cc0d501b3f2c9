package pods

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
)

// Each setting of a security context is enforced or refused.
func TestRefusedSecurity(t *testing.T) {
	inPod := func(f func(s *corev1.PodSecurityContext)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{}
			f(p.Spec.SecurityContext)
		}
	}
	inContainer := func(f func(s *corev1.SecurityContext)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{}
			f(p.Spec.Containers[0].SecurityContext)
		}
	}
	profile := func(kind corev1.SeccompProfileType) *corev1.SeccompProfile { return &corev1.SeccompProfile{Type: kind} }
	for name, tt := range map[string]struct {
		change  func(p *corev1.Pod)
		reason  string // "" when it is accepted
		message string
	}{
		"nothing":          {change: func(*corev1.Pod) {}},
		"hostNetwork":      {change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		"hostIPC":          {change: func(p *corev1.Pod) { p.Spec.HostIPC = true }},
		"hostPID":          {change: func(p *corev1.Pod) { p.Spec.HostPID = true }},
		"shared processes": {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = ptr.To(true) }, securityReason, "spec.shareProcessNamespace is not supported on this node: each container has process ids of its own; leave it out (kubectl debug --copy-to: --share-processes=false)"},
		"separate":         {change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = ptr.To(false) }},
		"user namespace":   {func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) }, securityReason, "spec.hostUsers: false"},
		"the host's users": {change: func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(true) }},
		"claims": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("x")}}
		}, securityReason, "spec.resourceClaims"},
		"runtime class": {func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("gvisor") }, securityReason, "spec.runtimeClassName"},
		"restart rule": {change: func(p *corev1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}}
		}},
		"rule for all": {func(p *corev1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
		}, "RestartRuleNotSupported", "container main: restartPolicyRules: RestartAllContainers"},
		"sysctls": {inPod(func(s *corev1.PodSecurityContext) {
			s.Sysctls = []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}
		}), "SysctlForbidden", "sysctls"},
		"groups merged": {inPod(func(s *corev1.PodSecurityContext) {
			s.SupplementalGroupsPolicy = ptr.To(corev1.SupplementalGroupsPolicyMerge)
		}), securityReason, "supplementalGroupsPolicy: Merge"},
		"groups strict": {change: inPod(func(s *corev1.PodSecurityContext) {
			s.SupplementalGroupsPolicy = ptr.To(corev1.SupplementalGroupsPolicyStrict)
		})},
		"pod selinux": {inPod(func(s *corev1.PodSecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0"} }), securityReason, "spec.securityContext.seLinuxOptions"},
		"pod windows": {inPod(func(s *corev1.PodSecurityContext) { s.WindowsOptions = &corev1.WindowsSecurityContextOptions{} }), securityReason, "windowsOptions"},
		"pod apparmor": {inPod(func(s *corev1.PodSecurityContext) {
			s.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
		}), "AppArmor", "appArmorProfile: RuntimeDefault"},
		"pod seccomp": {change: inPod(func(s *corev1.PodSecurityContext) {
			s.SeccompProfile = profile(corev1.SeccompProfileTypeRuntimeDefault)
		})},
		"pod local seccomp": {inPod(func(s *corev1.PodSecurityContext) { s.SeccompProfile = profile(corev1.SeccompProfileTypeLocalhost) }), securityReason, "seccompProfile: Localhost"},
		"users":             {change: inPod(func(s *corev1.PodSecurityContext) { s.RunAsUser, s.FSGroup = ptr.To(int64(1)), ptr.To(int64(2)) })},
		"selinux":           {inContainer(func(s *corev1.SecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{Type: "t"} }), securityReason, "container main: securityContext.seLinuxOptions"},
		"empty selinux":     {change: inContainer(func(s *corev1.SecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{} })},
		"windows":           {inContainer(func(s *corev1.SecurityContext) { s.WindowsOptions = &corev1.WindowsSecurityContextOptions{} }), securityReason, "windowsOptions"},
		"apparmor": {inContainer(func(s *corev1.SecurityContext) {
			s.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost}
		}), "AppArmor", "Cannot enforce AppArmor"},
		"no apparmor": {change: inContainer(func(s *corev1.SecurityContext) {
			s.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		})},
		"seccomp":      {inContainer(func(s *corev1.SecurityContext) { s.SeccompProfile = profile("Other") }), securityReason, "seccompProfile: Other"},
		"no seccomp":   {change: inContainer(func(s *corev1.SecurityContext) { s.SeccompProfile = profile(corev1.SeccompProfileTypeUnconfined) })},
		"proc":         {inContainer(func(s *corev1.SecurityContext) { s.ProcMount = ptr.To(corev1.UnmaskedProcMount) }), securityReason, "procMount: Unmasked"},
		"default proc": {change: inContainer(func(s *corev1.SecurityContext) { s.ProcMount = ptr.To(corev1.DefaultProcMount) })},
		"propagation": {func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPropagation: ptr.To(corev1.MountPropagationBidirectional)}}
		}, securityReason, "volumeMounts.v.mountPropagation: Bidirectional"},
		"init": {func(p *corev1.Pod) {
			c := container1("first")
			c.SecurityContext = &corev1.SecurityContext{ProcMount: ptr.To(corev1.UnmaskedProcMount)}
			p.Spec.InitContainers = []corev1.Container{c}
		}, securityReason, "container first: "},
	} {
		t.Run(name, func(t *testing.T) {
			got := admit(newPod("p", tt.change), nil, nil, 10)
			switch {
			case tt.reason == "" && got != nil:
				t.Errorf("refused: %+v", got)
			case tt.reason != "" && (got == nil || got.reason != tt.reason || !strings.Contains(got.message, tt.message)):
				t.Errorf("got %+v, want %s and %q", got, tt.reason, tt.message)
			}
		})
	}
}

func TestSecurityOf(t *testing.T) {
	p := newPod("p", func(p *corev1.Pod) {
		p.Spec.HostIPC, p.Spec.HostPID = true, true
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	})
	c := &p.Spec.Containers[0]
	if got, want := securityOf(p, c, false), (runtime.Security{HostIPC: true, HostPID: true, DefaultSeccomp: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	c.SecurityContext = &corev1.SecurityContext{
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
		Privileged:   ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
	}
	want := runtime.Security{
		Privileged: true, AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}, ReadOnlyRoot: true, NoNewPrivileges: true, HostIPC: true, HostPID: true,
	}
	if got := securityOf(p, c, false); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	c.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(true)}
	if securityOf(p, c, false).NoNewPrivileges {
		t.Error("privileges may be gained")
	}
	// Without a profile the node's default counts, and Unconfined is a profile.
	if !securityOf(p, c, false).DefaultSeccomp {
		t.Error("the pod's profile does not count")
	}
	p.Spec.SecurityContext = nil
	if securityOf(p, c, false).DefaultSeccomp || !securityOf(p, c, true).DefaultSeccomp {
		t.Error("the node's default does not count")
	}
	c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	if securityOf(p, c, true).DefaultSeccomp {
		t.Error("Unconfined does not count")
	}
}

func TestPodResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	two := func(requests, limits [2]corev1.ResourceList) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			a, b := container1("a"), container1("b")
			a.Resources = corev1.ResourceRequirements{Requests: requests[0], Limits: limits[0]}
			b.Resources = corev1.ResourceRequirements{Requests: requests[1], Limits: limits[1]}
			p.Spec.Containers = []corev1.Container{a, b}
		}
	}
	asked := [2]corev1.ResourceList{list("500m", "64Mi"), list("1500m", "64Mi")}
	for name, tt := range map[string]struct {
		change func(p *corev1.Pod)
		want   runtime.Resources
	}{
		"best effort": {two([2]corev1.ResourceList{}, [2]corev1.ResourceList{}), runtime.Resources{CPUShares: 2, PIDs: 100}},
		"requests":    {two(asked, [2]corev1.ResourceList{}), runtime.Resources{CPUShares: 2048, PIDs: 100}},
		"limits":      {two(asked, asked), runtime.Resources{CPUShares: 2048, CPUMilli: 2000, MemoryBytes: 128 << 20, PIDs: 100}},
		"one without": {two(asked, [2]corev1.ResourceList{list("1", "64Mi"), list("1", "")}), runtime.Resources{CPUShares: 2048, CPUMilli: 2000, PIDs: 100}},
		"of the pod": {func(p *corev1.Pod) {
			two([2]corev1.ResourceList{}, [2]corev1.ResourceList{})(p)
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("1", "32Mi"), Limits: list("", "64Mi")}
		}, runtime.Resources{CPUShares: 1024, MemoryBytes: 64 << 20, PIDs: 100}},
	} {
		if got := podResources(newPod("p", tt.change), 100); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestOOMScore(t *testing.T) {
	const node = 1 << 30
	for name, tt := range map[string]struct {
		class   corev1.PodQOSClass
		request string
		change  func(p *corev1.Pod)
		memory  int64
		want    int
	}{
		"guaranteed":   {class: corev1.PodQOSGuaranteed, request: "512Mi", memory: node, want: -997},
		"best effort":  {class: corev1.PodQOSBestEffort, memory: node, want: 1000},
		"burstable":    {class: corev1.PodQOSBurstable, request: "256Mi", memory: node, want: 750},
		"small":        {class: corev1.PodQOSBurstable, request: "1", memory: node, want: 999},
		"all":          {class: corev1.PodQOSBurstable, request: "1Gi", memory: node, want: 3},
		"unknown node": {class: corev1.PodQOSBurstable, request: "1Gi", want: 999},
		"critical":     {class: corev1.PodQOSBestEffort, memory: node, want: -997, change: func(p *corev1.Pod) { p.Spec.Priority = ptr.To(int32(2_000_001_000)) }},
		"not critical": {class: corev1.PodQOSBestEffort, memory: node, want: 1000, change: func(p *corev1.Pod) { p.Spec.Priority = ptr.To(int32(2_000_000_000)) }},
		"pod's request": {class: corev1.PodQOSBurstable, request: "256Mi", memory: node, want: 500, change: func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")}}
		}},
	} {
		p := newPod("p", func(p *corev1.Pod) {
			p.Status.QOSClass = tt.class
			if tt.request != "" {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(tt.request)}
			}
			if tt.change != nil {
				tt.change(p)
			}
		})
		if got := oomScore(p, &p.Spec.Containers[0], tt.memory); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

// TestOOMScoreOfSidecar: it is at most that of the regular container with the least request.
func TestOOMScoreOfSidecar(t *testing.T) {
	always, never := ptr.To(corev1.ContainerRestartPolicyAlways), ptr.To(corev1.ContainerRestartPolicyNever)
	with := func(name, memory string, policy *corev1.ContainerRestartPolicy) corev1.Container {
		c := container1(name)
		c.RestartPolicy = policy
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		return c
	}
	p := newPod("p", func(p *corev1.Pod) {
		p.Status.QOSClass = corev1.PodQOSBurstable
		p.Spec.InitContainers = []corev1.Container{with("init", "0", nil), with("once", "0", never), with("small", "64Mi", always), with("large", "384Mi", always)}
		p.Spec.Containers = []corev1.Container{with("a", "512Mi", nil), with("b", "256Mi", always)}
	})
	want := func(scores map[string]int) {
		t.Helper()
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			if got := oomScore(p, &c, 1<<30); got != scores[c.Name] {
				t.Errorf("%s: got %d, want %d", c.Name, got, scores[c.Name])
			}
		}
	}
	want(map[string]int{"init": 999, "once": 999, "small": 750, "large": 625, "a": 500, "b": 750})
	// The requests of the containers that run at the same time are 1216 MiB; of the 96 MiB beyond them
	// each container has 16 MiB.
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1312Mi")}}
	want(map[string]int{"init": 985, "once": 985, "small": 735, "large": 610, "a": 485, "b": 735})
}
