package overyamux_test

import (
	"fmt"

	"github.com/hawser-project/hawser/tunnel/overyamux"
)

// What the library gives its sessions. How one is made and used is shown in package qmux.
func ExampleTransport() {
	t := overyamux.Transport()
	fmt.Printf("%s: %+v\n", t.Name, t.Can)
	// Output: yamux: {Resume:false Migrate:false HalfClose:true Reset:false}
}
