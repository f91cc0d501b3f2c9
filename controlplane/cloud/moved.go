package cloud

// Services whose address leaves the inventory. The library asks the provider for an address
// of a Service when the Service is new or has changed, and a changed inventory is neither.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// gone is the annotation of a Service whose address is none of the inventory's. For this
	// change of the Service the library asks the provider for an address.
	gone = "hawser.dev/load-balancer-address-gone"
	// poolPeriod is how often the addresses of Services are compared with the inventory, and
	// how soon one is asked for again that the pool does not have.
	poolPeriod = 10 * time.Second
)

// compare annotates the Services whose address is none of the inventory's, and takes the
// annotation from others. It writes to no Service without an address of this provider.
func (b *balancers) compare(ctx context.Context) {
	said, err := (*Cloud)(b).said()
	if err != nil {
		return // nobody knows the addresses
	}
	b.mu.Lock()
	services, given := b.services, maps.Clone(b.pool.given)
	b.mu.Unlock()
	for uid, l := range given {
		namespace, name, _ := strings.Cut(l.service, "/")
		s, err := services.Services(namespace).Get(name)
		if err != nil || s.UID != uid {
			continue // it has been deleted, which the library tells
		}
		want := ""
		if !slices.Contains(said.pool, l.addr) {
			want = l.addr.String()
		}
		if s.Annotations[gone] == want {
			continue
		}
		if err := b.annotate(ctx, s, want); err != nil {
			b.log.Warn("the address of a service is none of the inventory's, or is one again; it is tried again",
				"service", l.service, "address", l.addr, "every", poolPeriod, "err", err)
		}
	}
}

// annotate sets the annotation of s, or removes it if value is empty.
func (b *balancers) annotate(ctx context.Context, s *corev1.Service, value string) error {
	client, err := (*Cloud)(b).api()
	if err != nil {
		return err
	}
	annotations := map[string]any{gone: nil}
	if value != "" {
		annotations[gone] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.UID, "annotations": annotations}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, poolPeriod)
	defer cancel()
	if _, err := client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate it with %s: %w", gone, err)
	}
	return nil
}
