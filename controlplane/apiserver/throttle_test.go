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
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestThrottledRequests: who asks too much of the authorizer is told to wait, with
// 429 and for how long, and is served nothing; any other failure is one.
func TestThrottledRequests(t *testing.T) {
	in, err := startWith(t.TempDir(), func(c *apiserver.Config) {
		inner := c.Authorizer
		c.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			switch a.GetUser().GetName() {
			case "greedy":
				return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize: %w", apierrors.NewTooManyRequests("one at a time", 7))
			case "unlucky":
				return authorizer.DecisionNoOpinion, "", errors.New("out of order")
			}
			return inner.Authorize(ctx, a)
		})
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
	if _, err := in.client.CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another: %v", err)
	}
}
