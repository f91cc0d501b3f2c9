package accounttoken

// Tests of the claims of tokens, and of verification.

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// world has the existing objects.
type world map[Reference]metav1.Object

func (w world) add(r Reference, change func(*metav1.ObjectMeta)) {
	m := metav1.ObjectMeta{Name: r.Name, Namespace: r.Namespace, UID: r.UID}
	if change != nil {
		change(&m)
	}
	r.UID = ""
	w[r] = &corev1.Pod{ObjectMeta: m}
}

func (w world) look(_ context.Context, account string, r Reference) (metav1.Object, error) {
	if account != "system:serviceaccount:ns:robot" {
		return nil, errors.New("asked for " + account)
	}
	r.UID = ""
	if o, ok := w[r]; ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource(r.Kind), r.Name)
}

var (
	account = Reference{"ServiceAccount", "ns", "robot", "a1"}
	podRef  = Reference{"Pod", "ns", "web", "p1"}
	nodeRef = Reference{"Node", "", "node-1", "n1"}
	secret  = Reference{"Secret", "ns", "key", "s1"}
)

func everything() world {
	w := world{}
	for _, r := range []Reference{account, podRef, nodeRef, secret} {
		w.add(r, nil)
	}
	return w
}

// rig is an issuer whose clock stands still.
type rig struct {
	*Issuer
	key *ecdsa.PrivateKey
	now time.Time
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{key: newKey(t), now: time.Unix(1_800_000_000, 0)}
	var err error
	r.Issuer, err = New(Config{Signer: r.key, Public: []crypto.PublicKey{r.key.Public()}, Now: func() time.Time { return r.now }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func grant(change func(*Grant)) Grant {
	g := Grant{Namespace: "ns", Name: "robot", UID: "a1", Audiences: []string{DefaultIssuer}, Life: time.Hour}
	if change != nil {
		change(&g)
	}
	return g
}

func ofPod(g *Grant) { g.Pod, g.Node = &Named{"web", "p1"}, &Named{"node-1", "n1"} }

func (r *rig) issue(t testing.TB, change func(*Grant)) string {
	t.Helper()
	token, _, err := r.Issue(grant(change))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// signed is a token of any claims and any key.
func signed(t testing.TB, key any, alg jose.SignatureAlgorithm, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// claims are those of a valid token, changed by change.
func (r *rig) claims(change map[string]any) map[string]any {
	c := map[string]any{
		"iss": DefaultIssuer, "sub": "system:serviceaccount:ns:robot", "aud": []string{DefaultIssuer}, "jti": "id",
		"iat": r.now.Unix(), "nbf": r.now.Unix(), "exp": r.now.Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": "robot", "uid": "a1"}},
	}
	maps.Copy(c, change)
	return c
}

// TestOneAudience: it is an array, as the programs that read Kubernetes' tokens expect.
func TestOneAudience(t *testing.T) {
	token, _, err := newRig(t).Issue(grant(func(g *Grant) { g.Audiences = []string{"a"} }))
	if err != nil {
		t.Fatal(err)
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var body struct {
		Audience []string `json:"aud"`
	}
	if err := json.Unmarshal(b, &body); err != nil || !slices.Equal(body.Audience, []string{"a"}) {
		t.Errorf("%s: %v", b, err)
	}
}

// TestClaims compares a token with Kubernetes'.
func TestClaims(t *testing.T) {
	r := newRig(t)
	token, id, err := r.Issue(grant(func(g *Grant) { ofPod(g); g.Audiences = []string{"a", "b"} }))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	var head, body map[string]any
	for i, to := range []*map[string]any{&head, &body} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, to); err != nil {
			t.Fatal(err)
		}
	}
	if id != "JTI="+body["jti"].(string) || len(body["jti"].(string)) != 36 {
		t.Errorf("id %q, claim %v", id, body["jti"])
	}
	delete(body, "jti")
	got, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"aud":["a","b"],"exp":1800003600,"iat":1800000000,"iss":"https://kubernetes.default.svc.cluster.local",` +
		`"kubernetes.io":{"namespace":"ns","node":{"name":"node-1","uid":"n1"},"pod":{"name":"web","uid":"p1"},"serviceaccount":{"name":"robot","uid":"a1"}},` +
		`"nbf":1800000000,"sub":"system:serviceaccount:ns:robot"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	kid, err := keyID(r.key.Public())
	if err != nil || head["alg"] != "ES256" || head["kid"] != kid || len(head) != 2 {
		t.Errorf("header %v, %v", head, err)
	}
}

func TestAuthenticate(t *testing.T) {
	r := newRig(t)
	auth := r.Authenticator(everything().look)
	for _, tc := range []struct {
		name   string
		change func(*Grant)
		extra  map[string]string
	}{
		{"alone", nil, nil},
		{"of a pod", ofPod, map[string]string{"pod-name": "web", "pod-uid": "p1", "node-name": "node-1", "node-uid": "n1"}},
		{"of a pod whose node is gone", func(g *Grant) { ofPod(g); g.Node = &Named{Name: "gone"} }, map[string]string{"pod-name": "web", "pod-uid": "p1", "node-name": "gone"}},
		{"of a secret", func(g *Grant) { g.Secret = &Named{"key", "s1"} }, nil},
		{"of a node", func(g *Grant) { g.Node = &Named{"node-1", "n1"} }, map[string]string{"node-name": "node-1", "node-uid": "n1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, ok, err := auth.AuthenticateToken(t.Context(), r.issue(t, tc.change))
			if err != nil || !ok {
				t.Fatalf("refused: %v", err)
			}
			u := resp.User
			if u.GetName() != "system:serviceaccount:ns:robot" || u.GetUID() != "a1" || !slices.Equal(u.GetGroups(), []string{"system:serviceaccounts", "system:serviceaccounts:ns"}) {
				t.Errorf("got %v", u)
			}
			if !slices.Equal(resp.Audiences, []string{DefaultIssuer}) {
				t.Errorf("audiences %q", resp.Audiences)
			}
			extra := map[string]string{}
			for k, v := range u.GetExtra() {
				extra[strings.TrimPrefix(k, "authentication.kubernetes.io/")] = v[0]
			}
			if !strings.HasPrefix(extra["credential-id"], "JTI=") {
				t.Errorf("extra %v", extra)
			}
			delete(extra, "credential-id")
			if !maps.Equal(extra, tc.extra) {
				t.Errorf("extra %v, want %v", extra, tc.extra)
			}
		})
	}
}

func TestAudiences(t *testing.T) {
	r := newRig(t)
	auth := r.Authenticator(everything().look)
	token := r.issue(t, func(g *Grant) { g.Audiences = []string{"vault", DefaultIssuer, "other"} })
	for _, tc := range []struct{ asked, want []string }{
		{nil, []string{DefaultIssuer}},
		{[]string{"vault"}, []string{"vault"}},
		{[]string{"other", "foreign", "vault"}, []string{"other", "vault"}},
		{[]string{"foreign"}, nil},
	} {
		ctx := t.Context()
		if tc.asked != nil {
			ctx = authenticator.WithAudiences(ctx, tc.asked)
		}
		resp, ok, err := auth.AuthenticateToken(ctx, token)
		switch {
		case tc.want == nil:
			if ok || err == nil {
				t.Errorf("%q: got in", tc.asked)
			}
		case err != nil || !ok || !slices.Equal(resp.Audiences, tc.want):
			t.Errorf("%q: %v, %v", tc.asked, resp, err)
		}
	}
}

// TestWrongTokens: each is refused, and there is no look-up for one with a foreign
// signature.
func TestWrongTokens(t *testing.T) {
	r := newRig(t)
	good := r.issue(t, nil)
	kube := func(fields map[string]any) map[string]any {
		k := map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": "robot", "uid": "a1"}}
		maps.Copy(k, fields)
		return r.claims(map[string]any{"kubernetes.io": k})
	}
	without := func(claim string) map[string]any {
		c := r.claims(nil)
		delete(c, claim)
		return c
	}
	own := func(c map[string]any) string { return signed(t, r.key, jose.ES256, c) }
	in := func(d time.Duration) int64 { return r.now.Add(d).Unix() }
	der, err := x509.MarshalPKIXPublicKey(r.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + strings.Split(good, ".")[1] + "."
	parts := strings.Split(good, ".")
	for _, tc := range []struct{ name, token, want string }{
		{"signature of another", signed(t, newKey(t), jose.ES256, r.claims(nil)), "cryptographic"},
		{"signature of another, RSA", signed(t, rsaKey, jose.RS256, r.claims(nil)), "unexpected signature algorithm"},
		{"no signature", none, "unexpected signature algorithm"},
		{"signature left out", parts[0] + "." + parts[1] + ".", ""},
		{"HS256 with the public key", signed(t, der, jose.HS256, r.claims(nil)), "unexpected signature algorithm"},
		{"claims of another", parts[0] + "." + strings.Split(r.issue(t, ofPod), ".")[1] + "." + parts[2], "cryptographic"},
		{"truncated", good[:len(good)-10], ""},
		{"empty parts", "..", ""},
		{"rubbish", "a.b.c", ""},
		{"huge", good + strings.Repeat("A", maxToken), "more than 32768"},
		{"issuer", own(r.claims(map[string]any{"iss": "https://evil.example"})), "issuer"},
		{"no issuer", own(without("iss")), "issuer"},
		{"audience", own(r.claims(map[string]any{"aud": []string{"vault"}})), "audience"},
		{"no audience", own(without("aud")), "its audience"},
		{"expired", own(r.claims(map[string]any{"exp": in(-61 * time.Second), "iat": in(-time.Hour), "nbf": in(-time.Hour)})), "expired"},
		{"no end", own(without("exp")), "its end"},
		{"not yet valid", own(r.claims(map[string]any{"nbf": in(61 * time.Second)})), "not valid yet"},
		{"made in the future", own(r.claims(map[string]any{"iat": in(61 * time.Second)})), "future"},
		{"subject of another", own(r.claims(map[string]any{"sub": "system:serviceaccount:ns:boss"})), "does not name"},
		{"no account", own(without("kubernetes.io")), "does not name"},
		{"account without uid", own(kube(map[string]any{"serviceaccount": map[string]any{"name": "robot"}})), "does not name"},
		{"pod without uid", own(kube(map[string]any{"pod": map[string]any{"name": "web"}})), "does not name"},
		{"node without uid", own(kube(map[string]any{"node": map[string]any{"name": "node-1"}})), "does not name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nothing := func(context.Context, string, Reference) (metav1.Object, error) {
				t.Error("something was looked up")
				return nil, errors.New("no")
			}
			resp, ok, err := r.Authenticator(nothing).AuthenticateToken(t.Context(), tc.token)
			if err == nil || ok || resp != nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v, want %q", resp, err, tc.want)
			}
		})
	}
	if _, ok, err := r.Authenticator(everything().look).AuthenticateToken(t.Context(), own(r.claims(nil))); !ok || err != nil {
		t.Errorf("what the wrong ones were made from is refused: %v", err)
	}
	for _, foreign := range []string{"", "abcdef.0123456789abcdef", "password"} {
		if _, ok, err := r.Authenticator(nil).AuthenticateToken(t.Context(), foreign); ok || err != nil {
			t.Errorf("%q is not left to others: %v", foreign, err)
		}
	}
}

func TestEndedTokens(t *testing.T) {
	r := newRig(t)
	deleted := func(ago time.Duration) func(*metav1.ObjectMeta) {
		return func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &metav1.Time{Time: r.now.Add(-ago)} }
	}
	another := func(m *metav1.ObjectMeta) { m.UID = types.UID("new") }
	of := map[string]struct {
		ref    Reference
		change func(*Grant)
	}{
		"account": {account, nil}, "pod": {podRef, ofPod}, "secret": {secret, func(g *Grant) { g.Secret = &Named{"key", "s1"} }},
		"node": {nodeRef, func(g *Grant) { g.Node = &Named{"node-1", "n1"} }},
	}
	for kind, o := range of {
		token := r.issue(t, o.change)
		for _, tc := range []struct {
			name   string
			change func(world)
			want   string
		}{
			{"gone", func(w world) { delete(w, Reference{o.ref.Kind, o.ref.Namespace, o.ref.Name, ""}) }, "is gone"},
			{"another", func(w world) { w.add(o.ref, another) }, "is another one now"},
			{"deleted long ago", func(w world) { w.add(o.ref, deleted(61*time.Second)) }, "was deleted"},
			{"deleted just now", func(w world) { w.add(o.ref, deleted(59*time.Second)) }, ""},
			{"to be deleted", func(w world) { w.add(o.ref, deleted(-30*time.Second)) }, ""},
		} {
			w := everything()
			tc.change(w)
			_, ok, err := r.Authenticator(w.look).AuthenticateToken(t.Context(), token)
			if ok != (tc.want == "") || !ok && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s %s: %v, %v", kind, tc.name, ok, err)
			}
		}
	}
	_, ok, err := r.Authenticator(func(context.Context, string, Reference) (metav1.Object, error) {
		return nil, errors.New("no answer")
	}).AuthenticateToken(t.Context(), r.issue(t, nil))
	if ok || err == nil {
		t.Error("believed without knowing that the account exists")
	}
}

