package strangers_test

import (
	"fmt"
	"net"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// With four places, one address may have all of them, until another wants one.
func ExampleSourceCounts() {
	many := strangers.SourceOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)})
	one := strangers.SourceOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)})
	var c strangers.SourceCounts
	for range 4 {
		c.Add(many)
	}
	fmt.Println(c.Yields(one, 4) == many, c.Yields(many, 4) == many)
	// Output: true true
}
