// Example: the line of an error.

package place_test

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

// A library names the field, and place adds its line.
func ExampleOf() {
	file := []byte("kind: Config\nusers:\n- name: admin\n  token: 7\n")
	fmt.Println(place.Of(file, errors.New("users[0].token: must be text")))
	// Output: line 4: users[0].token: must be text
}