// TestRotation: tokens of the former key are valid, with a key id or without.
func TestRotation(t *testing.T) {
	old := newRig(t)
	fresh := newKey(t)
	next, err := New(Config{
		Issuers: []string{"https://new.example", DefaultIssuer}, Audiences: []string{DefaultIssuer},
		Signer: fresh, Public: []crypto.PublicKey{fresh.Public(), old.key.Public()}, Now: old.cfg.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	newToken, _, err := next.Issue(grant(nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"new": newToken, "old": old.issue(t, nil), "old without id": signed(t, old.key, jose.ES256, old.claims(nil)),
	} {
		if _, ok, err := next.Authenticator(everything().look).AuthenticateToken(t.Context(), token); !ok || err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	set, err := next.KeySet()
	if err != nil {
		t.Fatal(err)
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(set, &keys); err != nil || len(keys.Keys) != 2 || !keys.Keys[0].IsPublic() || !keys.Keys[1].IsPublic() {
		t.Errorf("key set %s: %v", set, err)
	}
	doc, err := next.Metadata("https://192.0.2.1:6443/openid/v1/jwks")
	want := `{"issuer":"https://new.example","jwks_uri":"https://192.0.2.1:6443/openid/v1/jwks","response_types_supported":["id_token"],` +
		`"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}`
	if err != nil || string(doc) != want {
		t.Errorf("got %s, %v", doc, err)
	}
}

func TestConfig(t *testing.T) {
	key := newKey(t)
	public := []crypto.PublicKey{key.Public()}
	for name, c := range map[string]Config{
		"no key":         {Public: public},
		"no public key":  {Signer: key},
		"key of another": {Signer: newKey(t), Public: public},
		"http":           {Signer: key, Public: public, Issuers: []string{"http://a.example"}},
		"no URL":         {Signer: key, Public: public, Issuers: []string{"me"}},
		"query":          {Signer: key, Public: public, Issuers: []string{"https://a.example/?b"}},
		"bad key":        {Signer: key, Public: append(public, "x")},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// FuzzDecode: tokens with a foreign signature are refused, and none panics.
func FuzzDecode(f *testing.F) {
	r := newRig(f)
	good := r.issue(f, ofPod)
	parts := strings.Split(good, ".")
	for _, seed := range []string{good, good[:len(good)-1], parts[0] + "..", "..", "", "e30.e30.e30", `{"payload":"","signatures":[]}`, parts[0] + "." + parts[1] + "." + parts[2] + "=="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		c, err := decode(token, r.keys.Load().public)
		if err == nil {
			if c.account() != "system:serviceaccount:ns:robot" {
				t.Errorf("%q is of %s", token, c.account())
			}
			return
		}
		if c != nil {
			t.Errorf("%v, and claims", err)
		}
	})
}

// The cost of a token for the API server, by the kind of its key, and of one that is not in
// the cache.
func BenchmarkTokens(b *testing.B) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	for _, key := range []crypto.Signer{newKey(b), rsaKey} {
		i, err := New(Config{Signer: key, Public: []crypto.PublicKey{key.Public()}})
		if err != nil {
			b.Fatal(err)
		}
		algorithm := string(i.keys.Load().public.algorithms()[0])
		token, _, err := i.Issue(grant(ofPod))
		if err != nil {
			b.Fatal(err)
		}
		b.Run("issue/"+algorithm, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := i.Issue(grant(ofPod)); err != nil {
					b.Fatal(err)
				}
			}
		})
		believes := i.Authenticator(everything().look)
		b.Run("authenticate/"+algorithm, func(b *testing.B) {
			for b.Loop() {
				if _, ok, err := believes.AuthenticateToken(b.Context(), token); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
