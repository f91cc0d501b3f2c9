// Example: names of nodes and servers in certificates.

package auth_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/auth"
)

// The subject of a certificate that TLS has verified says whose it is.
func ExampleNodeName() {
	node := &x509.Certificate{Subject: pkix.Name{CommonName: auth.NodeUserPrefix + "node-1", Organization: []string{auth.NodesGroup}}}
	fmt.Println(auth.NodeName(node))
	_, err := auth.NodeName(&x509.Certificate{Subject: pkix.Name{CommonName: "admin"}})
	fmt.Println(errors.Is(err, auth.ErrNotNode))
	// Output:
	// node-1 <nil>
	// true
}

// A front end says on whose behalf it dials.
func ExampleWithCaller() {
	ctx := auth.WithCaller(context.Background(), auth.Caller{Name: "admin"})
	fmt.Println(auth.CallerOf(ctx).Name)
	// Output: admin
}
