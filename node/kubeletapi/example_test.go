// Example: who may list the pods of a node.

package kubeletapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/kubeletapi"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// one has one pod. A node has a *pods.Runner.
type one struct{ pod *corev1.Pod }

func (o one) Pods(context.Context) ([]*corev1.Pod, error) { return []*corev1.Pod{o.pod}, nil }

func (o one) Pod(context.Context, types.NamespacedName, types.UID) (*corev1.Pod, error) {
	return o.pod, nil
}

// A request needs the certificate of the API server or of an administrator.
func ExampleServer_ServeHTTP() {
	s, err := kubeletapi.New(kubeletapi.Config{
		NodeName: "node-1", Runtime: memory.New(memory.Options{}),
		Pods: one{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}}},
		TLS:  &tls.Config{ClientCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, who := range []pkix.Name{
		{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"hawser:kubelet-admin"}},
		{CommonName: "system:node:node-2", Organization: []string{"system:nodes"}},
	} {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/pods", nil)
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: who}}}} // by Serve
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			fmt.Println(w.Code, w.Body)
			continue
		}
		var list corev1.PodList
		err := json.Unmarshal(w.Body.Bytes(), &list)
		fmt.Println(w.Code, list.Items[0].Name, err)
	}
	// Output:
	// 200 web <nil>
	// 403 Forbidden: user "system:node:node-2" may not GET /pods on this node
}
