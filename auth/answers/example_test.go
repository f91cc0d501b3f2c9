// Example: an answer that is too long.

package answers_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/hawser-project/hawser/auth/answers"
)

// Reading fails, so that a library cannot take a part for the whole.
func ExampleBody() {
	for _, text := range []string{"short", "much too long"} {
		b, err := io.ReadAll(answers.Body(io.NopCloser(strings.NewReader(text)), 8))
		fmt.Println(len(b) <= 8, err == nil)
	}
	// Output:
	// true true
	// true false
}
