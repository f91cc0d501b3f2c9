package overquic_test

import (
	"fmt"

	"github.com/hawser-project/hawser/tunnel/overquic"
)

// What the library gives its sessions. How one is made and used is shown in package qmux.
func ExampleTransport() {
	t := overquic.Transport()
	fmt.Printf("%s: %+v\n", t.Name, t.Can)
	// Output: quic: {Resume:false Migrate:true HalfClose:true Reset:true}
}
