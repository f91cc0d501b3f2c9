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
	// how long each request for one may take. builtinAgain is when they are tried again first.
	builtinPatience = 5 * time.Second
	builtinAgain    = time.Second
	// authenticationConfig tells extension servers whom to believe.
	authenticationConfig = "extension-apiserver-authentication"
	clientsKey           = "client-ca-file"
)

// systemNamespaces exist in every cluster and cannot be deleted.
func systemNamespaces() []string {
	return []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, nodekeys.Namespace}
}

// bootstrap waits for the server, compares its authorities with the cluster's, makes the built-in
// objects that can be made, closes s.ready, and then keeps those objects until ctx is done. Shared is
// followed until watching is done.
func (s *Server) bootstrap(ctx, watching context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory) error {
	flow := make(chan struct{}, 1)
	if err := flowChanges(shared, flow); err != nil {
		return fmt.Errorf("watch flow control: %w", err)
	}
	shared.Start(watching.Done())
	if err := s.awaitServing(ctx, client.Discovery().RESTClient(), shared); err != nil {
		return err
	}
	if err := s.shareAuthorities(ctx, client); err != nil {
		return err
	}
	trouble := make(chan struct{})
	tell := sync.OnceFunc(func() { close(trouble) })
	impatient, err := s.impatient(ctx, tell)
	if err != nil {
		return err
	}
	chores := []chore{
		{"objects", func(ctx context.Context) error { return s.ensureAll(ctx, impatient) }, nil, s.cfg.BuiltinPeriod},
		{"objects of flow control", func(ctx context.Context) error { return ensureFlow(ctx, impatient) }, flow, 0},
		{"default roles", func(ctx context.Context) error { return rbac.Reconcile(ctx, impatient) }, nil, 0},
	}
	made := make(chan struct{}, len(chores))
	var all sync.WaitGroup
	for _, c := range chores {
		all.Go(func() { s.do(ctx, c, made, tell) })
	}
	if awaitMade(ctx, len(chores), made, trouble) {
		s.readyAt = time.Now()
		close(s.ready)
		// The start, with its OpenAPI documents, leaves several times as much garbage
		// as what stays; nothing else would give it back soon.
		debug.FreeOSMemory()
	}
	all.Wait()
	if err := s.sayGoodbye(ctx, client); err != nil {
		s.cfg.Log.Warn("the service default/kubernetes leads to this server for a while", "err", err)
	}
	return nil
}

// awaitMade waits until n chores are done once, or builtinPatience after one was in trouble: as when
// a webhook refuses an object, or lets it wait, whose backend is a pod of a node that has yet to
// connect. As in Kubernetes, the server serves then. False means that ctx is done.
func awaitMade(ctx context.Context, n int, made, trouble <-chan struct{}) bool {
	var late <-chan time.Time
	for n > 0 {
		select {
		case <-made:
			n--
		case <-trouble:
			late, trouble = time.After(builtinPatience), nil
		case <-late:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// A chore makes some of the built-in objects, and looks after them.
type chore struct {
	what  string
	work  func(context.Context) error
	again <-chan struct{} // has word when there is something to do; nil means never
	every time.Duration   // zero means never
}

// do does c until ctx is done, or until it is done for good. It tells made when that was without an
// error for the first time, and trouble of each error, after which it does c again.
func (s *Server) do(ctx context.Context, c chore, made chan<- struct{}, trouble func()) {
	told := sync.OnceFunc(func() { made <- struct{}{} })
	for wait := builtinAgain; ; {
		pause := c.every
		if err := c.work(ctx); err == nil {
			told()
		} else if ctx.Err() == nil {
			trouble()
			s.cfg.Log.Warn("cannot make all built-in "+c.what+", will try again", "in", wait, "err", err)
			pause, wait = wait, s.cfg.BuiltinPeriod
		}
		if pause == 0 && c.again == nil {
			return
		}
		var next <-chan time.Time
		if pause > 0 {
			next = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.again:
		case <-next:
		}
	}
}

// impatient is a client each of whose requests ends after builtinPatience, and with ctx: the library
// that makes roles gives them no end. It tells trouble at once of those that fail, since there may be
// many before the work is over.
func (s *Server) impatient(ctx context.Context, trouble func()) (*kubernetes.Clientset, error) {
	config := rest.CopyConfig(s.loopback)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			bounded, cancel := context.WithTimeout(ctx, builtinPatience)
			context.AfterFunc(bounded, cancel) // the answer has yet to be read
			resp, err := next.RoundTrip(r.WithContext(bounded))
			if err != nil || resp.StatusCode >= 400 && resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusConflict {
				trouble()
			}
			return resp, err
		})
	})
	return kubernetes.NewForConfig(config)
}

// roundTrip is a function that is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
	asking, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	alive := s.sayAlive(asking) // first: a webhook may hold up what follows
	errs := []error{alive}
	for _, name := range systemNamespaces() {
		errs = append(errs, ensure(ctx, client.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil))
	}
	if alive == nil {
		errs = append(errs, s.ensureKubernetes(ctx, client))
	}
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

// authentication tells extension servers whom to believe.
func (s *Server) authentication() (*corev1.ConfigMap, error) {
	data := map[string]string{clientsKey: string(s.files.clients.PEM())}
	if k := s.files.kubelets; k != nil {
		data[auth.KubeletCAKey] = string(k.PEM())
	}
	if err := s.tellProxies(data); err != nil {
		return nil, err
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: authenticationConfig}, Data: data}, nil
}

// ensureAuthentication keeps what authentication says.
func (s *Server) ensureAuthentication(ctx context.Context, client kubernetes.Interface) error {
	config, err := s.authentication()
	if err != nil {
		return err
	}
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
