// The chain of admission plugins.

package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	builtin "github.com/hawser-project/hawser/controlplane/apiserver/admission"
)

// admission makes the chain: what changes objects first, then what only refuses
// them, then Config.Admission.
func (s *Server) admission(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory) (admission.Interface, error) {
	namespaces, err := builtin.NamespaceLifecycle(systemNamespaces()...)
	if err != nil {
		return nil, err
	}
	security, err := builtin.PodSecurity(func(ctx context.Context, name string) (*corev1.Namespace, error) { return s.namespace(ctx, name) })
	if err != nil {
		return nil, err
	}
	chain := append([]admission.Interface{
		namespaces,
		builtin.TaintNodesByCondition(),
		builtin.ServiceAccount(),
		builtin.Priority(),
		builtin.DefaultTolerationSeconds(*s.cfg.NotReadyTolerationSeconds, *s.cfg.UnreachableTolerationSeconds),
		builtin.PodTopologyLabels(func(ctx context.Context, name string) (*corev1.Node, error) { return s.node(ctx, name) }),
		security,
		builtin.CertificateApproval(s.authz),
		builtin.CertificateSigning(s.authz),
	}, s.cfg.Admission...)
	initialize := initializer.New(client, nil, shared, s.authz, utilfeature.DefaultFeatureGate, newVersion(), ctx.Done(), nil)
	for _, p := range chain {
		initialize.Initialize(p)
		if err := admission.ValidateInitialization(p); err != nil {
			return nil, fmt.Errorf("admission plugin %T: %w", p, err)
		}
	}
	return admission.NewChainHandler(chain...), nil
}
