// Example: a monitoring system reads metrics with its token.

package reviews_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/node/reviews"
)

// The API server is asked whose a token is and what its user may do, once for each answer.
func ExampleAccess_Authorize() {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "prometheus"}}
		return true, r, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		of := r.Spec.ResourceAttributes
		fmt.Println("asked:", r.Spec.User, of.Verb, of.Resource+"/"+of.Subresource, of.Name)
		r.Status.Allowed = of.Subresource == "metrics"
		return true, r, nil
	})
	access := reviews.New(reviews.Config{
		NodeName: "node-1", Tokens: client.AuthenticationV1().TokenReviews(), Access: client.AuthorizationV1().SubjectAccessReviews(),
	})
	for _, path := range []string{"/metrics", "/metrics", "/exec/shop/web/main"} {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer secret")
		fmt.Println(path, access.Authorize(r))
	}
	// Output:
	// asked: prometheus get nodes/metrics node-1
	// /metrics <nil>
	// /metrics <nil>
	// asked: prometheus get nodes/proxy node-1
	// /exec/shop/web/main Forbidden: user "prometheus" may not get nodes/proxy of node-1
}
