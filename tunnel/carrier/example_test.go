package carrier_test

import (
	"context"
	"crypto/tls"
	"log"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// A transport makes its sessions of the connections that an Acceptor has let in.
func ExampleAcceptor() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert} // with certificate and authorities
	a, err := carrier.NewAcceptor(ln, []string{"example/1"}, nil, tunnel.Options{TLS: conf})
	if err != nil {
		log.Fatal(err)
	}
	err = a.Serve(context.Background(), func(_ context.Context, c *tls.Conn) {
		who, err := carrier.Identity(c.ConnectionState())
		log.Println(who, err)
		_ = c.Close()
	})
	log.Print(err)
}
