// The objects that every cluster has, and the loop that keeps them.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
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
	ending, err := s.endingWith(ctx)
	if err != nil {
		return err
	}
	var rules sync.WaitGroup
	defer rules.Wait()
	made := make(chan struct{})
	rules.Go(func() { s.keepRules(ctx, ending, flow, made) })
	first, cancel := context.WithTimeout(ctx, builtinPatience)
	s.makeObjects(first, client)
	select {
	case <-made:
	case <-first.Done():
	}
	cancel()
	s.readyAt = time.Now()
	if ctx.Err() == nil {
		close(s.ready)
	}
	// The start, with its OpenAPI documents, leaves several times as much garbage
	// as what stays; nothing else would give it back soon.
	debug.FreeOSMemory()
	s.keep(ctx, client)
	return nil
}

// makeObjects makes the built-in objects but those of keepRules. What cannot be made within
// builtinPatience, as when a webhook refuses it whose backend is a pod of a node that has yet to
// connect, is left to keep: as in Kubernetes, the server serves.
func (s *Server) makeObjects(ctx context.Context, client kubernetes.Interface) {
	for {
		err := s.ensureAll(ctx, client)
		if err == nil {
			return
		}
		s.cfg.Log.Warn("cannot make all built-in objects, will try again", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(builtinAgain):
		}
	}
}

// keepRules makes the objects of flow control and of access control, then closes made, and keeps the
// former until ctx is done. There is word in flow when one of them changed. A webhook may take its
// time with each write, so nothing else waits for that.
func (s *Server) keepRules(ctx context.Context, client kubernetes.Interface, flow <-chan struct{}, made chan<- struct{}) {
	flowRight, rolesRight := false, false
	for wait := builtinAgain; ; {
		var err error
		if !flowRight {
			err = ensureFlow(ctx, client)
			flowRight = err == nil
		}
		if !rolesRight {
			again := rbac.Reconcile(ctx, client)
			rolesRight, err = again == nil, errors.Join(err, again)
		}
		if flowRight && rolesRight && made != nil {
			close(made)
			made = nil
		}
		var retry <-chan time.Time
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot make all objects of flow and access control, will try again", "in", wait, "err", err)
			retry, wait = time.After(wait), s.cfg.BuiltinPeriod
		}
		select {
		case <-ctx.Done():
			return
		case <-flow:
			flowRight = false
		case <-retry:
		}
	}
}

// endingWith is a client whose requests end with ctx: the library that Reconcile uses gives them none.
func (s *Server) endingWith(ctx context.Context) (*kubernetes.Clientset, error) {
	config := rest.CopyConfig(s.loopback)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) { return next.RoundTrip(r.WithContext(ctx)) })
	})
	return kubernetes.NewForConfig(config)
}

// roundTrip is a function that is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// keep keeps the built-in objects of makeObjects until ctx is done.
func (s *Server) keep(ctx context.Context, client kubernetes.Interface) {
	tick := time.NewTicker(s.cfg.BuiltinPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := s.sayGoodbye(ctx, client); err != nil {
				s.cfg.Log.Warn("the service default/kubernetes leads to this server for a while", "err", err)
			}
			return
		case <-tick.C:
		}
		pass, cancel := context.WithTimeout(ctx, builtinPatience)
		err := s.ensureAll(pass, client)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot keep the built-in objects, will try again", "in", s.cfg.BuiltinPeriod, "err", err)
		}
	}
}

// builtinCheck is the part of /readyz that says whether the built-in objects
// exist, or could not be made for builtinPatience.
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
	errs = append(errs, s.ensureKubernetes(ctx, client)) // others wait for word of this server
	for _, class := range kinds.SystemPriorityClasses() {
		errs = append(errs, ensure(ctx, client.SchedulingV1().PriorityClasses(), class, nil))
	}
	errs = append(errs, s.ensureAuthentication(ctx, client), s.ensureRange(ctx, client))
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
