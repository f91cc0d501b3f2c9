// Example: the keys of a new cluster.

package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth/pki"
)

// The first start makes the files, and the next start keeps them.
func ExampleEnsure() {
	tmp, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // nothing depends on it
	c := pki.Config{Dir: filepath.Join(tmp, "pki"), Names: []string{"hawser.example"}}
	var last []byte
	for range 2 {
		p, err := pki.Ensure(c)
		if err != nil {
			log.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(p.Path(pki.APIServer, false), p.Path(pki.APIServer, true))
		if err != nil {
			log.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(p.CACert())
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "hawser.example"})
		fmt.Println("valid:", err == nil, "kept:", bytes.Equal(pair.Leaf.Raw, last))
		last = pair.Leaf.Raw
	}
	// Output:
	// valid: true kept: false
	// valid: true kept: true
}
