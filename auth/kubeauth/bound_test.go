package kubeauth

// Tests of service accounts: the objects of their tokens, and which tokens are accepted.

import (
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// forBank requests a token of webPod for an audience that no volume of it names.
func forBank() *authenticationv1.TokenRequest {
	r := boundToken(nil)
	r.Spec.Audiences = []string{"bank"}
	return r
}

const builderUser = "system:serviceaccount:ns:builder"

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}
}

func bindable() []runtime.Object {
	return append(cluster(),
		&corev1.ServiceAccount{ObjectMeta: meta("builder")},
		&corev1.Secret{ObjectMeta: meta("key")},
	)
}

// reads counts the live reads of single objects.
func reads(c *fake.Clientset) int {
	n := 0
	for _, a := range c.Actions() {
		if a.GetVerb() == "get" {
			n++
		}
	}
	return n
}

func TestBound(t *testing.T) {
	o, client := objects(t, bindable()...)
	for _, tc := range []struct {
		ref   accounttoken.Reference
		reads int
		found types.UID // empty: there is none
	}{
		{accounttoken.Reference{Kind: "ServiceAccount", Namespace: "ns", Name: "builder", UID: "builder-uid"}, 0, "builder-uid"},
		{accounttoken.Reference{Kind: "Pod", Namespace: "ns", Name: "web", UID: "web-uid"}, 0, "web-uid"},
		{accounttoken.Reference{Kind: "Node", Name: "node-1", UID: "n1"}, 0, "n1"},
		{accounttoken.Reference{Kind: "Secret", Namespace: "ns", Name: "key", UID: "key-uid"}, 1, "key-uid"},
		{accounttoken.Reference{Kind: "Pod", Namespace: "ns", Name: "web", UID: "made just now"}, 1, "web-uid"},
		{accounttoken.Reference{Kind: "Pod", Namespace: "ns", Name: "gone", UID: "gone-uid"}, 1, ""},
		{accounttoken.Reference{Kind: "ServiceAccount", Namespace: "ns", Name: "gone", UID: "gone-uid"}, 1, ""},
		{accounttoken.Reference{Kind: "Node", Name: "gone", UID: "gone-uid"}, 1, ""},
	} {
		before := reads(client)
		got, err := o.Bound(t.Context(), builderUser, tc.ref)
		if n := reads(client) - before; n != tc.reads {
			t.Errorf("%s: %d reads, want %d", tc.ref, n, tc.reads)
		}
		switch {
		case tc.found == "":
			if !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v, %v", tc.ref, got, err)
			}
		case err != nil || got.GetUID() != tc.found:
			t.Errorf("%s: %v, %v", tc.ref, got, err)
		}
	}
	if _, err := o.Bound(t.Context(), builderUser, accounttoken.Reference{Kind: "Cat"}); err == nil {
		t.Error("a token is bound to a cat")
	}
	if _, err := NewObjects().Bound(t.Context(), builderUser, accounttoken.Reference{Kind: "Pod"}); err == nil {
		t.Error("answered without knowing where to look")
	}
}

// TestBoundIsBounded: an invalid token causes a bounded number of reads, and does not use the
// limit of another account.
func TestBoundIsBounded(t *testing.T) {
	o, client := objects(t, bindable()...)
	gone := accounttoken.Reference{Kind: "Pod", Namespace: "ns", Name: "gone", UID: "gone-uid"}
	other := accounttoken.Reference{Kind: "Secret", Namespace: "ns", Name: "key", UID: "that of another"}
	for range 3 * liveBurst {
		_, _ = o.Bound(t.Context(), builderUser, gone)
		_, _ = o.Bound(t.Context(), builderUser, other)
	}
	if n := reads(client); n != 2 {
		t.Errorf("%d reads of two objects that are gone", n)
	}
	if _, err := o.Bound(t.Context(), builderUser, accounttoken.Reference{Kind: "Secret", Namespace: "ns", Name: "key", UID: "key-uid"}); err != nil {
		t.Errorf("beside ended tokens a good one is refused: %v", err)
	}
	if _, err := o.Bound(t.Context(), builderUser, gone); !apierrors.IsNotFound(err) {
		t.Errorf("one that is gone: %v", err)
	}
	var err error
	for i := range 3 * liveBurst {
		gone.UID = types.UID(fmt.Sprint(i))
		_, err = o.Bound(t.Context(), builderUser, gone)
	}
	if n := reads(client); n > 2*liveBurst || !apierrors.IsTooManyRequests(err) {
		t.Errorf("%d reads, then %v", n, err)
	}
	if _, err = o.Bound(t.Context(), "system:serviceaccount:ns:other", gone); !apierrors.IsNotFound(err) {
		t.Errorf("another account: %v", err)
	}
	if _, err = o.Bound(t.Context(), builderUser, accounttoken.Reference{Kind: "Pod", Namespace: "ns", Name: "web", UID: "web-uid"}); err != nil {
		t.Errorf("what the cache has: %v", err)
	}
}

