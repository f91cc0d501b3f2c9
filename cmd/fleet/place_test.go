// The site of a node, which is not the node's to say.

package fleet

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth"
)

func TestPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admin := fake.NewClientset()
		ctx, cancel := context.WithCancel(t.Context())
		known := newReadyCounter(map[string]bool{"sim-1": true})
		var watching sync.WaitGroup
		defer watching.Wait()
		defer cancel()
		watching.Go(func() { known.run(ctx, admin) })
		m := &member{fleet: &Fleet{admin: admin, readyCounter: known}, name: "sim-1", zone: "zone-7"}
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.place(t.Context())
		}()
		<-time.After(3 * retryDelay) // there is no Node yet
		if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "sim-1"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		<-done
		n, err := admin.CoreV1().Nodes().Get(t.Context(), "sim-1", metav1.GetOptions{})
		if err != nil || n.Labels[auth.SiteLabel] != "zone-7" {
			t.Errorf("%v, %v", n.Labels, err)
		}
	})
}
