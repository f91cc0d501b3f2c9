// The documents by which others than this server check tokens of service accounts.

package apiserver

import (
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/server/mux"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
)

const (
	openIDPath = "/.well-known/openid-configuration"
	keysPath   = "/openid/v1/jwks"
)

// serveOpenID serves the documents of tokens. They say that the keys are at address.
func serveOpenID(to *mux.PathRecorderMux, tokens *accounttoken.Issuer, address string) error {
	if tokens == nil {
		return nil
	}
	config := func() ([]byte, error) { return tokens.Metadata("https://" + address + keysPath) }
	if _, err := config(); err != nil {
		return fmt.Errorf("describe the issuer of tokens: %w", err)
	}
	if _, err := tokens.KeySet(); err != nil {
		return fmt.Errorf("describe the keys of tokens: %w", err)
	}
	to.Handle(openIDPath, document(config, "application/json"))
	to.Handle(keysPath, document(tokens.KeySet, "application/jwk-set+json"))
	return nil
}

// document answers with what read returns, which others may keep for an hour.
func document(read func() ([]byte, error), contentType string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
			return
		}
		data, err := read()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(data) // who has gone does not read it
	})
}
