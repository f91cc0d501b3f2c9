// Example: the secrets that a node may read.

package kubeauth_test

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/kubeauth"
)

// A node may read a secret that one of its pods names.
func ExampleAuthorizer() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}}
	pod.Spec = corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{
		Name: "keys", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "web-keys"}},
	}}}
	client := fake.NewClientset(pod) // in place of the API server's loopback client
	f := informers.NewSharedInformerFactory(client, 0)
	objects := kubeauth.NewObjects()
	if err := objects.Use(client, f); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	z := kubeauth.NewAuthorizer(objects)
	for _, node := range []string{"node-1", "node-2"} {
		for _, secret := range []string{"web-keys", "other"} {
			decision, _, err := z.Authorize(ctx, authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup, user.AllAuthenticated}},
				Verb: "get", APIVersion: "v1", Resource: "secrets", Namespace: "shop", Name: secret, ResourceRequest: true,
			})
			fmt.Println(node, secret, decision == authorizer.DecisionAllow, err)
		}
	}
	cancel()
	f.Shutdown()
	// Output:
	// node-1 web-keys true <nil>
	// node-1 other false <nil>
	// node-2 web-keys false <nil>
	// node-2 other false <nil>
}
