package kubeauth

// Objects: the cluster's objects for the authorizer and the admission plugin.

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// Bounds on reads from the API server that the caches could not answer, for each node and
// each service account.
const (
	livePerSecond = 20
	liveBurst     = 100
)

// Bounds on the same for each bootstrap token: a thousand machines may join with it.
const (
	joinPerSecond = 200
	joinBurst     = 1000
)

// Bounds on reads of bootstrap tokens that the cache does not have, for all callers
// together: they are not authenticated yet. A token in the cache is never delayed by them.
const (
	tokensPerSecond = 5
	tokensBurst     = 20
)

const byNode = "kubeauth/node"

// So many objects that tokens were bound to and that are gone are remembered, each for so long:
// their ended tokens cost no more reads.
const (
	maxGone  = 4096
	goneTime = 5 * time.Minute
)

// errNotReady is the answer of the API while the authorizer has just started.
var errNotReady error = apierrors.NewTooManyRequests("the authorizer has not read the cluster yet", 1)

// tooMany is the answer to a node or a user above its limit: 429 with Retry-After.
func tooMany(who string, most int) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("%q asks for too much that the authorizer's cache cannot answer, at most %d a second", who, most), 1)
}

// Objects reads pods, service accounts, secrets and certificate requests. The API server
// itself uses the authorizer, so Objects is made first and gets its client by Use.
type Objects struct {
	src    atomic.Pointer[source]
	tokens *rate.Limiter
	live   *limits                   // by names of nodes, and users of accounts
	joins  *limits                   // by users of bootstrap tokens
	gone   *utilcache.LRUExpireCache // by accounttoken.Reference: what a read has not found
}

type source struct {
	client   kubernetes.Interface
	store    Store
	pods     cache.Indexer
	volumes  cache.Indexer
	nodes    cache.Store
	accounts cache.Store
	secrets  cache.Store // bootstrap tokens
	synced   func() bool // of pods
	listed   func() bool // whether volumes are synced
}

// A Store reads the present state of objects. A machine that joins makes a few requests, and
// the answer to each depends on such a read.
type Store struct {
	Secret                    func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	CertificateSigningRequest func(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error)
}

// storeOf reads by requests to an API server.
func storeOf(client kubernetes.Interface) Store {
	return Store{
		Secret: func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
			return client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		CertificateSigningRequest: func(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
			return client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		},
	}
}

// NewObjects returns empty Objects: until Use is called nodes are refused requests that
// depend on pods, and bootstrap tokens cannot be checked.
func NewObjects() *Objects {
	return &Objects{live: newLimits(livePerSecond, liveBurst), joins: newLimits(joinPerSecond, joinBurst), gone: utilcache.NewLRUExpireCache(maxGone), tokens: rate.NewLimiter(tokensPerSecond, tokensBurst)}
}

// Use sets client and informers. client must be allowed everything (the API server's own
// loopback client); f must not have been started yet.
func (o *Objects) Use(client kubernetes.Interface, f informers.SharedInformerFactory) error {
	inf := f.Core().V1().Pods().Informer()
	err := inf.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	volumes := f.Core().V1().PersistentVolumes().Informer()
	if err = volumes.AddIndexers(cache.Indexers{byClaim: claimOf}); err != nil {
		return fmt.Errorf("index volumes by claim: %w", err)
	}
	secrets := f.InformerFor(&corev1.Secret{}, bootstrapSecrets)
	o.src.Store(&source{
		client: client, store: storeOf(client), pods: inf.GetIndexer(), volumes: volumes.GetIndexer(), nodes: f.Core().V1().Nodes().Informer().GetStore(),
		accounts: f.Core().V1().ServiceAccounts().Informer().GetStore(), secrets: secrets.GetStore(),
		synced: inf.HasSynced, listed: volumes.HasSynced,
	})
	return nil
}

// Read replaces the client by s, for the objects that s reads. Use must have been called.
func (o *Objects) Read(s Store) {
	next := *o.src.Load()
	next.store = s
	o.src.Store(&next)
}

// bootstrapSecrets is an informer of bootstrap tokens only.
func bootstrapSecrets(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
	only := fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String()
	return coreinformers.NewFilteredSecretInformer(client, metav1.NamespaceSystem, resync, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = only
	})
}

