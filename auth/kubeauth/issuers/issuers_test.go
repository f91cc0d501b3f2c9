package issuers

// Tests of tokens of other issuers, with an issuer that is a server of its own.

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth/issuers/issuertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

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
		Files: &auth.Files{Log: slog.New(slog.NewTextHandler(log, nil))},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i, file, log
}

// who is the user of a token, or the error.
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

// becomes waits until a token has a user.
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
	is := issuertest.New(t)
	other := issuertest.New(t)
	i, _, _ := believing(t, issuertest.File(is.Entry("corp:")))
	i.becomes(t, is.Token(nil), "corp:ann[corp:staff]")
	forged := other.Token(map[string]any{"iss": is.URL})
	parts := strings.Split(is.Token(nil), ".")
	for name, tt := range map[string]struct{ token, want string }{
		"another audience":   {is.Token(map[string]any{"aud": "other"}), "audience"},
		"no audience":        {is.Token(map[string]any{"aud": nil}), "audience"},
		"another issuer":     {other.Token(nil), "nobody"},
		"forged":             {forged, "failed to verify"},
		"expired":            {is.Token(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "expired"},
		"not yet valid":      {is.Token(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "before the nbf"},
		"no signature":       {parts[0] + "." + parts[1] + ".", "verify"},
		"another's claims":   {parts[0] + "." + strings.Split(is.Token(map[string]any{"sub": "root"}), ".")[1] + "." + parts[2], "verify"},
		"no JWT":             {"abcdef.0123456789abcdef", "nobody"},
		"nothing":            {"", "nobody"},
		"for what is API's":  {is.Token(map[string]any{"aud": []string{"api"}}), "audience"},
		"one among several":  {is.Token(map[string]any{"aud": []string{"x", "hawser"}}), "corp:ann"},
		"groups as one text": {is.Token(map[string]any{"groups": "one"}), "corp:ann[corp:one]"},
	} {
		if got := i.who(t.Context(), tt.token); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	none := strings.Split(is.Token(nil), ".")
	if got := i.who(t.Context(), "eyJhbGciOiJub25lIn0."+none[1]+"."); strings.HasPrefix(got, "corp:") {
		t.Errorf("an unsigned token: %s", got)
	}
	// TokenReview asks for audiences.
	for audience, want := range map[string]bool{"api": true, "other": false} {
		if _, ok, _ := i.AuthenticateToken(authenticator.WithAudiences(t.Context(), authenticator.Audiences{audience}), is.Token(nil)); ok != want {
			t.Errorf("for %s: %t", audience, ok)
		}
	}
}

// No claim of another issuer gives a user of the cluster.
func TestNobodyOfOurs(t *testing.T) {
	is := issuertest.New(t)
	i, _, _ := believing(t, issuertest.File(is.Entry("")))
	i.becomes(t, is.Token(nil), "ann[staff]")
	for name, claims := range map[string]map[string]any{
		"node":          {"sub": "system:node:node-1", "groups": []string{"system:nodes"}},
		"administrator": {"groups": []string{"staff", "system:masters"}},
		"account":       {"sub": "system:serviceaccount:kube-system:x"},
	} {
		if got := i.who(t.Context(), is.Token(claims)); !strings.Contains(got, "are the cluster's own") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := i.who(t.Context(), is.Token(map[string]any{"sub": nil})); !strings.Contains(got, "names no user") {
		t.Errorf("a token of nobody: %s", got)
	}
}

// New keys of an issuer are read. Tokens of the old ones become invalid.
func TestRotation(t *testing.T) {
	is := issuertest.New(t)
	i, _, _ := believing(t, issuertest.File(is.Entry("corp:")))
	old := is.Tokens()
	i.becomes(t, is.Token(nil), "corp:ann")
	is.Rotate("second")
	i.becomes(t, is.Token(nil), "corp:ann")
	// The library answers with the new keys a moment before it drops the old ones.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for n := 0; ; n++ { // each is another token: a valid one is cached
		if got := i.who(t.Context(), old(map[string]any{"x": n})); !strings.HasPrefix(got, "corp:") {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("tokens of a key that is gone stay valid")
		}
	}
}

// While an issuer is down its tokens are refused, and others' are not. Cached ones are still
// accepted.
func TestDown(t *testing.T) {
	is, well := issuertest.New(t), issuertest.New(t)
	i, _, _ := believing(t, issuertest.File(is.Entry("a:"), well.Entry("b:")))
	i.becomes(t, well.Token(nil), "b:ann")
	known := is.Token(nil)
	i.becomes(t, known, "a:ann")
	is.SetDown(true)
	is.Rotate("second")
	if got := i.who(t.Context(), is.Token(nil)); strings.HasPrefix(got, "a:") {
		t.Errorf("a token that nobody can verify: %s", got)
	}
	if got := i.who(t.Context(), known); got != "a:ann[a:staff]" {
		t.Errorf("a token that is known: %s", got)
	}
	if got := i.who(t.Context(), well.Token(map[string]any{"sub": "bob"})); got != "b:bob[b:staff]" {
		t.Errorf("a token of the other one: %s", got)
	}
	is.SetDown(false)
	i.becomes(t, is.Token(nil), "a:ann")
}

// TestKeysOutliveOtherChanges: an issuer whose entry stays as it is keeps its keys, though it is
// down when the file is replaced.
func TestKeysOutliveOtherChanges(t *testing.T) {
	is, changes := issuertest.New(t), issuertest.New(t)
	i, file, _ := believing(t, issuertest.File(is.Entry("a:"), changes.Entry("b:")))
	i.becomes(t, is.Token(nil), "a:ann")
	i.becomes(t, changes.Token(nil), "b:ann")
	is.SetDown(true)
	for n, prefix := range []string{"c:", "d:"} {
		if err := os.WriteFile(file, []byte(issuertest.File(changes.Entry(prefix), is.Entry("a:"))), 0o600); err != nil {
			t.Fatal(err)
		}
		i.becomes(t, changes.Token(nil), prefix+"ann")
		sub := fmt.Sprint("new-", n) // no token that is cached
		if got := i.who(t.Context(), is.Token(map[string]any{"sub": sub})); got != "a:"+sub+"[a:staff]" {
			t.Errorf("once the other has the prefix %s: %s", prefix, got)
		}
	}
}

// A valid new file is used, and an invalid one is logged once.
func TestFollow(t *testing.T) {
	one, two := issuertest.New(t), issuertest.New(t)
	i, file, log := believing(t, issuertest.File(one.Entry("a:")))
	i.becomes(t, one.Token(nil), "a:ann")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := func(text string) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.After(patience); !strings.Contains(log.String(), text); i.who(t.Context(), "a.b.c") {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("still not told: %s\n%s", text, log)
			}
		}
	}
	write("jwt: [")
	told("what was read before stays in use")
	if got := i.who(t.Context(), one.Token(nil)); got != "a:ann[a:staff]" || !strings.Contains(log.String(), file) {
		t.Errorf("beside a broken file: %s\n%s", got, log)
	}
	write(issuertest.File(two.Entry("b:")))
	i.becomes(t, two.Token(nil), "b:ann")
	if got := i.who(t.Context(), one.Token(map[string]any{"sub": "new"})); got != "nobody" {
		t.Errorf("an issuer that was taken out: %s", got)
	}
	write(issuertest.File())
	i.becomes(t, two.Token(nil), "nobody")
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines, want 3: %s", n, log)
	}
}

