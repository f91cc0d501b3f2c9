// Resource quotas: no more of a namespace's objects than its quotas have room for.

package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
	"github.com/hawser-project/hawser/controlplane/quota"
)

// quotaWorkers is how many namespaces are charged at a time, as in Kubernetes.
const quotaWorkers = 5

// QuotaConfig configures ResourceQuota. All of it is required.
type QuotaConfig struct {
	// Stored asks the store whether a namespace has a quota. That is needed only until
	// all quotas have been listed.
	Stored func(ctx context.Context, namespace string) (bool, error)
	// Ignored are kinds that are not stored.
	Ignored []schema.GroupResource
	// Served is closed once no request is served any more.
	Served <-chan struct{}
}

// ResourceQuota charges new objects, and old ones that grow, to the quotas of their
// namespace, and refuses those for which there is no room. It is to be the last plugin:
// what another one refuses afterwards has been charged.
//
// The library's plugin does it: it writes status.used in the version that it has read, so
// that of several servers on one store only one gives the last place away. Requests in a
// namespace without quotas never come to it, and neither do those of the server itself.
func ResourceQuota(c QuotaConfig) (admission.Interface, error) {
	p, err := resourcequota.NewResourceQuota(nil, quotaWorkers) // nothing is limited that no quota names
	if err != nil {
		return nil, fmt.Errorf("resource quota: %w", err)
	}
	return &quotas{Handler: admission.NewHandler(admission.Create, admission.Update), cfg: c, plugin: p}, nil
}

type quotas struct {
	*admission.Handler
	cfg    QuotaConfig
	plugin *resourcequota.QuotaAdmission
	quotas cache.SharedIndexInformer // set before anything is asked
}

// SetExternalKubeClientSet implements initializer.WantsExternalKubeClientSet.
func (q *quotas) SetExternalKubeClientSet(c kubernetes.Interface) {
	q.plugin.SetExternalKubeClientSet(c)
}

// SetExternalKubeInformerFactory implements initializer.WantsExternalKubeInformerFactory.
func (q *quotas) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	q.quotas = f.Core().V1().ResourceQuotas().Informer()
	q.plugin.SetExternalKubeInformerFactory(f)
}

// ValidateInitialization implements admission.InitializationValidator.
func (q *quotas) ValidateInitialization() error {
	if q.quotas == nil {
		return errors.New("resource quota: no informers")
	}
	ignored := make(map[schema.GroupResource]struct{})
	for _, gr := range append(quota.Ignored(), q.cfg.Ignored...) {
		ignored[gr] = struct{}{}
	}
	q.plugin.SetDrainedNotification(q.cfg.Served)
	q.plugin.SetQuotaConfiguration(generic.NewConfiguration(quota.ForAdmission(), ignored))
	return q.plugin.ValidateInitialization()
}

// Validate implements admission.ValidationInterface.
func (q *quotas) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := noMirror(a); err != nil {
		return err
	}
	// Only objects of the core group take more when they are updated: a lease never does.
	fixed := a.GetOperation() == admission.Update && a.GetResource().Group != corev1.GroupName
	if a.GetNamespace() == "" || fixed || ofServer(a.GetUserInfo()) {
		return nil
	}
	any, err := q.any(ctx, a.GetNamespace())
	if err != nil {
		return fault("quotas of namespace "+a.GetNamespace(), err)
	}
	if !any {
		return nil
	}
	return q.plugin.Validate(ctx, a, o)
}

// noMirror refuses to make a pod, or to make of one, what only a node makes of its own.
func noMirror(a admission.Attributes) error {
	p, ok := a.GetObject().(*corev1.Pod)
	if !ok || !kinds.IsMirror(p) {
		return nil
	}
	if old, ok := a.GetOldObject().(*corev1.Pod); ok && kinds.IsMirror(old) {
		return nil
	}
	node := p.Spec.NodeName
	if u := a.GetUserInfo(); u != nil && u.GetName() == "system:node:"+node && slices.Contains(u.GetGroups(), user.NodesGroup) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("a pod with the annotation %s and node %s as its controller counts against no quota: only node %s itself makes one; leave the annotation or the owner out",
		corev1.MirrorPodAnnotationKey, node, node))
}

// ofServer tells whether this server itself asks. A quota must not keep it from making
// what every cluster has, without which it does not start.
func ofServer(u user.Info) bool {
	return u != nil && u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// any tells whether a namespace has a quota. If quotas cannot be listed, because of one
// that cannot be read, that must not stop the other namespaces.
func (q *quotas) any(ctx context.Context, namespace string) (bool, error) {
	if !q.quotas.HasSynced() {
		return q.cfg.Stored(ctx, namespace)
	}
	keys, err := q.quotas.GetIndexer().IndexKeys(cache.NamespaceIndex, namespace)
	return len(keys) > 0, err
}
