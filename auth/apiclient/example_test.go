// Example: a client that reads a node and is told about a conflict.

package apiclient_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// The methods and the errors are those of client-go.
func ExampleNew() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL)
		w.Header().Set("Content-Type", "application/json")
		answer := `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-1", "labels": {"zone": "a"}}}`
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusConflict)
			answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409}`
		}
		_, _ = io.WriteString(w, answer) // the client sees a failure
	}))
	defer server.Close()
	api, err := apiclient.New(&rest.Config{Host: server.URL, QPS: 50, Burst: 100}, server.Client())
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	node, err := api.Nodes.Get(ctx, "node-1", metav1.GetOptions{})
	fmt.Println(node.Labels["zone"], err)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	_, err = api.Leases(corev1.NamespaceNodeLease).Update(ctx, lease, metav1.UpdateOptions{})
	fmt.Println("conflict:", apierrors.IsConflict(err))
	// Output:
	// GET /api/v1/nodes/node-1
	// a <nil>
	// PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1
	// conflict: true
}
