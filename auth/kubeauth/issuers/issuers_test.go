package issuers

// Tests of whose tokens are believed, with an issuer that is a server of its own.

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// An issuer is an OpenID Connect provider.
type issuer struct {
	*httptest.Server
	t    *testing.T
	mu   sync.Mutex // guards the following
	key  *ecdsa.PrivateKey
	id   string
	down bool
	asks int // for keys
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.rotate("first")
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) rotate(id string) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key, i.id = key, id
}

func (i *issuer) setDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case i.down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	case r.URL.Path == "/keys":
		i.asks++
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: i.id, Algorithm: "ES256", Use: "sig"}}})
	default:
		http.NotFound(w, r)
	}
}

// token is what the issuer says of somebody, changed by change.
func (i *issuer) token(change map[string]any) string {
	i.t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.id}}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	claims := map[string]any{
		"iss": i.URL, "aud": "hawser", "sub": "ann", "groups": []string{"staff"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, change)
	text, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// entry is the issuer in a file, with a prefix for its users and groups.
func (i *issuer) entry(prefix string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	text, _ := json.Marshal(map[string]any{ // it cannot fail
		"issuer":        map[string]any{"url": i.URL, "certificateAuthority": string(ca), "audiences": []string{"hawser"}},
		"claimMappings": map[string]any{"username": map[string]string{"claim": "sub", "prefix": prefix}, "groups": map[string]string{"claim": "groups", "prefix": prefix}},
	})
	return string(text)
}

func config(entries ...string) string {
	return `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [` + strings.Join(entries, ",") + `]}`
}

// lines is a log that can be looked at.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func believing(t *testing.T, text string) (*Issuers, string, *lines) {
	t.Helper()
	file, log := filepath.Join(t.TempDir(), "issuers"), &lines{}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := New(Config{
		File: file, Own: []string{"https://own.example.com"}, Audiences: authenticator.Audiences{"api"},
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i, file, log
}

// who is the user of a token, or why there is none.
func (i *Issuers) who(ctx context.Context, token string) string {
	resp, ok, err := i.AuthenticateToken(ctx, token)
	switch {
	case err != nil:
		return err.Error()
	case !ok:
		return "nobody"
	default:
		return fmt.Sprint(resp.User.GetName(), resp.User.GetGroups())
	}
}

// becomes waits until a token is somebody's.
func (i *Issuers) becomes(t *testing.T, token, want string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); ; {
		got := i.who(t.Context(), token)
		if strings.Contains(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("the token is of %s, not of %s", got, want)
		}
	}
}

func TestTokens(t *testing.T) {
	is := newIssuer(t)
	other := newIssuer(t)
	i, _, _ := believing(t, config(is.entry("corp:")))
	i.becomes(t, is.token(nil), "corp:ann[corp:staff]")
	forged := other.token(map[string]any{"iss": is.URL})
	parts := strings.Split(is.token(nil), ".")
	for name, tt := range map[string]struct{ token, want string }{
		"another audience":   {is.token(map[string]any{"aud": "other"}), "audience"},
		"no audience":        {is.token(map[string]any{"aud": nil}), "audience"},
		"another issuer":     {other.token(nil), "nobody"},
		"forged":             {forged, "failed to verify"},
		"expired":            {is.token(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "expired"},
		"not yet valid":      {is.token(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "before the nbf"},
		"no signature":       {parts[0] + "." + parts[1] + ".", "verify"},
		"another's claims":   {parts[0] + "." + strings.Split(is.token(map[string]any{"sub": "root"}), ".")[1] + "." + parts[2], "verify"},
		"no JWT":             {"abcdef.0123456789abcdef", "nobody"},
		"nothing":            {"", "nobody"},
		"for what is API's":  {is.token(map[string]any{"aud": []string{"api"}}), "audience"},
		"one among several":  {is.token(map[string]any{"aud": []string{"x", "hawser"}}), "corp:ann"},
		"groups as one text": {is.token(map[string]any{"groups": "one"}), "corp:ann[corp:one]"},
	} {
		if got := i.who(t.Context(), tt.token); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	none := strings.Split(is.token(nil), ".")
	if got := i.who(t.Context(), "eyJhbGciOiJub25lIn0."+none[1]+"."); strings.HasPrefix(got, "corp:") {
		t.Errorf("an unsigned token: %s", got)
	}
	// TokenReview asks for audiences.
	for audience, want := range map[string]bool{"api": true, "other": false} {
		if _, ok, _ := i.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{audience}), is.token(nil)); ok != want {
			t.Errorf("for %s: %t", audience, ok)
		}
	}
}

// Whatever another issuer says, nobody becomes a part of the cluster.
func TestNobodyOfOurs(t *testing.T) {
	is := newIssuer(t)
	i, _, _ := believing(t, config(is.entry("")))
	i.becomes(t, is.token(nil), "ann[staff]")
	for name, claims := range map[string]map[string]any{
		"node":          {"sub": "system:node:node-1", "groups": []string{"system:nodes"}},
		"administrator": {"groups": []string{"staff", "system:masters"}},
		"account":       {"sub": "system:serviceaccount:kube-system:x"},
	} {
		if got := i.who(t.Context(), is.token(claims)); !strings.Contains(got, "are the cluster's own") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := i.who(t.Context(), is.token(map[string]any{"sub": nil})); !strings.Contains(got, "names no user") {
		t.Errorf("a token of nobody: %s", got)
	}
}

// An issuer that makes new keys is asked for them. Tokens that the old ones signed end.
func TestRotation(t *testing.T) {
	is := newIssuer(t)
	i, _, _ := believing(t, config(is.entry("corp:")))
	old := is.token(map[string]any{"x": "old"})
	i.becomes(t, is.token(nil), "corp:ann")
	is.rotate("second")
	i.becomes(t, is.token(nil), "corp:ann")
	if got := i.who(t.Context(), old); strings.HasPrefix(got, "corp:") {
		t.Errorf("a token of a key that is gone: %s", got)
	}
}

// While an issuer is down its tokens are refused, another's are not. Those that were
// believed a moment ago still are.
func TestDown(t *testing.T) {
	is, well := newIssuer(t), newIssuer(t)
	i, _, _ := believing(t, config(is.entry("a:"), well.entry("b:")))
	i.becomes(t, well.token(nil), "b:ann")
	known := is.token(nil)
	i.becomes(t, known, "a:ann")
	is.setDown(true)
	is.rotate("second")
	if got := i.who(t.Context(), is.token(nil)); strings.HasPrefix(got, "a:") {
		t.Errorf("a token that nobody can verify: %s", got)
	}
	if got := i.who(t.Context(), known); got != "a:ann[a:staff]" {
		t.Errorf("a token that is known: %s", got)
	}
	if got := i.who(t.Context(), well.token(map[string]any{"sub": "bob"})); got != "b:bob[b:staff]" {
		t.Errorf("a token of the other one: %s", got)
	}
	is.setDown(false)
	i.becomes(t, is.token(nil), "a:ann")
}

// A new file counts once it is right, and a wrong one is told once.
func TestFollow(t *testing.T) {
	one, two := newIssuer(t), newIssuer(t)
	i, file, log := believing(t, config(one.entry("a:")))
	i.becomes(t, one.token(nil), "a:ann")
	write := func(text string) error {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return i.read()
	}
	if err := write("jwt: ["); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a broken file: %v", err)
	}
	if err := i.read(); err != nil {
		t.Errorf("it is told again: %v", err)
	}
	if got := i.who(t.Context(), one.token(nil)); got != "a:ann[a:staff]" {
		t.Errorf("beside a broken file: %s", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := i.read(); !os.IsNotExist(err) {
		t.Errorf("a file that is gone: %v", err)
	}
	if err := i.read(); err != nil {
		t.Errorf("it is told again: %v", err)
	}
	if err := write(config(two.entry("b:"))); err != nil {
		t.Fatal(err)
	}
	i.becomes(t, two.token(nil), "b:ann")
	if got := i.who(t.Context(), one.token(map[string]any{"sub": "new"})); got != "nobody" {
		t.Errorf("an issuer that was taken out: %s", got)
	}
	if !strings.Contains(log.String(), "the issuers of tokens are new") {
		t.Errorf("log: %s", log)
	}
	if err := write(config()); err != nil || i.who(t.Context(), two.token(nil)) != "nobody" {
		t.Errorf("a file without issuers: %v", err)
	}
}

func TestWrongFiles(t *testing.T) {
	is := newIssuer(t)
	for want, text := range map[string]string{
		"no such file":                 "",
		"strict decoding error":        strings.Replace(config(is.entry("")), `"claim"`, `"clam"`, 1),
		"AuthorizationConfiguration":   `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration"}`,
		"take it out":                  `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "anonymous": {"enabled": true}}`,
		"Duplicate value":              config(is.entry(""), is.entry("")),
		"URL scheme must be https":     config(strings.Replace(is.entry(""), "https://", "http://", 1)),
		"must not overlap with disall": config(strings.Replace(is.entry(""), is.URL, "https://own.example.com", 1)),
		"at most":                      strings.Repeat(" ", maxFile) + config(),
	} {
		file := filepath.Join(t.TempDir(), "issuers")
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		i, err := New(Config{File: file, Own: []string{"https://own.example.com"}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", want, err)
		}
		if i != nil {
			i.Close()
		}
	}
}
