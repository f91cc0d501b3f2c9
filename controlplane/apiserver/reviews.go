// Resources that are questions: created, answered, and never stored.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

// reviewREST answers reviews of one kind.
type reviewREST[T any, P kinds.Object[T]] struct {
	singular   string
	namespaced bool
	answer     func(ctx context.Context, review P) error
}

func (*reviewREST[T, P]) New() runtime.Object       { return P(new(T)) }
func (*reviewREST[T, P]) Destroy()                  {}
func (r *reviewREST[T, P]) NamespaceScoped() bool   { return r.namespaced }
func (r *reviewREST[T, P]) GetSingularName() string { return r.singular }

func (r *reviewREST[T, P]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(P)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.singular, obj))
	}
	if validate != nil {
		if err := validate(ctx, review.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.answer(ctx, review); err != nil {
		return nil, err
	}
	return review, nil
}

// authenticationReviews are tokenreviews and selfsubjectreviews of a server with these
// audiences.
func authenticationReviews(authn authenticator.Request, audiences authenticator.Audiences) map[string]rest.Storage {
	return map[string]rest.Storage{
		"tokenreviews": &reviewREST[authenticationv1.TokenReview, *authenticationv1.TokenReview]{
			singular: "tokenreview",
			answer: func(ctx context.Context, r *authenticationv1.TokenReview) error {
				return reviewToken(ctx, authn, audiences, r)
			},
		},
		"selfsubjectreviews": &reviewREST[authenticationv1.SelfSubjectReview, *authenticationv1.SelfSubjectReview]{
			singular: "selfsubjectreview",
			answer:   reviewSelf,
		},
	}
}

// reviewToken authenticates a request that carries the token and nothing else, for the
// audiences that the review names or, if it names none, for the server's.
func reviewToken(ctx context.Context, authn authenticator.Request, audiences authenticator.Audiences, r *authenticationv1.TokenReview) error {
	if r.Namespace != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("namespace is not allowed on this type: %v", r.Namespace))
	}
	if r.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.Spec.Token)
	if len(r.Spec.Audiences) > 0 {
		audiences = r.Spec.Audiences
	}
	if len(audiences) > 0 {
		req = req.WithContext(authenticator.WithAudiences(req.Context(), audiences))
	}
	resp, ok, err := authn.AuthenticateRequest(req)
	r.Status = authenticationv1.TokenReviewStatus{}
	if err != nil {
		r.Status.Error = err.Error()
		return nil
	}
	if !ok || resp == nil || resp.User == nil || resp.User.GetName() == user.Anonymous {
		return nil
	}
	if len(r.Spec.Audiences) > 0 && len(audiences.Intersect(resp.Audiences)) == 0 {
		return apierrors.NewInternalError(errors.New("error validating audience")) // who authenticated it does not know audiences
	}
	r.Status.Authenticated = true
	r.Status.User = userInfo(resp.User)
	r.Status.Audiences = resp.Audiences
	return nil
}

func reviewSelf(ctx context.Context, r *authenticationv1.SelfSubjectReview) error {
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewBadRequest("no user info found on request")
	}
	r.CreationTimestamp = metav1.Now() // as kube-apiserver's: clients learn what time it is here
	r.Status.UserInfo = userInfo(u)
	return nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = make(map[string]authenticationv1.ExtraValue)
		}
		info.Extra[k] = v
	}
	return info
}

// authorizationReviews are the four kinds of access review. rules may be nil:
// then nobody is told what they may do, only whether they may do a thing.
func authorizationReviews(authz authorizer.Authorizer, rules authorizer.RuleResolver) map[string]rest.Storage {
	return map[string]rest.Storage{
		"subjectaccessreviews": &reviewREST[authorizationv1.SubjectAccessReview, *authorizationv1.SubjectAccessReview]{
			singular: "subjectaccessreview",
			answer: func(ctx context.Context, r *authorizationv1.SubjectAccessReview) (err error) {
				r.Status, err = review(ctx, authz, "SubjectAccessReview", r.Spec)
				return err
			},
		},
		"localsubjectaccessreviews": &reviewREST[authorizationv1.LocalSubjectAccessReview, *authorizationv1.LocalSubjectAccessReview]{
			singular: "localsubjectaccessreview", namespaced: true,
			answer: func(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) (err error) {
				ns := apirequest.NamespaceValue(ctx)
				if r.Spec.ResourceAttributes == nil || r.Spec.ResourceAttributes.Namespace != ns {
					return apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %s", ns))
				}
				r.Status, err = review(ctx, authz, "LocalSubjectAccessReview", r.Spec)
				return err
			},
		},
		"selfsubjectaccessreviews": &reviewREST[authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectAccessReview]{
			singular: "selfsubjectaccessreview",
			answer: func(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview) (err error) {
				spec, err := ownReview(ctx, r.Spec)
				if err != nil {
					return err
				}
				r.Status, err = review(ctx, authz, "SelfSubjectAccessReview", spec)
				return err
			},
		},
		"selfsubjectrulesreviews": &reviewREST[authorizationv1.SelfSubjectRulesReview, *authorizationv1.SelfSubjectRulesReview]{
			singular: "selfsubjectrulesreview",
			answer: func(ctx context.Context, r *authorizationv1.SelfSubjectRulesReview) error {
				return reviewRules(ctx, rules, r)
			},
		},
	}
}

