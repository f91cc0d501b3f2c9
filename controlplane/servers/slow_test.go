package servers

// Tests beside an API server that takes a while for each write, because of a webhook.

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// A client is one whose writes of Leases take a while, and end with their context.
type client struct {
	*fake.Clientset

	slow *atomic.Int64 // a time.Duration
}

type coordination struct {
	typedcoordinationv1.CoordinationV1Interface

	slow *atomic.Int64
}

type leases struct {
	typedcoordinationv1.LeaseInterface

	slow *atomic.Int64
}

func (c *client) CoordinationV1() typedcoordinationv1.CoordinationV1Interface {
	return &coordination{c.Clientset.CoordinationV1(), c.slow}
}

func (c *coordination) Leases(namespace string) typedcoordinationv1.LeaseInterface {
	return &leases{c.CoordinationV1Interface.Leases(namespace), c.slow}
}

func (l *leases) Create(ctx context.Context, lease *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Create(ctx, lease, o)
}

func (l *leases) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

func (l *leases) wait(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(l.slow.Load())):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestSlowWrites: servers whose writes take longer than the time between two renewals know each
// other, and none is taken for gone.
func TestSlowWrites(t *testing.T) {
	for _, slow := range []time.Duration{renewEvery, renewEvery + time.Second, 2*renewEvery - time.Second} {
		t.Run(slow.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := fake.NewClientset()
				a, b := &running{done: make(chan struct{})}, &running{done: make(chan struct{})}
				a.slow.Store(int64(slow))
				b.slow.Store(int64(slow))
				startAs(t, store, "a", "a:1", "ta", a)
				startAs(t, store, "b", "b:1", "tb", b)
				pass(2 * slow)
				for range 120 {
					if pass(time.Second); a.others() != "b=b:1" || b.others() != "a=a:1" {
						t.Fatalf("a sees %q, b sees %q", a.others(), b.others())
					}
				}
				if a.log.Len()+b.log.Len() > 0 || a.ended() || b.ended() {
					t.Errorf("the log says\n%s%s", &a.log, &b.log)
				}
			})
		})
	}
}
