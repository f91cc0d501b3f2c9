package apiserver

// The lock under which services are given their addresses.

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestAddressesAreAwaited: a write that waits for another service's addresses ends with its request,
// and one that would have others wait for long is refused before.
func TestAddressesAreAwaited(t *testing.T) {
	a := &serviceAllocator{turn: make(chan struct{}, 1)}
	a.lock() // another service is being given its addresses
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.begin(ctx, &corev1.Service{}, nil, false); !apierrors.IsTimeout(err) {
		t.Errorf("a write whose request has ended: %v", err)
	}
	many := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: make([]corev1.ServicePort, maxNodePorts+1)}}
	if _, err := a.begin(t.Context(), many, nil, false); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.ports: Too many: 257: must have at most 256 items") {
		t.Errorf("257 node ports: %v", err)
	}
	if _, err := a.begin(ctx, many, many.DeepCopy(), false); !apierrors.IsTimeout(err) { // it is stored already
		t.Errorf("257 node ports as before: %v", err)
	}
	plain := many.DeepCopy()
	plain.Spec.Type = corev1.ServiceTypeClusterIP
	if _, err := a.begin(ctx, many, plain, false); !apierrors.IsInvalid(err) {
		t.Errorf("257 ports that get node ports: %v", err)
	}
}

// TestFamilies: a service that wants a family of addresses which the cluster lacks is refused,
// unless it wants it already or somebody else keeps its endpoints.
func TestFamilies(t *testing.T) {
	a := &serviceAllocator{cidr: netip.MustParsePrefix("10.96.0.0/12"), turn: make(chan struct{}, 1)}
	a.lock() // what is not refused waits
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	service := func(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"a": "b"}, IPFamilies: families, IPFamilyPolicy: &policy,
		}}
	}
	headless := service(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv6Protocol)
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = "None", []string{"None"}
	free := headless.DeepCopy()
	free.Spec.Selector = nil
	named := service(corev1.IPFamilyPolicySingleStack)
	named.Spec.Type = corev1.ServiceTypeExternalName
	other := service(corev1.IPFamilyPolicySingleStack)
	other.Spec.ClusterIP = "fd00::1"
	const (
		dual    = `spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`
		missing = `spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`
	)
	for name, c := range map[string]struct {
		s, old *corev1.Service
		want   []string
	}{
		"its own":             {s: service(corev1.IPFamilyPolicySingleStack, corev1.IPv4Protocol)},
		"any":                 {s: service(corev1.IPFamilyPolicyPreferDualStack)},
		"another":             {s: service(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol), want: []string{missing}},
		"both":                {s: service(corev1.IPFamilyPolicyRequireDualStack), want: []string{dual}},
		"a second":            {s: service(corev1.IPFamilyPolicyPreferDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol), want: []string{`spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster`}},
		"headless":            {s: headless, want: []string{missing, dual}},
		"without a selector":  {s: free},
		"by its address":      {s: other, want: []string{`spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster`}},
		"as before":           {s: headless, old: headless.DeepCopy()},
		"another than before": {s: headless, old: service(corev1.IPFamilyPolicyRequireDualStack), want: []string{missing}},
		"no family there is":  {s: service(corev1.IPFamilyPolicySingleStack, "IPv5")},
		"by name":             {s: named},
		"no longer by name":   {s: service(corev1.IPFamilyPolicyRequireDualStack), old: named, want: []string{dual}},
	} {
		_, err := a.begin(ctx, c.s, c.old, false)
		if len(c.want) == 0 && !apierrors.IsTimeout(err) || len(c.want) > 0 && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		}
	}
}
