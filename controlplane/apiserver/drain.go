// Draining: requests that are under way, or come, when the server stops.

package apiserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/streaming/pkg/httpstream"
)

// lives are how long requests are served, and how long the server watches what it needs
// to know for that, which it does through its own port.
//
// A store that is not the server's own is given up DrainTimeout after the port has closed:
// requests that wait for a store that is gone would hold the stop for all their time.
func (s *Server) lives(ctx context.Context, store *clientv3.Client) (served, watching context.Context, end func()) {
	served, end = context.WithCancel(context.WithoutCancel(ctx))
	watching, stop := context.WithCancel(served)
	s.listener.onClose(func() {
		stop()
		if len(s.cfg.EtcdServers.Servers) > 0 {
			giveUp := time.AfterFunc(s.cfg.DrainTimeout, func() { _ = store.Close() }) // its requests fail
			context.AfterFunc(served, func() { giveUp.Stop() })
		}
	})
	return served, watching, end
}

// shutdown has srv, before it runs, stop as the Config says.
func (s *Server) shutdown(srv *genericapiserver.GenericAPIServer) {
	srv.ShutdownTimeout = s.cfg.DrainTimeout
	leave := s.cfg.Leave
	if leave == nil {
		leave = func() {}
	}
	srv.AddPreShutdownHookOrDie("hawser-leave", func() error { leave(); return nil })
}

// sendAway has clients make another connection for their next request once leaving is
// closed: one that is idle when the port closes could lose a request that is on its way.
// Over HTTP/2 net/http takes the header for GOAWAY.
func sendAway(next http.Handler, leaving <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-leaving:
			if !httpstream.IsUpgradeRequest(r) { // whose header says what becomes of the connection
				w.Header().Set("Connection", "close")
			}
		default:
		}
		next.ServeHTTP(w, r)
	})
}

// underway counts requests until their handlers return. The library waits for most of
// them, and not for those that have taken their connection over.
type underway struct {
	mu   sync.Mutex // guards the following
	n    int
	none chan struct{} // closed when n is next 0; nil if nobody waits
}

func (u *underway) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.add(1)
		defer u.add(-1)
		next.ServeHTTP(w, r)
	})
}

func (u *underway) add(d int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n += d; u.n == 0 && u.none != nil {
		close(u.none)
		u.none = nil
	}
}

// drain waits until there are none, or until a time. It is called once.
func (u *underway) drain(until time.Time) {
	u.mu.Lock()
	none := make(chan struct{})
	if u.n == 0 {
		close(none)
	} else {
		u.none = none
	}
	u.mu.Unlock()
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-none:
	case <-t.C:
	}
}