// ownReview is the review of what the requester asks about itself.
func ownReview(ctx context.Context, s authorizationv1.SelfSubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewSpec, error) {
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return authorizationv1.SubjectAccessReviewSpec{}, apierrors.NewBadRequest("no user present on request")
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: s.ResourceAttributes, NonResourceAttributes: s.NonResourceAttributes,
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(),
	}
	for k, v := range u.GetExtra() {
		if spec.Extra == nil {
			spec.Extra = make(map[string]authorizationv1.ExtraValue)
		}
		spec.Extra[k] = v
	}
	return spec, nil
}

func review(ctx context.Context, authz authorizer.Authorizer, kind string, s authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	var status authorizationv1.SubjectAccessReviewStatus
	if errs := validateReview(s); len(errs) > 0 {
		return status, apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind(kind).GroupKind(), "", errs)
	}
	decision, reason, err := authz.Authorize(ctx, reviewAttributes(s))
	status.Allowed = decision == authorizer.DecisionAllow
	status.Denied = decision == authorizer.DecisionDeny
	status.Reason = reason
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status, nil
}

func validateReview(s authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if s.ResourceAttributes != nil && s.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(path.Child("nonResourceAttributes"), s.NonResourceAttributes, `cannot be specified in combination with resourceAttributes`))
	}
	if s.ResourceAttributes == nil && s.NonResourceAttributes == nil {
		errs = append(errs, field.Invalid(path.Child("resourceAttributes"), s.NonResourceAttributes, `exactly one of nonResourceAttributes or resourceAttributes must be specified`))
	}
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(path.Child("user"), s.User, `at least one of user or group must be specified`))
	}
	if r := s.ResourceAttributes; r != nil {
		errs = append(errs, reviewedSelectors(r, path.Child("resourceAttributes"))...)
	}
	return errs
}

// reviewedSelectors wants each selector in one form. Operators that this server does not know may
// be those of a younger client.
func reviewedSelectors(r *authorizationv1.ResourceAttributes, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	form := func(raw string, requirements int, p *field.Path) {
		if raw != "" && requirements > 0 {
			errs = append(errs, field.Invalid(p.Child("rawSelector"), raw, "may not specified at the same time as requirements"))
		}
		if raw == "" && requirements == 0 {
			errs = append(errs, field.Required(p.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", p)))
		}
	}
	if s, at := r.FieldSelector, p.Child("fieldSelector"); s != nil {
		form(s.RawSelector, len(s.Requirements), at)
		o := metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, q := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(q, o, at.Child("requirements").Index(i))...)
		}
	}
	if s, at := r.LabelSelector, p.Child("labelSelector"); s != nil {
		form(s.RawSelector, len(s.Requirements), at)
		o := metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, q := range s.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(q, o, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

func reviewAttributes(s authorizationv1.SubjectAccessReviewSpec) authorizer.AttributesRecord {
	extra := make(map[string][]string, len(s.Extra))
	for k, v := range s.Extra {
		extra[k] = v
	}
	a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: s.User, UID: s.UID, Groups: slices.Clone(s.Groups), Extra: extra}}
	if n := s.NonResourceAttributes; n != nil {
		a.Path, a.Verb = n.Path, n.Verb
		return a
	}
	r := s.ResourceAttributes
	a.ResourceRequest = true
	a.Verb, a.Namespace, a.Name = r.Verb, r.Namespace, r.Name
	a.APIGroup, a.APIVersion, a.Resource, a.Subresource = r.Group, r.Version, r.Resource, r.Subresource
	a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(r.FieldSelector)
	a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(r.LabelSelector)
	return a
}

func reviewRules(ctx context.Context, rules authorizer.RuleResolver, r *authorizationv1.SelfSubjectRulesReview) error {
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewBadRequest("no user present on request")
	}
	if r.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	r.Status = authorizationv1.SubjectRulesReviewStatus{ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}}
	if rules == nil {
		r.Status.Incomplete = true
		r.Status.EvaluationError = "the authorizer cannot list what a user may do"
		return nil
	}
	resource, other, incomplete, err := rules.RulesFor(ctx, u, r.Spec.Namespace)
	for _, x := range resource {
		r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: x.GetVerbs(), APIGroups: x.GetAPIGroups(), Resources: x.GetResources(), ResourceNames: x.GetResourceNames(),
		})
	}
	for _, x := range other {
		r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: x.GetVerbs(), NonResourceURLs: x.GetNonResourceURLs(),
		})
	}
	r.Status.Incomplete = incomplete
	if err != nil {
		r.Status.EvaluationError = err.Error()
	}
	return nil
}
