// Package issuertest is an OpenID Connect provider for tests: a server of its own, with
// keys that it replaces, which can be down.
package issuertest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// An Issuer is an OpenID Connect provider.
type Issuer struct {
	*httptest.Server
	t    *testing.T
	mu   sync.Mutex // guards the following
	key  *ecdsa.PrivateKey
	id   string
	down bool
	flow string   // the path of an answer without an end
	read chan int // how much was taken of it
}

// New serves until the test ends.
func New(t *testing.T) *Issuer {
	t.Helper()
	i := &Issuer{t: t}
	i.Rotate("first")
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	return i
}

// Rotate makes a new key with that id, and drops the old one.
func (i *Issuer) Rotate(id string) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key, i.id = key, id
}

// SetDown sets whether all requests fail.
func (i *Issuer) SetDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// MostSent is where an answer without an end gives up: far beyond what may be read of it.
const MostSent = 64 << 20

// Flow has answers at a path have no end. The channel has how much was taken of the first.
func (i *Issuer) Flow(path string) <-chan int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.flow, i.read = path, make(chan int, 1)
	return i.read
}

// flood answers without an end.
func flood(w http.ResponseWriter) (n int) {
	chunk := bytes.Repeat([]byte(" "), 1<<16)
	for err := error(nil); err == nil && n < MostSent; {
		var more int
		more, err = w.Write(chunk)
		n += more
	}
	return n
}

// ServeHTTP serves the two documents of OpenID Connect Discovery.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r.URL.Path == i.flow {
		select {
		case i.read <- flood(w):
		default:
		}
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case i.down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	case r.URL.Path == "/keys":
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: i.id, Algorithm: "ES256", Use: "sig"}}})
	default:
		http.NotFound(w, r)
	}
}

// Token is a token of the issuer, with the claims of change. Groups that its _claim_names has
// elsewhere are not in it.
func (i *Issuer) Token(change map[string]any) string {
	i.t.Helper()
	return i.Tokens()(change)
}

// Tokens returns a function that makes tokens as Token does, with the key of now also after
// Rotate.
func (i *Issuer) Tokens() func(change map[string]any) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	key := jose.JSONWebKey{Key: i.key, KeyID: i.id}
	return func(change map[string]any) string { return i.sign(key, change) }
}

func (i *Issuer) sign(key jose.JSONWebKey, change map[string]any) string {
	i.t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	claims := map[string]any{
		"iss": i.URL, "aud": "hawser", "sub": "ann", "groups": []string{"staff"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, change)
	if _, elsewhere := change["_claim_names"]; elsewhere {
		delete(claims, "groups")
	}
	text, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// Entry is the issuer's entry in a file, with a prefix for its users and groups.
func (i *Issuer) Entry(prefix string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	text, _ := json.Marshal(map[string]any{ // it cannot fail
		"issuer":        map[string]any{"url": i.URL, "certificateAuthority": string(ca), "audiences": []string{"hawser"}},
		"claimMappings": map[string]any{"username": map[string]string{"claim": "sub", "prefix": prefix}, "groups": map[string]string{"claim": "groups", "prefix": prefix}},
	})
	return string(text)
}

// File is a configuration of entries.
func File(entries ...string) string {
	return `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [` + strings.Join(entries, ",") + `]}`
}
