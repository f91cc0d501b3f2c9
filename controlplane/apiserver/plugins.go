// The chain of admission plugins.

package apiserver

import (
	"context"
	"fmt"
	"slices"

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

// A plugin can be left out by its name, which is Kubernetes'.
type plugin struct {
	name string
	make func() (admission.Interface, error)
}

// AdmissionPlugins are the names of the plugins that Config.DisabledAdmission can have,
// in the order in which they are asked.
func AdmissionPlugins() []string {
	var s Server
	var names []string
	for _, p := range append(s.builtin(), s.late(nil, nil, nil)...) {
		names = append(names, p.name)
	}
	return names
}

// admission makes the chain: what changes objects first, then what only refuses
// them, then Config.Admission, then what the cluster's users have set up, and at last
// quotas. served is closed once no request is served any more.
func (s *Server) admission(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory, served <-chan struct{}) (admission.Interface, error) {
	initialize, err := s.initializer(ctx, client, shared)
	if err != nil {
		return nil, err
	}
	chain, err := s.enabled(s.builtin())
	if err != nil {
		return nil, err
	}
	late, err := s.enabled(s.late(shared, initialize, served))
	if err != nil {
		return nil, err
	}
	if !s.cfg.FeatureGates.Enabled(TaintTolerationComparisonOperators) {
		chain = append(chain, builtin.WithoutComparisons())
	}
	chain = append(append(append(chain, builtin.Effect(s.cfg.Balances, s.cfg.Runs)), s.cfg.Admission...), late...)
	for _, p := range chain {
		if err := initialize(p); err != nil {
			return nil, err
		}
	}
	return reinvoking{admission.NewChainHandler(chain...)}, nil
}

// A reinvoking chain is asked once more when a webhook has changed the object: the webhooks
// that have reinvocationPolicy IfNeeded, and all other plugins.
type reinvoking struct {
	chain interface {
		admission.MutationInterface
		admission.ValidationInterface
	}
}

// Handles implements admission.Interface.
func (r reinvoking) Handles(o admission.Operation) bool { return r.chain.Handles(o) }

// Admit implements admission.MutationInterface.
func (r reinvoking) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := r.chain.Admit(ctx, a, o); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return r.chain.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (r reinvoking) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return r.chain.Validate(ctx, a, o)
}

// enabled makes the plugins that are not disabled.
func (s *Server) enabled(all []plugin) ([]admission.Interface, error) {
	var chain []admission.Interface
	for _, p := range all {
		if slices.Contains(s.cfg.DisabledAdmission, p.name) {
			continue
		}
		made, err := p.make()
		if err != nil {
			return nil, err
		}
		chain = append(chain, made)
	}
	return chain, nil
}

// builtin are the plugins that know what objects they are about.
func (s *Server) builtin() []plugin {
	always := func(f func() admission.Interface) func() (admission.Interface, error) {
		return func() (admission.Interface, error) { return f(), nil }
	}
	node := func(ctx context.Context, name string) (*corev1.Node, error) { return s.node(ctx, name) }
	return []plugin{
		{"NamespaceLifecycle", func() (admission.Interface, error) { return builtin.NamespaceLifecycle(systemNamespaces()...) }},
		{"TaintNodesByCondition", always(builtin.TaintNodesByCondition)},
		{"ServiceAccount", always(func() admission.Interface { return builtin.ServiceAccount(s.cfg.Tokens != nil) })},
		{"LimitRanger", always(func() admission.Interface {
			return builtin.LimitRanger(func(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
				return s.limits(ctx, namespace)
			})
		})},
		{"Priority", always(builtin.Priority)},
		{"DefaultTolerationSeconds", always(func() admission.Interface {
			return builtin.DefaultTolerationSeconds(*s.cfg.NotReadyTolerationSeconds, *s.cfg.UnreachableTolerationSeconds)
		})},
		{"PodTopologyLabels", always(func() admission.Interface { return builtin.PodTopologyLabels(node) })},
		{"PodSecurity", func() (admission.Interface, error) {
			return builtin.PodSecurity(func(ctx context.Context, name string) (*corev1.Namespace, error) { return s.namespace(ctx, name) })
		}},
		{"DefaultStorageClass", always(builtin.DefaultStorageClass)},
		{"RuntimeClass", always(builtin.RuntimeClass)},
		{"CertificateApproval", always(func() admission.Interface { return builtin.CertificateApproval(s.authz) })},
		{"CertificateSigning", always(func() admission.Interface { return builtin.CertificateSigning(s.authz) })},
		{"DefaultIngressClass", always(builtin.DefaultIngressClass)},
		{"PodResizeValidator", always(func() admission.Interface { return builtin.PodResizeValidator(node) })},
	}
}

// late are the plugins that go by what the cluster's users have set up, in Kubernetes'
// order. Those that are made when they are needed are readied by initialize.
func (s *Server) late(shared informers.SharedInformerFactory, initialize func(admission.Interface) error, served <-chan struct{}) []plugin {
	return append(decidedByOthers(shared, initialize), plugin{"ResourceQuota", func() (admission.Interface, error) {
		return builtin.ResourceQuota(builtin.QuotaConfig{
			Stored: func(ctx context.Context, namespace string) (bool, error) { return s.hasQuota(ctx, namespace) }, Ignored: notStored(), Served: served,
		})
	}})
}

// initializer gives plugins what they ask for.
func (s *Server) initializer(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory) (func(admission.Interface) error, error) {
	params, err := dynamic.NewForConfig(s.loopback)
	if err != nil {
		return nil, fmt.Errorf("client of policies' parameters: %w", err)
	}
	s.kinds = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	all := admission.PluginInitializers{
		initializer.New(client, params, shared, s.authz, utilfeature.DefaultFeatureGate, newVersion(), ctx.Done(), s.kinds),
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