func TestWrongFiles(t *testing.T) {
	is := issuertest.New(t)
	for want, text := range map[string]string{
		"no such file":                 "",
		"strict decoding error":        strings.Replace(issuertest.File(is.Entry("")), `"claim"`, `"clam"`, 1),
		"AuthorizationConfiguration":   `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration"}`,
		"take it out":                  `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "anonymous": {"enabled": true}}`,
		"Duplicate value":              issuertest.File(is.Entry(""), is.Entry("")),
		"URL scheme must be https":     issuertest.File(strings.Replace(is.Entry(""), "https://", "http://", 1)),
		"must not overlap with disall": issuertest.File(strings.Replace(is.Entry(""), is.URL, "https://own.example.com", 1)),
		"at most":                      strings.Repeat(" ", 1<<20) + issuertest.File(),
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

// TestEndlessIssuer: of an answer without an end little is read, whichever it is, and the
// tokens are nobody's.
func TestEndlessIssuer(t *testing.T) {
	elsewhere := map[string]any{"_claim_names": map[string]string{"groups": "there"}}
	for path, want := range map[string]string{
		"/.well-known/openid-configuration": "not initialized", "/keys": "the answer has more than", "/claims": "could not decode distributed claim response",
	} {
		t.Run(path, func(t *testing.T) {
			is := issuertest.New(t)
			elsewhere["_claim_sources"] = map[string]any{"there": map[string]string{"endpoint": is.URL + "/claims"}}
			token := is.Token(elsewhere)
			read := is.Flow(path)
			i, _, _ := believing(t, issuertest.File(is.Entry("corp:")))
			i.becomes(t, token, want)
			select {
			case n := <-read:
				if n >= issuertest.MostSent {
					t.Errorf("%d bytes were read", n)
				}
			case <-time.After(patience):
				t.Error("it is not asked, or read on")
			}
		})
	}
}

// TestNoEgress: a way to an issuer that is not taken is refused with its line.
func TestNoEgress(t *testing.T) {
	text := strings.Replace(issuertest.File(issuertest.New(t).Entry("corp:")), `"audiences":`, `"egressSelectorType": "cluster", "audiences":`, 1)
	file := filepath.Join(t.TempDir(), "issuers")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Check(Config{File: file}); err == nil || !strings.Contains(err.Error(), "line 1: jwt[0].issuer.egressSelectorType: ") || !strings.Contains(err.Error(), "issuers are asked directly") {
		t.Errorf("got %v", err)
	}
}
