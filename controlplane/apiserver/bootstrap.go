// The objects that every cluster has, and the loop that keeps them.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/auth/rbac"
	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

const (
	// startTimeout bounds the wait for the server to call itself ready.
	startTimeout = time.Minute
	// startPoll is how often it is asked.
	startPoll = 25 * time.Millisecond
	// builtinPatience is how long built-in objects that cannot be made hold up the start, and
	// builtinAgain how long they are left before they are tried again meanwhile.
	builtinPatience = 5 * time.Second
	builtinAgain    = time.Second
	// authenticationConfig tells extension servers whom to believe.
	authenticationConfig = "extension-apiserver-authentication"
)

// systemNamespaces exist in every cluster and cannot be deleted.
func systemNamespaces() []string {
	return []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, nodekeys.Namespace}
}

// bootstrap waits for the server, makes the built-in objects that can be made, closes s.ready,
// and then keeps those objects until ctx is done. Shared is followed until watching is done.
func (s *Server) bootstrap(ctx, watching context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory) error {
	flow := make(chan struct{}, 1)
	if err := flowChanges(shared, flow); err != nil {
		return fmt.Errorf("watch flow control: %w", err)
	}
	shared.Start(watching.Done())
	if err := s.awaitServing(ctx, client.Discovery().RESTClient(), shared); err != nil {
		return err
	}
	right := s.makeBuiltins(ctx, client)
	s.readyAt = time.Now()
	close(s.ready)
	// The start, with its OpenAPI documents, leaves several times as much garbage
	// as what stays; nothing else would give it back soon.
	debug.FreeOSMemory()
	s.keep(ctx, client, flow, right)
	return nil
}

// makeBuiltins makes the built-in objects, and reports whether they are as they should be. Those
// that are refused longer, such as by a webhook whose backend is a pod of a node that has yet to
// connect, are left to keep: as in Kubernetes, the server serves.
func (s *Server) makeBuiltins(ctx context.Context, client kubernetes.Interface) (right bool) {
	late := time.After(builtinPatience)
	for {
		err := errors.Join(s.ensureAll(ctx, client), ensureRules(ctx, client))
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		s.cfg.Log.Warn("cannot make all built-in objects, will try again", "err", err)
		select {
		case <-ctx.Done():
		case <-late:
			return false
		case <-time.After(builtinAgain):
		}
	}
}

// ensureRules makes and corrects the objects of flow control and of access control.
func ensureRules(ctx context.Context, client kubernetes.Interface) error {
	return errors.Join(ensureFlow(ctx, client), rbac.Reconcile(ctx, client))
}

// keep keeps the built-in objects until ctx is done. There is word in flow when an
// object of flow control changed. right is whether those of ensureRules are as they should be.
func (s *Server) keep(ctx context.Context, client kubernetes.Interface, flow <-chan struct{}, right bool) {
	tick := time.NewTicker(s.cfg.BuiltinPeriod)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			if err = s.sayGoodbye(ctx, client); err != nil {
				s.cfg.Log.Warn("the service default/kubernetes leads to this server for a while", "err", err)
			}
			return
		case <-flow:
			err = ensureFlow(ctx, client)
			right = right && err == nil
		case <-tick.C:
			err = s.ensureAll(ctx, client)
			if !right {
				again := ensureRules(ctx, client)
				right, err = again == nil, errors.Join(err, again)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot keep the built-in objects, will try again", "in", s.cfg.BuiltinPeriod, "err", err)
		}
	}
}

// builtinCheck is the part of /readyz that says whether the built-in objects
// exist: who hears yes may count on them.
const builtinCheck = "built-in-objects"

// builtinMade is that check.
func (s *Server) builtinMade(*http.Request) error {
	select {
	case <-s.ready:
		return nil
	default:
		return errors.New("the objects that every cluster has are still being made")
	}
}

// listedCheck is the part that says whether authorizers know what they go by: until then
// they tell users to try again. It begins to be listed when Ready is closed.
const listedCheck = "authorizer-informer-sync"

// listed is that check.
func (s *Server) listed(r *http.Request) error {
	if err := s.builtinMade(r); err != nil || s.cfg.Listed == nil {
		return err
	}
	select {
	case <-s.cfg.Listed:
		return nil
	default:
	}
	if time.Since(s.readyAt) > s.cfg.ReadyBound {
		return nil // as with kinds that cannot be listed
	}
	return errors.New("what the authorizers go by has not been listed yet")
}

// informerCheck is the part that says whether all kinds that the server itself watches
// have been listed.
const informerCheck = "informer-sync"

// chainChecks are the parts that say whether definitions of custom resources and APIServices
// are known, and served.
var chainChecks = []string{
	"poststarthook/hawser-" + definitionsSynced, "poststarthook/start-apiextensions-controllers",
	"poststarthook/apiservice-registration-controller", "poststarthook/apiservice-discovery-controller", registrationCheck,
}

