package overh2_test

import (
	"fmt"

	"github.com/hawser-project/hawser/tunnel/overh2"
)

// What the library gives its sessions. How one is made and used is shown in package qmux.
func ExampleTransport() {
	t := overh2.Transport()
	fmt.Printf("%s: %+v\n", t.Name, t.Can)
	// Output: h2: {Resume:false Migrate:false HalfClose:false Reset:true}
}
