package kubeauth

// Objects: what the authorizer and the admission plugin know of the cluster.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Bounds on questions to the API server that the caches could not answer.
const (
	livePerSecond = 20
	liveBurst     = 100
)

const byNode = "kubeauth/node"

var (
	errNotReady = errors.New("the authorizer has not read the cluster yet")
	errTooMany  = errors.New("too many requests that the authorizer's cache cannot answer")
)

// Objects looks up pods, secrets and certificate requests. The API server that
// holds them is itself a user of the authorizer, so Objects is made empty and
// told where to look by Use once there is a server to ask.
type Objects struct {
	src  atomic.Pointer[source]
	live *rate.Limiter
}

type source struct {
	client kubernetes.Interface
	pods   cache.Indexer
	synced func() bool
}

// NewObjects returns Objects that know nothing: until Use is called nodes are
// refused whatever depends on pods, and bootstrap tokens cannot be checked.
func NewObjects() *Objects {
	return &Objects{live: rate.NewLimiter(livePerSecond, liveBurst)}
}

// Use tells where to look. client must be allowed everything (the API server's
// own loopback client); f must not have been started yet.
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
	o.src.Store(&source{client: client, pods: inf.GetIndexer(), synced: inf.HasSynced})
	return nil
}

// Secret returns a Secret as it is in the API server now.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	return s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// request returns a certificate signing request as it is now.
func (o *Objects) request(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	return s.client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
}

// node returns a Node as it is now.
func (o *Objects) node(ctx context.Context, name string) (*corev1.Node, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	return s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// pod returns the pod, from the cache if node is where the cache has it bound
// to, and else from the API server, because the node may have heard of its pod
// before we did.
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
	if !o.live.Allow() {
		return nil, errTooMany
	}
	return s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// anyPodOn tells whether want is true of one of node's pods. If it is of none in
// the cache, the API server is asked for the node's pods of namespace as they
// are now.
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
		if pod, ok := obj.(*corev1.Pod); ok && pod.Namespace == namespace && want(pod) {
			return true, nil
		}
	}
	if !o.live.Allow() {
		return false, errTooMany
	}
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return false, fmt.Errorf("list pods of node %s: %w", node, err)
	}
	for i := range list.Items {
		// The field selector is the server's; that the pod is on the node is ours
		// to be sure of.
		if pod := &list.Items[i]; pod.Spec.NodeName == node && want(pod) {
			return true, nil
		}
	}
	return false, nil
}