// awaitServing polls /readyz for all the rest. One kind that cannot be listed, because
// of an object that cannot be read, is not waited for longer than Config.ReadyBound:
// without this server nobody could mend it, and nothing else would work either.
func (s *Server) awaitServing(ctx context.Context, client rest.Interface, shared informers.SharedInformerFactory) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick, bound := time.NewTicker(startPoll), time.NewTimer(s.cfg.ReadyBound)
	defer tick.Stop()
	defer bound.Stop()
	ask := func(exclude ...string) error {
		r := client.Get().AbsPath("/readyz")
		for _, check := range exclude {
			r.Param("exclude", check)
		}
		return r.Do(ctx).Error()
	}
	exclude, late := []string{builtinCheck, listedCheck}, false
	for {
		err := ask(exclude...)
		if err == nil {
			if late {
				s.cfg.Log.Warn("kinds cannot be listed; what needs them is refused, all else is served", "missing", missing(shared))
			}
			return nil
		}
		select {
		case <-bound.C:
			exclude, late = append(append(exclude, informerCheck), chainChecks...), true
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", startTimeout, err)
		}
	}
}

// missing returns the kinds that shared has not listed yet, sorted.
func missing(shared informers.SharedInformerFactory) []string {
	now := make(chan struct{})
	close(now)
	var out []string
	for typ, ok := range shared.WaitForCacheSync(now) {
		if !ok {
			out = append(out, typ.Elem().Name())
		}
	}
	slices.Sort(out)
	return out
}

// ensureAll makes what is missing of the built-in objects, except those of flow
// control.
func (s *Server) ensureAll(ctx context.Context, client kubernetes.Interface) error {
	var errs []error
	for _, name := range systemNamespaces() {
		errs = append(errs, ensure(ctx, client.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil))
	}
	for _, class := range kinds.SystemPriorityClasses() {
		errs = append(errs, ensure(ctx, client.SchedulingV1().PriorityClasses(), class, nil))
	}
	errs = append(errs, s.ensureAuthentication(ctx, client), s.ensureRange(ctx, client), s.ensureKubernetes(ctx, client))
	return errors.Join(errs...)
}

// ensureRange makes the ServiceCIDR of the range that services get their addresses from. One
// of another range, from before, stays: what it says cannot be changed.
func (s *Server) ensureRange(ctx context.Context, client kubernetes.Interface) error {
	ranges := client.NetworkingV1().ServiceCIDRs()
	want := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{s.cfg.ServiceCIDR.String()}},
	}
	if err := ensure(ctx, ranges, want, nil); err != nil {
		return err
	}
	have, err := ranges.Get(ctx, want.Name, metav1.GetOptions{})
	if err == nil && meta.SetStatusCondition(&have.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "InUse", Message: "services get their addresses from this range",
	}) {
		_, err = ranges.UpdateStatus(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("ServiceCIDR %s: %w", want.Name, err)
	}
	return nil
}

// ensureAuthentication tells extension servers whom to believe.
func (s *Server) ensureAuthentication(ctx context.Context, client kubernetes.Interface) error {
	data := map[string]string{"client-ca-file": string(s.files.clients.PEM())}
	if k := s.files.kubelets; k != nil {
		data[auth.KubeletCAKey] = string(k.PEM())
	}
	if err := s.tellProxies(data); err != nil {
		return err
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: authenticationConfig}, Data: data}
	return ensure(ctx, client.CoreV1().ConfigMaps(metav1.NamespaceSystem), config, func(have *corev1.ConfigMap) bool {
		return same(&have.Data, config.Data)
	})
}

// objects is a typed client of one kind.
type objects[P any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (P, error)
	Create(ctx context.Context, obj P, o metav1.CreateOptions) (P, error)
	Update(ctx context.Context, obj P, o metav1.UpdateOptions) (P, error)
}

// ensure makes want if it does not exist. If it does, right, unless nil, makes
// it as it should be and says whether it was so already. Who else wrote the
// object in between has won; the next turn will tell.
func ensure[P metav1.Object](ctx context.Context, c objects[P], want P, right func(have P) bool) error {
	have, err := c.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if _, err = c.Create(ctx, want, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		// Another server may be about to make it, and have the address that it needs.
		if _, missing := c.Get(ctx, want.GetName(), metav1.GetOptions{}); missing == nil {
			return nil
		}
	case err == nil && right != nil && !right(have):
		_, err = c.Update(ctx, have, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%T %s: %w", want, want.GetName(), err)
	}
	return nil
}

// same sets *have to want and reports whether it was equal before.
func same[T any](have *T, want T) bool {
	if equality.Semantic.DeepEqual(*have, want) {
		return true
	}
	*have = want
	return false
}
