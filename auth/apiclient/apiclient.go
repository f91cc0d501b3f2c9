// Package apiclient is a client of the API server with the kinds that a node reads and writes.
//
// It stands in for k8s.io/client-go/kubernetes, whose typed clients link every version of every
// API group: 8 MB of a program that runs on each node. The methods are those of client-go
// (k8s.io/client-go/gentype), so that its typed clients, and its clients in memory, can be put
// into an API as well; package apiclienttest does.
//
// It has the rules of AppArmor annotations, too: the API server applies them to the pods that clients
// make, and a node to its static pods.
package apiclient

import (
	"context"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// A Resource is one resource of the API, in one namespace if it is namespaced. T is a pointer to
// the kind and L to its list.
type Resource[T, L any] interface {
	Creator[T]
	Update(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// A Creator is a resource that objects can be created of. Reviews can be nothing else: the server
// returns each with its status filled in, and stores none.
type Creator[T any] interface {
	Create(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
}

type (
	// Nodes are the nodes.
	Nodes = Resource[*corev1.Node, *corev1.NodeList]
	// Pods are the pods.
	Pods = Resource[*corev1.Pod, *corev1.PodList]
	// Events are the events of the core group.
	Events = Resource[*corev1.Event, *corev1.EventList]
	// ConfigMaps are the ConfigMaps.
	ConfigMaps = Resource[*corev1.ConfigMap, *corev1.ConfigMapList]
	// Secrets are the Secrets.
	Secrets = Resource[*corev1.Secret, *corev1.SecretList]
	// Leases are the Leases.
	Leases = Resource[*coordinationv1.Lease, *coordinationv1.LeaseList]
	// CSRs are the requests for certificates.
	CSRs = Resource[*certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequestList]
	// TokenReviews say whose a token is.
	TokenReviews = Creator[*authenticationv1.TokenReview]
	// AccessReviews say what a user may do.
	AccessReviews = Creator[*authorizationv1.SubjectAccessReview]
)

// An API is the clients of one API server. They share connections and the bound on requests.
type API struct {
	Nodes Nodes
	Pods  func(namespace string) Pods
	// Events are not asked for again after an answer that says when, such as 429: who sends events
	// goes on with others meanwhile.
	Events     func(namespace string) Events
	ConfigMaps func(namespace string) ConfigMaps
	Secrets    func(namespace string) Secrets
	// CreateToken asks for a token of a service account.
	CreateToken   func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Leases        func(namespace string) Leases
	CSRs          CSRs
	TokenReviews  TokenReviews
	AccessReviews AccessReviews

	// NoWatchList says that the clients cannot begin a watch with a list.
	NoWatchList bool
}

// IsWatchListSemanticsUnSupported tells client-go's reflectors of NoWatchList.
func (a *API) IsWatchListSemanticsUnSupported() bool { return a.NoWatchList }

// Scheme has the kinds of the resources.
var Scheme = runtime.NewScheme()

var (
	codecs     = serializer.NewCodecFactory(Scheme)
	parameters = runtime.NewParameterCodec(Scheme)
)

func init() {
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, certificatesv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		utilruntime.Must(add(Scheme))
	}
	metav1.AddToGroupVersion(Scheme, schema.GroupVersion{Version: "v1"})
}

// New makes the clients. h makes the requests, which c.QPS and c.Burst bound together.
func New(c *rest.Config, h *http.Client) (*API, error) {
	shared := rest.CopyConfig(c)
	if shared.RateLimiter == nil && shared.QPS > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, shared.Burst)
	}
	clients := make(map[string]rest.Interface)
	for _, gv := range []schema.GroupVersion{
		corev1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion, certificatesv1.SchemeGroupVersion,
		authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion,
	} {
		one := rest.CopyConfig(shared)
		one.GroupVersion, one.APIPath = &gv, "/apis"
		if gv.Group == "" {
			one.APIPath = "/api"
		}
		one.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(Scheme, codecs).WithoutConversion()
		client, err := rest.RESTClientForConfigAndClient(one, h)
		if err != nil {
			return nil, fmt.Errorf("make client of API group %q: %w", gv.Group, err)
		}
		clients[gv.Group] = client
	}
	core := clients[corev1.GroupName]
	return &API{
		Nodes:      resource[corev1.Node, corev1.NodeList](core, "nodes")(""),
		Pods:       resource[corev1.Pod, corev1.PodList](core, "pods"),
		Events:     resource[corev1.Event, corev1.EventList](once{core}, "events"),
		ConfigMaps: resource[corev1.ConfigMap, corev1.ConfigMapList](core, "configmaps"),
		Secrets:    resource[corev1.Secret, corev1.SecretList](core, "secrets"),
		CreateToken: func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			out := &authenticationv1.TokenRequest{}
			err := core.Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").Body(r).Do(ctx).Into(out)
			return out, err
		},
		Leases: resource[coordinationv1.Lease, coordinationv1.LeaseList](clients[coordinationv1.GroupName], "leases"),
		CSRs: resource[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](
			clients[certificatesv1.GroupName], "certificatesigningrequests")(""),
		TokenReviews:  creator[authenticationv1.TokenReview](clients[authenticationv1.GroupName], "tokenreviews"),
		AccessReviews: creator[authorizationv1.SubjectAccessReview](clients[authorizationv1.GroupName], "subjectaccessreviews"),
	}, nil
}

// once makes requests that client-go does not repeat.
type once struct{ rest.Interface }

func (c once) Post() *rest.Request { return c.Interface.Post().MaxRetries(0) }

func (c once) Patch(pt types.PatchType) *rest.Request { return c.Interface.Patch(pt).MaxRetries(0) }

// A kind is a pointer to a T that is an object of the API.
type kind[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// A kindList is a pointer to a T that is a list of objects.
type kindList[T any] interface {
	*T
	runtime.Object
}

// resource makes the clients of a resource, one for each namespace.
func resource[T, L any, PT kind[T], PL kindList[L]](client rest.Interface, name string) func(namespace string) Resource[PT, PL] {
	return func(namespace string) Resource[PT, PL] {
		return gentype.NewClientWithList(name, client, parameters, namespace,
			func() PT { return new(T) }, func() PL { return new(L) }, gentype.PrefersProtobuf[PT]())
	}
}

// creator makes the client of a resource that is not namespaced.
func creator[T any, PT kind[T]](client rest.Interface, name string) Creator[PT] {
	return gentype.NewClient(name, client, parameters, "", func() PT { return new(T) }, gentype.PrefersProtobuf[PT]())
}