// Secret returns a bootstrap token's Secret if good returns true for it; good may be called
// more than once. A Secret in the cache is read again from the API server, so that a token
// ends when it is deleted. One that is missing in the cache may be new: it is read too, but
// only a few times a second, since every client can send tokens that do not exist.
func (o *Objects) Secret(ctx context.Context, namespace, name string, good func(*corev1.Secret) bool) (*corev1.Secret, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	absent := apierrors.NewNotFound(corev1.Resource("secrets"), name)
	obj, known, err := s.secrets.GetByKey(namespace + "/" + name)
	if secret, ok := obj.(*corev1.Secret); err == nil && known && ok {
		if !good(secret) {
			return nil, absent
		}
	} else if !o.tokens.Allow() {
		return nil, absent
	}
	secret, err := s.store.Secret(ctx, namespace, name)
	if err == nil && !good(secret) {
		return nil, absent
	}
	return secret, err
}

// request returns the present certificate signing request, on behalf of who.
func (o *Objects) request(ctx context.Context, who user.Info, name string) (*certificatesv1.CertificateSigningRequest, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	if node, is := nodeOf(who); is {
		if !o.live.allow(node, 1) {
			return nil, tooMany(node, livePerSecond)
		}
	} else if !o.joins.allow(who.GetName(), 1) {
		return nil, tooMany(who.GetName(), joinPerSecond)
	}
	return s.store.CertificateSigningRequest(ctx, name)
}

// node returns the present Node, on behalf of that node.
func (o *Objects) node(ctx context.Context, name string) (*corev1.Node, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	if !o.live.allow(name, 1) {
		return nil, tooMany(name, livePerSecond)
	}
	return s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// volume returns the present persistent volume, on behalf of node.
func (o *Objects) volume(ctx context.Context, node, name string) (*corev1.PersistentVolume, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	if !o.live.allow(node, 1) {
		return nil, tooMany(node, livePerSecond)
	}
	return s.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// attachment returns the present attachment of a volume, on behalf of node.
func (o *Objects) attachment(ctx context.Context, node, name string) (*storagev1.VolumeAttachment, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	if !o.live.allow(node, 1) {
		return nil, tooMany(node, livePerSecond)
	}
	return s.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
}

// pod returns the pod, from the cache if it is bound to node there, and else from the API
// server, because the node's watch may be ahead of the cache.
func (o *Objects) pod(ctx context.Context, namespace, name, node string) (*corev1.Pod, error) {
	s := o.src.Load()
	if s == nil || !s.synced() {
		return nil, errNotReady
	}
	obj, ok, err := s.pods.GetByKey(namespace + "/" + name)
	if err == nil && ok {
		if pod, isPod := obj.(*corev1.Pod); isPod && pod.Spec.NodeName == node {
			return pod, nil
		}
	}
	if !o.live.allow(node, 1) {
		return nil, tooMany(node, livePerSecond)
	}
	return s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// anyPodOn reports whether want returns true for one of node's pods. Mirror pods do not
// count, since the node makes them itself. If there is none in the cache, the node's pods
// of namespace are read from the API server.
func (o *Objects) anyPodOn(ctx context.Context, node, namespace string, want func(*corev1.Pod) bool) (bool, error) {
	s := o.src.Load()
	if s == nil || !s.synced() {
		return false, errNotReady
	}
	objs, err := s.pods.ByIndex(byNode, node)
	if err != nil {
		return false, fmt.Errorf("look up pods of node %s: %w", node, err)
	}
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Namespace == namespace && !isMirror(pod) && want(pod) {
			return true, nil
		}
	}
	if !o.live.allow(node, 1) {
		return false, tooMany(node, livePerSecond)
	}
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return false, fmt.Errorf("list pods of node %s: %w", node, err)
	}
	for i := range list.Items {
		// The server applies the field selector; the node is checked here again.
		if pod := &list.Items[i]; pod.Spec.NodeName == node && !isMirror(pod) && want(pod) {
			return true, nil
		}
	}
	return false, nil
}

// countOn is the number of node's pods in the cache for which want returns true.
func (o *Objects) countOn(node string, want func(*corev1.Pod) bool) (int, error) {
	s := o.src.Load()
	if s == nil || !s.synced() {
		return 0, errNotReady
	}
	objs, err := s.pods.ByIndex(byNode, node)
	if err != nil {
		return 0, fmt.Errorf("look up pods of node %s: %w", node, err)
	}
	n := 0
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok && want(pod) {
			n++
		}
	}
	return n, nil
}
