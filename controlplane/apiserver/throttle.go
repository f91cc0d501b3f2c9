// Requests that the authorizer has no time for.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// An authorizer that bounds what one user may ask of it says so with an error that
// is the answer: 429, and when to come back. So does the store that it reads, with 503
// or 504. The library's filter makes 500 of every error. So throttling notes the error in
// the request's context and lets the request through the filter, and throttled, behind
// the filter, answers instead of serving. Without a place for the note the request fails
// as the library has it.
//
// The filter alone may be answered so. Others ask the same authorizer and act on an Allow:
// impersonation, which keeps it for seconds, and handlers that create what is not there.
// They get the refusal and the error.

// throttleKey is the key of the context's *throttle.
type throttleKey struct{}

// A throttle is the note. One goroutine at a time has the request.
type throttle struct {
	answer error
	served bool // the filter is passed: whoever asks now is a handler
}

// throttling wraps an authorizer of requests.
func throttling(authz authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := authz.Authorize(ctx, a)
		note, ok := ctx.Value(throttleKey{}).(*throttle)
		if decision == authorizer.DecisionAllow || err == nil || !ok || note.served || !asked(ctx, a) {
			return decision, reason, err
		}
		answer := passing(err)
		if answer == nil {
			return decision, reason, err
		}
		note.answer = answer
		return authorizer.DecisionAllow, fmt.Sprintf("to be answered with %d", answer.ErrStatus.Code), nil
	})
}

// asked says whether a is what the request of ctx asks for, as the filter puts it.
func asked(ctx context.Context, a authorizer.Attributes) bool {
	request, err := filters.GetAuthorizerAttributes(ctx)
	return err == nil && reflect.DeepEqual(request, a)
}

// passing returns the answer in err that tells clients to try again; nil if there is none.
// The library joins the errors of several authorizers to one that errors.As does not look
// into.
func passing(err error) *apierrors.StatusError {
	if joined := utilerrors.Aggregate(nil); errors.As(err, &joined) {
		for _, err := range utilerrors.Flatten(joined).Errors() {
			if answer := passing(err); answer != nil {
				return answer
			}
		}
		return nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil
	}
	switch answer := status.Status(); answer.Code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &apierrors.StatusError{ErrStatus: answer}
	}
	return nil
}

// throttled builds the chain of filters around what serves requests.
func throttled(serve http.Handler, c *genericapiserver.Config) http.Handler {
	chain := genericapiserver.DefaultBuildHandlerChain(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if note, ok := r.Context().Value(throttleKey{}).(*throttle); ok && note.answer != nil {
			responsewriters.ErrorNegotiated(note.answer, c.Serializer, metav1.Unversioned, w, r)
			return
		} else if ok {
			note.served = true
		}
		serve.ServeHTTP(w, r)
	}), c)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chain.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), throttleKey{}, new(throttle))))
	})
}