// TestAuthenticateAccount: a token of a service account is accepted beside the other kinds,
// and only for a short time after its pod was deleted.
func TestAuthenticateAccount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, newIssuer(t, "ca").PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	key := pkitest.NewKey(t)
	tokens, err := accounttoken.New(accounttoken.Config{Signer: key, Public: []crypto.PublicKey{key.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	o, client := objects(t, append(bindable(), tokenSecret(nil))...)
	auth, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file, Secrets: o.Secret, Accounts: tokens.Authenticator(o.Bound), Audiences: tokens.Audiences()})
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := tokens.Issue(accounttoken.Grant{
		Namespace: "ns", Name: "builder", UID: "builder-uid", Audiences: []string{accounttoken.DefaultIssuer, "vault"}, Life: time.Hour,
		Pod: &accounttoken.Named{Name: "web", UID: "web-uid"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(token string, audiences ...string) (*authenticator.Response, bool, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		if audiences == nil {
			audiences = tokens.Audiences()
		}
		return auth.AuthenticateRequest(r.WithContext(authenticator.WithAudiences(r.Context(), audiences)))
	}
	resp, ok, err := ask(token)
	if err != nil || !ok {
		t.Fatalf("refused: %v", err)
	}
	if u := resp.User; u.GetName() != builderUser || !slices.Equal(u.GetGroups(), []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"}) {
		t.Errorf("got %v", u)
	}
	if resp, ok, err = ask(token, "vault"); err != nil || !ok || !slices.Equal(resp.Audiences, []string{"vault"}) {
		t.Errorf("for its other audience: %v, %v", resp, err)
	}
	const bootstrap = "abcdef.0123456789abcdef"
	if _, ok, err = ask(bootstrap); !ok || err != nil {
		t.Errorf("a bootstrap token: %v", err)
	}
	for name, wrong := range map[string]func() (*authenticator.Response, bool, error){
		"signature":                     func() (*authenticator.Response, bool, error) { return ask(token[:len(token)-4] + "AAAA") },
		"audience":                      func() (*authenticator.Response, bool, error) { return ask(token, "bank") },
		"audience of a bootstrap token": func() (*authenticator.Response, bool, error) { return ask(bootstrap, "vault") },
	} {
		if _, ok, err := wrong(); ok || err == nil {
			t.Errorf("%s: %v, %v: want an error, or the request passes as anonymous", name, ok, err)
		}
	}

	if err := client.CoreV1().Pods("ns").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	end := time.After(time.Minute)
	for tick := time.Tick(50 * time.Millisecond); ; {
		if _, ok, err = ask(token); !ok {
			break
		}
		select {
		case <-tick:
		case <-end:
			t.Fatal("the token outlives its pod")
		}
	}
	if err == nil {
		t.Error("refused without a reason")
	}
}

// TestTokensOfNodes: a pod's token is refused while its node is, from the next request on, and
// its requests are watched by the name of that node.
func TestTokensOfNodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, newIssuer(t, "ca").PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	key := pkitest.NewKey(t)
	tokens, err := accounttoken.New(accounttoken.Config{Signer: key, Public: []crypto.PublicKey{key.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	o, _ := objects(t, bindable()...)
	names := &register{}
	auth, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file, Names: names, Accounts: tokens.Authenticator(o.Bound), Audiences: tokens.Audiences()})
	if err != nil {
		t.Fatal(err)
	}
	pod, node := &accounttoken.Named{Name: "web", UID: "web-uid"}, &accounttoken.Named{Name: "node-1", UID: "n1"}
	follow := EndRequests(names, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for name, tc := range map[string]struct {
		pod, node *accounttoken.Named
		scheme    string
		refused   bool
	}{
		"of a pod":            {pod, node, "Bearer ", true},
		"of the node":         {nil, node, "Bearer ", true},
		"written differently": {pod, node, " bEARER ", true},
		"of no node":          {nil, nil, "Bearer ", false},
	} {
		token, _, err := tokens.Issue(accounttoken.Grant{
			Namespace: "ns", Name: "builder", UID: "builder-uid", Audiences: tokens.Audiences(), Life: time.Hour, Pod: tc.pod, Node: tc.node,
		})
		if err != nil {
			t.Fatal(err)
		}
		ask := func() error {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", tc.scheme+token)
			names.pods = nil
			follow.ServeHTTP(httptest.NewRecorder(), r)
			if followed := slices.Equal(names.pods, []string{"node-1"}); followed != tc.refused {
				t.Errorf("%s: followed %q", name, names.pods)
			}
			_, ok, err := auth.AuthenticateRequest(r.WithContext(authenticator.WithAudiences(r.Context(), tokens.Audiences())))
			if ok == (err != nil) {
				t.Errorf("%s: %t, %v", name, ok, err)
			}
			return err
		}
		names.barred = ""
		if err := ask(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		names.barred = "node-1"
		for range 2 {
			if err := ask(); errors.Is(err, errNotHeld) != tc.refused {
				t.Errorf("%s, its node refused: %v", name, err)
			}
		}
		names.barred = ""
		if err := ask(); err != nil {
			t.Errorf("%s, its node admitted again: %v", name, err)
		}
		names.revoked, names.at = "node-1", time.Now().Add(time.Minute)
		if err := ask(); errors.Is(err, errNotHeld) != tc.refused {
			t.Errorf("%s, its node revoked since: %v", name, err)
		}
		names.at = time.Now().Add(-time.Minute)
		if err := ask(); err != nil {
			t.Errorf("%s, its node revoked before: %v", name, err)
		}
		names.revoked = ""
	}
}
