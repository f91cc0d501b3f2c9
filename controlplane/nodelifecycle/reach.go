package nodelifecycle

// Whether the API server can be reached. While it cannot, no heartbeat arrives
// here either, so the silence of nodes proves nothing.

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/loop"
)

var errDown = errors.New("the API server cannot be reached")

// A reach knows whether the API server answers. It says so once when it stops
// and once when it is back. Its methods may be called from any goroutine.
type reach struct {
	log *slog.Logger
	ask func(ctx context.Context) error // a small request to the server

	down atomic.Bool
	mu   sync.Mutex // held while the server is asked
}

// note takes the outcome of a request and returns it, quiet if the server is
// down. One request that fails proves nothing, so the server is asked again
// before it counts as down.
func (r *reach) note(ctx context.Context, err error) error {
	if !loop.Unreachable(err) || ctx.Err() != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.down.Load() {
		again := r.ask(ctx)
		if !loop.Unreachable(again) || ctx.Err() != nil {
			return err
		}
		r.down.Store(true)
		r.log.Warn("the API server cannot be reached; what is known of nodes is kept, and nothing is evicted", "error", again)
	}
	return loop.Quiet(err)
}

// back asks a server that is down whether it answers again.
func (r *reach) back(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if loop.Unreachable(r.ask(ctx)) || ctx.Err() != nil {
		return false
	}
	r.down.Store(false)
	r.log.Info("the API server answers again; the outage does not count as silence of nodes")
	return true
}

// ask reads one small object. That it is not there is an answer as well.
func (c *Controller) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.client.CoreV1().Namespaces().Get(ctx, corev1.NamespaceNodeLease, metav1.GetOptions{})
	return err
}
