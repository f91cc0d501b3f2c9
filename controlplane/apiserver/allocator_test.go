package apiserver

// The lock under which services are given their addresses.

import (
	"context"
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
