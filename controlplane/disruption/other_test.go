package disruption

// An extension server that does not say how many pods a custom resource wants.

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// hanging is an extension server that answers nothing.
type hanging struct {
	dynamic.Interface
	dynamic.NamespaceableResourceInterface
}

func (h hanging) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return h
}

func (h hanging) Namespace(string) dynamic.ResourceInterface { return h }

func (hanging) Get(ctx context.Context, _ string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestHangingScale: a worker waits seconds for the scale of a server that does not answer.
func TestHangingScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, began := ref("example.com/v1", "Thing", "thing"), time.Now()
		read := &others{kinds: map[string][]metav1.APIResource{owner.APIVersion: {
			{Name: "things", Kind: "Thing"}, {Name: "things/scale", Kind: "Scale", Group: "autoscaling", Version: "v1"},
		}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s := &scales{custom: hanging{}}
		if _, _, err := s.ofOther(ctx, read, "ns", owner); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != scaleTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
