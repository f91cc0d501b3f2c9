// Requests that the authorizer has no time for.

package apiserver

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// An authorizer that bounds what one user may ask of it says so with an error that
// is the answer: 429, and when to come back. The library's filter makes 500 of every
// error. So throttling notes the error in the request's context and lets the request
// through the filter, and throttled, behind the filter, answers instead of serving.
// Without a place for the note the request fails as the library has it.

// throttleKey is the key of the context's *throttle.
type throttleKey struct{}

// A throttle is the note. One goroutine at a time has the request.
type throttle struct{ answer error }

// throttling wraps an authorizer of requests.
func throttling(authz authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := authz.Authorize(ctx, a)
		if decision == authorizer.DecisionAllow || !apierrors.IsTooManyRequests(err) {
			return decision, reason, err
		}
		note, ok := ctx.Value(throttleKey{}).(*throttle)
		if !ok {
			return decision, reason, err
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) { // the answer is not looked for in a chain
			err = &apierrors.StatusError{ErrStatus: status.Status()}
		}
		note.answer = err
		return authorizer.DecisionAllow, "to be answered with 429", nil
	})
}

// throttled builds the chain of filters around what serves requests.
func throttled(serve http.Handler, c *genericapiserver.Config) http.Handler {
	chain := genericapiserver.DefaultBuildHandlerChain(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if note, ok := r.Context().Value(throttleKey{}).(*throttle); ok && note.answer != nil {
			responsewriters.ErrorNegotiated(note.answer, c.Serializer, metav1.Unversioned, w, r)
			return
		}
		serve.ServeHTTP(w, r)
	}), c)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chain.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), throttleKey{}, new(throttle))))
	})
}
