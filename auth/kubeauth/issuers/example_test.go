// Example: a configuration is checked before it is used.

package issuers_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth/kubeauth/issuers"
)

// A file may not name the cluster's own issuer.
func ExampleCheck() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	file := filepath.Join(dir, "issuers.yaml")
	for _, url := range []string{"https://login.example.com", "https://cluster.example.com"} {
		text := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %s, audiences: [hawser]}
  claimMappings:
    username: {claim: sub, prefix: "corp:"}
`, url)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
		err := issuers.Check(issuers.Config{File: file, Own: []string{"https://cluster.example.com"}})
		fmt.Println(url, err == nil)
	}
	// Output:
	// https://login.example.com true
	// https://cluster.example.com false
}
