// The chain of admission plugins.

package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	builtin "github.com/hawser-project/hawser/controlplane/apiserver/admission"
)

// admission makes the chain: what changes objects first, then what only refuses
// them, then Config.Admission, then what the cluster's users have set up, and at last
// quotas. served is closed once no request is served any more.
func (s *Server) admission(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory, served <-chan struct{}) (admission.Interface, error) {
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
		builtin.ServiceAccount(s.cfg.Tokens != nil),
		builtin.LimitRanger(func(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
			return s.limits(ctx, namespace)
		}),
		builtin.Priority(),
		builtin.DefaultTolerationSeconds(*s.cfg.NotReadyTolerationSeconds, *s.cfg.UnreachableTolerationSeconds),
		builtin.PodTopologyLabels(func(ctx context.Context, name string) (*corev1.Node, error) { return s.node(ctx, name) }),
		security,
		builtin.CertificateApproval(s.authz),
		builtin.CertificateSigning(s.authz),
		builtin.Effect(),
	}, s.cfg.Admission...)
	initialize, err := s.initializer(ctx, client, shared)
	if err != nil {
		return nil, err
	}
	others, err := decidedByOthers(shared, initialize)
	if err != nil {
		return nil, err
	}
	quotas, err := builtin.ResourceQuota(builtin.QuotaConfig{
		Stored: func(ctx context.Context, namespace string) (bool, error) { return s.hasQuota(ctx, namespace) }, Ignored: notStored(), Served: served,
	})
	if err != nil {
		return nil, err
	}
	chain = append(append(chain, others...), quotas)
	for _, p := range chain {
		if err := initialize(p); err != nil {
			return nil, err
		}
	}
	return admission.NewChainHandler(chain...), nil
}

// initializer gives plugins what they ask for.
func (s *Server) initializer(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory) (func(admission.Interface) error, error) {
	params, err := dynamic.NewForConfig(s.loopback)
	if err != nil {
		return nil, fmt.Errorf("client of policies' parameters: %w", err)
	}
	kinds := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	all := admission.PluginInitializers{
		initializer.New(client, params, shared, s.authz, utilfeature.DefaultFeatureGate, newVersion(), ctx.Done(), kinds),
		webhookinit.NewPluginInitializer(s.toWebhooks, s),
	}
	return func(p admission.Interface) error {
		all.Initialize(p)
		if p, ok := p.(initializer.WantsExcludedAdmissionResources); ok {
			p.SetExcludedAdmissionResources(notStored())
		}
		if err := admission.ValidateInitialization(p); err != nil {
			return fmt.Errorf("admission plugin %T: %w", p, err)
		}
		return nil
	}, nil
}
