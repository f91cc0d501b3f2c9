// Idlers: connections that have no request yet, or no longer.

package connect

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/server/internal/fronts"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

// idlers keep the number of connections without a request within bounds, and count
// those that are closed without one.
type idlers struct {
	pending *strangers.Pending
	metrics *fronts.Metrics
	log     *slog.Logger
	sparse  strangers.Sparse
	inside  sync.Map // of *idler by net.Conn
}

// An idler is a connection that is not a tunnel yet. Its context has it.
type idler struct {
	scarce bool        // it has taken one of the last file descriptors
	asked  atomic.Bool // it has had a request

	// Of the one who serves it.
	leave func() // nil while it has a request
}

// idlerKey is the key of a connection's context under which the idler is.
type idlerKey struct{}

// enter is the http.Server's ConnContext.
func (i *idlers) enter(ctx context.Context, c net.Conn) context.Context {
	in := &idler{scarce: descriptors.Scarce(c)}
	i.inside.Store(c, in)
	return context.WithValue(ctx, idlerKey{}, in)
}

func newIdlers(m *fronts.Metrics, log *slog.Logger) *idlers {
	return &idlers{pending: strangers.NewPending(maxIdlers), metrics: m, log: log}
}

// changed is the http.Server's ConnState.
func (i *idlers) changed(c net.Conn, s http.ConnState) {
	v, _ := i.inside.Load(c)
	in, ok := v.(*idler)
	if !ok {
		return
	}
	without := in.leave != nil
	if without {
		in.leave()
		in.leave = nil
	}
	switch s {
	case http.StateNew, http.StateIdle:
		in.leave = i.pending.Enter(c)
	case http.StateClosed:
		i.inside.Delete(c)
		switch {
		case !in.asked.Load():
			i.refused(c)
		case without:
			i.metrics.Closed.WithLabelValues(fronts.Idle).Inc()
		}
	case http.StateHijacked:
		i.inside.Delete(c)
	}
}

// refused counts a connection that never had a request, and tells the log of it now
// and then.
func (i *idlers) refused(c net.Conn) {
	i.metrics.Closed.WithLabelValues(fronts.NoRequest).Inc()
	if more, ok := i.sparse.Tell(c.RemoteAddr()); ok {
		i.log.Info("connection closed without a usable request", "client", c.RemoteAddr().String(), "others", more)
	}
}
