package qmux_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// An agent dials a server, greets it, and serves what the server asks for.
func ExampleDial() {
	ctx := context.Background()
	conf := &tls.Config{MinVersion: tls.VersionTLS13} // with the node's certificate and the cluster's authority
	s, err := qmux.Dial(ctx, "hub.example:6443", tunnel.Options{TLS: conf})
	if err != nil {
		log.Fatal(err)
	}
	control, _, err := tunnel.Greet(ctx, s, tunnel.Hello{Node: "node-1"})
	var bye *tunnel.Goodbye
	if errors.As(err, &bye) {
		log.Fatalf("the server does not want this node: %s", bye.Text)
	}
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = control.Run(ctx, nil) }() // until the session ends
	wait := tunnel.StartServing(ctx, s, func(_ context.Context, r *tunnel.Request) {
		_ = r.Reject(tunnel.Denied, "nothing may be reached here") // or Answer it
	})
	<-s.Context().Done()
	if err := wait(); err != nil {
		log.Print(err)
	}
	_ = s.Close()
}
