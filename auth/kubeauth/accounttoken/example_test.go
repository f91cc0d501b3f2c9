// Example: a token for a pod.

package accounttoken_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"log"
	"time"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
)

// A token that is bound to a pod names the pod's node.
func ExampleIssuer() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	i, err := accounttoken.New(accounttoken.Config{Signer: key, Public: []crypto.PublicKey{key.Public()}})
	if err != nil {
		log.Fatal(err)
	}
	token, _, err := i.Issue(accounttoken.Grant{
		Namespace: "shop", Name: "web", UID: "1", Audiences: i.Audiences(), Life: time.Hour,
		Pod: &accounttoken.Named{Name: "web-0", UID: "2"}, Node: &accounttoken.Named{Name: "node-1"},
	})
	fmt.Println(accounttoken.ClaimedNode(token), err)
	// Output: node-1 <nil>
}
