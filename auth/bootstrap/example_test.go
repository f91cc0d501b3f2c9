// Example: a machine checks a server before it joins.

package bootstrap_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/auth/pki"
)

// The machine trusts the CA that has the hash in the join command, and no other.
func ExampleConfig_Probe() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	keys, err := pki.Ensure(pki.Config{Dir: dir, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		log.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(keys.Path(pki.APIServer, false), keys.Path(pki.APIServer, true))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL, r.Header.Get("Authorization"))
	})
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // that the client has closed a connection
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	server.StartTLS()
	defer server.Close()

	token, err := bootstrap.ParseToken("abcdef.0123456789abcdef")
	fmt.Println(token, err)
	for _, pin := range []bootstrap.Pin{bootstrap.PinOf(keys.CACert()), {}} {
		c := bootstrap.Config{Token: token, Pins: []bootstrap.Pin{pin}, NodeName: "node-1", Dir: dir}
		probe, err := c.Probe(context.Background(), server.URL, 0)
		var other *bootstrap.PinError
		fmt.Println("another CA:", errors.As(err, &other), "token refused:", probe.RefusesToken)
	}
	// Output:
	// abcdef.*** <nil>
	// GET /api Bearer abcdef.0123456789abcdef
	// another CA: false token refused: false
	// another CA: true token refused: false
}
