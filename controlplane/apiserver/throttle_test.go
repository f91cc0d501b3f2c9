// An authorizer that has no time for one user.

package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestThrottledRequests: who asks too much of the authorizer is told to wait, with
// 429 and for how long, and is served nothing. That the store does not answer the
// authorizer is told as it is; any other failure is one of the server.
func TestThrottledRequests(t *testing.T) {
	answers := map[string]error{
		"greedy":  fmt.Errorf("authorize: %w", apierrors.NewTooManyRequests("one at a time", 7)),
		"unlucky": errors.New("out of order"),
		"cut off": fmt.Errorf("authorize: %w", apierrors.NewServiceUnavailable("no store")),
		"late":    fmt.Errorf("authorize: %w", apierrors.NewTimeoutError("no answer of the store", 3)),
	}
	in, err := startWith(t.TempDir(), func(c *apiserver.Config) {
		first := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", answers[a.GetUser().GetName()]
		})
		// As in the program: the library joins the errors of several authorizers.
		c.Authorizer = must(union.New(union.NamedAuthorizer{AuthorizerName: "first", Authorizer: first},
			union.NamedAuthorizer{AuthorizerName: "second", Authorizer: c.Authorizer}))(t)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	list := func(who string) error {
		config := as(in.config, who, "nobody")
		client := must(kubernetes.NewForConfig(config))(t)
		_, err := client.CoreV1().RESTClient().Get().Resource("configmaps").Namespace("kube-system").MaxRetries(0).Do(t.Context()).Get()
		return err
	}
	err = list("greedy")
	if s, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !ok || s != 7 || !strings.Contains(err.Error(), "one at a time") {
		t.Errorf("greedy: %v, come back after %d s", err, s)
	}
	if err := list("unlucky"); !apierrors.IsInternalError(err) {
		t.Errorf("unlucky: %v", err)
	}
	if err := list("cut off"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("cut off: %v", err)
	}
	if err := list("late"); !apierrors.IsTimeout(err) {
		t.Errorf("late: %v", err)
	}
	if _, err := in.client.CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another: %v", err)
	}
}
