// Package apiclienttest makes an apiclient.API of client-go's typed clients, such as those in
// memory, for tests.
package apiclienttest

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// From makes an API of c.
func From(c kubernetes.Interface) *apiclient.API {
	core := c.CoreV1()
	return &apiclient.API{
		Nodes:      core.Nodes(),
		Pods:       func(namespace string) apiclient.Pods { return core.Pods(namespace) },
		Events:     func(namespace string) apiclient.Events { return core.Events(namespace) },
		ConfigMaps: func(namespace string) apiclient.ConfigMaps { return core.ConfigMaps(namespace) },
		Secrets:    func(namespace string) apiclient.Secrets { return core.Secrets(namespace) },
		CreateToken: func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			return core.ServiceAccounts(namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
		},
		Leases:        func(namespace string) apiclient.Leases { return c.CoordinationV1().Leases(namespace) },
		CSRs:          c.CertificatesV1().CertificateSigningRequests(),
		TokenReviews:  c.AuthenticationV1().TokenReviews(),
		AccessReviews: c.AuthorizationV1().SubjectAccessReviews(),
		NoWatchList:   true,
	}
}
