package carrier_test

import (
	"context"
	"crypto/tls"
	"log"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// A transport makes its sessions of the connections that a listener has let in.
func ExampleListen() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert} // with certificate and authorities
	l, err := carrier.Listen(ln, "example", []string{"example/1"}, carrier.Bare, tunnel.Options{TLS: conf},
		func(_ context.Context, c *tls.Conn) (tunnel.Session, error) {
			who, err := carrier.Identity(carrier.PeerOf(c, "example"))
			log.Println(who, err)
			return nil, c.Close()
		})
	if err != nil {
		log.Fatal(err)
	}
	log.Print(l.Serve(context.Background(), func(context.Context, tunnel.Session) {}))
}
