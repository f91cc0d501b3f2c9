// serviceaccounts/token: a token of the account, made when it is asked for.

package kinds

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
)

func defaultTokenRequest(o *authenticationv1.TokenRequest) {
	setPtr(&o.Spec.ExpirationSeconds, tokenExpiration)
}

const (
	// defaultTokenSeconds is the life of a token whose request says nothing of it.
	defaultTokenSeconds = 3600
	minTokenSeconds     = 600
	maxTokenSeconds     = 1 << 32
)

var tokenRequestKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

var _ rest.SubresourceObjectMetaPreserver = (*tokenREST)(nil)

func moreServiceAccounts(c *Config, all Storages) {
	if c.Tokens != nil {
		all.Add(corev1.SchemeGroupVersion, "serviceaccounts/token", newTokenREST(c.Tokens, all))
	}
}

// tokenREST makes tokens.
type tokenREST struct {
	tokens                         *accounttoken.Issuer
	accounts, pods, secrets, nodes *genericregistry.Store
}

func newTokenREST(tokens *accounttoken.Issuer, all Storages) *tokenREST {
	of := func(plural string) *genericregistry.Store { return all.Store(corev1.SchemeGroupVersion, plural) }
	return &tokenREST{tokens: tokens, accounts: of("serviceaccounts"), pods: of("pods"), secrets: of("secrets"), nodes: of("nodes")}
}

func (*tokenREST) New() runtime.Object { return &authenticationv1.TokenRequest{} }

func (*tokenREST) Destroy() {}

// GroupVersionKind: a TokenRequest is of another group than service accounts.
func (*tokenREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return tokenRequestKind
}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate says that the uid of a request
// is to be kept: it is that of the account.
func (*tokenREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create answers a request for a token of the account name. The answers to wrong ones
// are Kubernetes'.
func (r *tokenREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	req, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", obj))
	}
	namespace, ok := apirequest.NamespaceFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("namespace is required")
	}
	if err := checkTarget(req, namespace, name); err != nil {
		return nil, err
	}
	account, err := Getter[corev1.ServiceAccount](r.accounts)(Asking(ctx, "serviceaccounts", namespace, name), name)
	if err != nil {
		return nil, err
	}
	if req.UID != "" && req.UID != account.UID {
		return nil, apierrors.NewConflict(tokenRequestResource, name, fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, account.UID))
	}
	req.Name, req.Namespace, req.Status = name, namespace, authenticationv1.TokenRequestStatus{}
	if req.Spec.ExpirationSeconds == nil {
		req.Spec.ExpirationSeconds = new(int64)
		*req.Spec.ExpirationSeconds = defaultTokenSeconds
	}
	if errs := checkLife(*req.Spec.ExpirationSeconds); len(errs) > 0 {
		return nil, apierrors.NewInvalid(tokenRequestKind.GroupKind(), "", errs)
	}
	// Admission judges the audiences that are asked for, not those that are given.
	if validate != nil {
		if err := validate(ctx, req.DeepCopy()); err != nil {
			return nil, err
		}
	}
	grant := accounttoken.Grant{Namespace: namespace, Name: name, UID: account.UID}
	if err := r.bind(ctx, &grant, req.Spec.BoundObjectRef); err != nil {
		return nil, err
	}
	return r.issue(ctx, grant, req)
}

var tokenRequestResource = schema.GroupResource{Group: authenticationv1.GroupName, Resource: "TokenRequest"}

// checkTarget refuses a request that says it is for another account than its path.
func checkTarget(req *authenticationv1.TokenRequest, namespace, name string) error {
	meta := field.NewPath("metadata")
	var errs field.ErrorList
	if req.Name != "" && req.Name != name {
		errs = append(errs, field.Invalid(meta.Child("name"), req.Name, "must match the service account name if specified"))
	}
	if req.Namespace != "" && req.Namespace != namespace {
		errs = append(errs, field.Invalid(meta.Child("namespace"), req.Namespace, "must match the service account namespace if specified"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequestKind.GroupKind(), name, errs)
	}
	return nil
}

func checkLife(seconds int64) field.ErrorList {
	path := field.NewPath("spec", "expirationSeconds")
	switch {
	case seconds < minTokenSeconds:
		return field.ErrorList{field.Invalid(path, seconds, "may not specify a duration less than 10 minutes")}
	case seconds > maxTokenSeconds:
		return field.ErrorList{field.Invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

// bind looks up what the token is to be bound to.
func (r *tokenREST) bind(ctx context.Context, g *accounttoken.Grant, ref *authenticationv1.BoundObjectReference) error {
	if ref == nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	var uid types.UID
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		pod, err := Getter[corev1.Pod](r.pods)(Asking(ctx, "pods", g.Namespace, ref.Name), ref.Name)
		if err != nil {
			return err
		}
		if pod.Spec.ServiceAccountName != g.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", g.Name))
		}
		uid, g.Pod = pod.UID, &accounttoken.Named{Name: pod.Name, UID: pod.UID}
		if g.Node, err = r.nodeOf(ctx, pod); err != nil {
			return err
		}
	case gvk.Group == "" && gvk.Kind == "Node":
		node, err := Getter[corev1.Node](r.nodes)(Asking(ctx, "nodes", "", ref.Name), ref.Name)
		if err != nil {
			return err
		}
		uid, g.Node = node.UID, &accounttoken.Named{Name: node.Name, UID: node.UID}
	case gvk.Group == "" && gvk.Kind == "Secret":
		secret, err := Getter[corev1.Secret](r.secrets)(Asking(ctx, "secrets", g.Namespace, ref.Name), ref.Name)
		if err != nil {
			return err
		}
		uid, g.Secret = secret.UID, &accounttoken.Named{Name: secret.Name, UID: secret.UID}
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name, fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// nodeOf says in the token where the pod runs. A node that does not exist is named all
// the same.
func (r *tokenREST) nodeOf(ctx context.Context, pod *corev1.Pod) (*accounttoken.Named, error) {
	name := pod.Spec.NodeName
	if name == "" {
		return nil, nil // it runs nowhere yet
	}
	ctx = Asking(ctx, "nodes", "", name)
	node, err := RememberedNode(r.nodes)(ctx, name)
	if err != nil {
		node, err = Getter[corev1.Node](r.nodes)(ctx, name)
	}
	switch {
	case apierrors.IsNotFound(err):
		return &accounttoken.Named{Name: name}, nil
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	return &accounttoken.Named{Name: name, UID: node.UID}, nil
}

// issue makes the token and the answer that has it.
func (r *tokenREST) issue(ctx context.Context, g accounttoken.Grant, req *authenticationv1.TokenRequest) (runtime.Object, error) {
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = r.tokens.Audiences()
	}
	if most := int64(r.tokens.MaxLife() / time.Second); most > 0 && *req.Spec.ExpirationSeconds > most {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *req.Spec.ExpirationSeconds, most))
		*req.Spec.ExpirationSeconds = most
	}
	g.Audiences, g.Life = req.Spec.Audiences, time.Duration(*req.Spec.ExpirationSeconds)*time.Second
	// Taken first: the answer may say that the token ends earlier than it does.
	now := time.Now()
	token, id, err := r.tokens.Issue(g)
	if err != nil {
		return nil, apierrors.NewInternalError(errors.New("the token could not be signed"))
	}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, id)
	req.CreationTimestamp = metav1.NewTime(now)
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(now.Add(g.Life))}
	return req, nil
}
