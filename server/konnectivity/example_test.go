// Example: the front end for kube-apiserver's GRPC mode.

package konnectivity_test

import (
	"context"
	"log"
	"net"

	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/server/konnectivity"
)

// An API server on the same machine connects to a unix socket, whose file mode decides who may.
func Example() {
	var hub struct{ net.Dialer } // in place of a *server.Hub
	s, err := konnectivity.New(konnectivity.Config{Dial: hub.DialContext})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // Serve then cuts the calls after DrainTimeout
	l, err := connect.ListenUnix(ctx, "/run/hawser/konnectivity.sock")
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Serve(ctx, l); err != nil {
		log.Fatal(err)
	}
}
