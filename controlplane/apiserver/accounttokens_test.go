// Tokens of service accounts at a server that believes them.

package apiserver_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// believing is a server with tokens of service accounts.
type believing struct {
	*instance
	keys pki.AccountKeys
}

func startBelieving(t testing.TB) *believing {
	t.Helper()
	dir := t.TempDir()
	objects := kubeauth.NewObjects()
	b := &believing{}
	in, err := startWith(dir, func(c *apiserver.Config) {
		p, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki")})
		if err != nil {
			t.Fatal(err)
		}
		b.keys = p.AccountKeys()
		c.Tokens = must(accounttoken.New(accounttoken.Config{Signer: b.keys.Signer, Public: b.keys.Public, MaxLife: 2 * time.Hour}))(t)
		known := must(kubeauth.NewAuthenticator(kubeauth.AuthenticatorConfig{
			ClientCAFile: c.ClientCAFile, Accounts: c.Tokens.Authenticator(objects.Bound), Audiences: c.Tokens.Audiences(),
		}))(t)
		c.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			if resp, ok, err := byName(r); ok || err != nil {
				return resp, ok, err
			}
			return known.AuthenticateRequest(r)
		})
		table := kubeauth.NewAuthorizer(objects)
		c.Authorizer = authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if d, _, _ := onlyNamed(ctx, a); d == authorizer.DecisionAllow {
				return d, "", nil
			}
			return table.Authorize(ctx, a)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	b.instance = in
	client := must(kubernetes.NewForConfig(in.server.LoopbackConfig()))(t)
	cached := informers.NewSharedInformerFactory(client, 0)
	if err := objects.Use(client, cached); err != nil {
		t.Fatal(err)
	}
	cached.Start(t.Context().Done())
	cached.WaitForCacheSync(t.Context().Done())
	t.Cleanup(func() { // the test's context is done
		cached.Shutdown()
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// with is a client that shows token.
func (b *believing) with(t testing.TB, token string) *kubernetes.Clientset {
	t.Helper()
	c := rest.CopyConfig(b.config)
	c.BearerToken = token
	return must(kubernetes.NewForConfig(c))(t)
}

func (b *believing) whoami(t *testing.T, token string) (authenticationv1.UserInfo, error) {
	t.Helper()
	r, err := b.with(t, token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return r.Status.UserInfo, nil
}

func (b *believing) ask(t testing.TB, account string, spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
	t.Helper()
	return b.client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
}

// robot makes an account, a node, and a pod on it that runs as the account.
func (b *believing) robot(t testing.TB, name string) (*corev1.ServiceAccount, *corev1.Pod) {
	t.Helper()
	ctx, core := t.Context(), b.client.CoreV1()
	account := must(core.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	pod := must(core.Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{ServiceAccountName: name, NodeName: "node-of-" + name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{}))(t)
	return account, pod
}

func boundTo(kind, name string, o metav1.Object) authenticationv1.TokenRequestSpec {
	ref := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}
	if o != nil {
		ref.UID = o.GetUID()
	}
	return authenticationv1.TokenRequestSpec{BoundObjectRef: ref}
}

// TestAccountTokens runs on one server, whose start is what takes time.
func TestAccountTokens(t *testing.T) {
	b := startBelieving(t)
	t.Run("of an account", b.testOfAccount)
	t.Run("of a pod", b.testOfPod)
	t.Run("of a node and a secret", b.testOfOthers)
	t.Run("wrong requests", b.testWrongRequests)
	t.Run("wrong tokens", b.testWrongTokens)
	t.Run("reviews", b.testReviews)
	t.Run("documents", b.testDocuments)
	t.Run("of nodes' making", b.testOfNodes)
}

func (b *believing) testOfAccount(t *testing.T) {
	account, _ := b.robot(t, "alone")
	before := time.Now().Truncate(time.Second)
	r := must(b.ask(t, "alone", authenticationv1.TokenRequestSpec{}))(t)
	if end := r.Status.ExpirationTimestamp.Time; end.Before(before.Add(time.Hour)) || end.After(time.Now().Add(time.Hour)) || *r.Spec.ExpirationSeconds != 3600 || !slices.Equal(r.Spec.Audiences, []string{accounttoken.DefaultIssuer}) {
		t.Errorf("got %+v", r)
	}
	u, err := b.whoami(t, r.Status.Token)
	if err != nil {
		t.Fatal(err)
	}
	if u.Username != "system:serviceaccount:default:alone" || u.UID != string(account.UID) ||
		!slices.Equal(u.Groups, []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}) || len(u.Extra) != 1 {
		t.Errorf("got %+v", u)
	}
	if _, err := b.with(t, r.Status.Token).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an account may read secrets: %v", err)
	}
	if long := must(b.ask(t, "alone", authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](1 << 32)}))(t); *long.Spec.ExpirationSeconds != 7200 {
		t.Errorf("a token lasts %d s, longer than it may", *long.Spec.ExpirationSeconds)
	}

	// Another account of that name is another one.
	accounts := b.client.CoreV1().ServiceAccounts("default")
	if err := accounts.Delete(t.Context(), "alone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.awaitRefusal(t, r.Status.Token)
	must(accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "alone"}}, metav1.CreateOptions{}))(t)
	b.awaitRefusal(t, r.Status.Token)
}

// awaitRefusal waits until token is refused.
func (b *believing) awaitRefusal(t *testing.T, token string) {
	t.Helper()
	end := time.After(time.Minute)
	for tick := time.Tick(100 * time.Millisecond); ; {
		_, err := b.whoami(t, token)
		if apierrors.IsUnauthorized(err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-tick:
		case <-end:
			t.Fatal("the token is still believed")
		}
	}
}

func (b *believing) testOfPod(t *testing.T) {
	_, pod := b.robot(t, "web")
	if len(pod.Spec.Volumes) != 1 || !strings.HasPrefix(pod.Spec.Volumes[0].Name, "kube-api-access-") || pod.Spec.Containers[0].VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" {
		t.Errorf("the pod has no token: %+v", pod.Spec)
	}
	node := must(b.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, metav1.CreateOptions{}))(t)
	token := must(b.ask(t, "web", boundTo("Pod", "web", pod)))(t).Status.Token
	u, err := b.whoami(t, token)
	if err != nil {
		t.Fatal(err)
	}
	extra := map[string]string{}
	for k, v := range u.Extra {
		extra[k] = strings.Join(v, ",")
	}
	id := extra["authentication.kubernetes.io/credential-id"]
	delete(extra, "authentication.kubernetes.io/credential-id")
	want := map[string]string{
		"authentication.kubernetes.io/pod-name": "web", "authentication.kubernetes.io/pod-uid": string(pod.UID),
		"authentication.kubernetes.io/node-name": node.Name, "authentication.kubernetes.io/node-uid": string(node.UID),
	}
	if !maps.Equal(extra, want) || !strings.HasPrefix(id, "JTI=") {
		t.Errorf("got %v %q, want %v", extra, id, want)
	}
	if err := b.client.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	b.awaitRefusal(t, token)
}

func (b *believing) testOfOthers(t *testing.T) {
	ctx, core := t.Context(), b.client.CoreV1()
	b.robot(t, "others")
	node := must(core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alone"}}, metav1.CreateOptions{}))(t)
	secret := must(core.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "alone"}}, metav1.CreateOptions{}))(t)
	ofNode := must(b.ask(t, "others", boundTo("Node", "alone", node)))(t).Status.Token
	ofSecret := must(b.ask(t, "others", boundTo("Secret", "alone", secret)))(t).Status.Token
	u, err := b.whoami(t, ofNode)
	if err != nil || !slices.Equal(u.Extra["authentication.kubernetes.io/node-name"], []string{"alone"}) {
		t.Errorf("of a node: %+v, %v", u, err)
	}
	if _, err = b.whoami(t, ofSecret); err != nil {
		t.Errorf("of a secret: %v", err)
	}
	if err := core.Nodes().Delete(ctx, "alone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := core.Secrets("default").Delete(ctx, "alone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.awaitRefusal(t, ofNode)
	b.awaitRefusal(t, ofSecret)
}

func (b *believing) testWrongRequests(t *testing.T) {
	account, pod := b.robot(t, "asked")
	b.robot(t, "other")
	life := func(seconds int64) authenticationv1.TokenRequest {
		return authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	}
	bound := func(kind, name string, o metav1.Object) authenticationv1.TokenRequest {
		return authenticationv1.TokenRequest{Spec: boundTo(kind, name, o)}
	}
	for _, tc := range []struct {
		name, account string
		request       authenticationv1.TokenRequest
		status        int32
		says          string
	}{
		{"no such account", "gone", authenticationv1.TokenRequest{}, 404, `serviceaccounts "gone" not found`},
		{"too short", "asked", life(599), 422, "less than 10 minutes"},
		{"negative", "asked", life(-1), 422, "less than 10 minutes"},
		{"too long", "asked", life(1<<32 + 1), 422, "larger than 2^32"},
		{"no such pod", "asked", bound("Pod", "gone", nil), 404, `pods "gone" not found`},
		{"no such secret", "asked", bound("Secret", "gone", nil), 404, `secrets "gone" not found`},
		{"no such node", "asked", bound("Node", "gone", nil), 404, `nodes "gone" not found`},
		{"pod of another account", "asked", bound("Pod", "other", nil), 400, "different serviceaccount name"},
		{"pod of before", "asked", bound("Pod", "asked", account), 409, "does not match the UID in record"},
		{"a cat", "asked", bound("Cat", "asked", pod), 400, "cannot bind token to object of type"},
		{"no kind", "asked", bound("", "asked", pod), 400, "cannot bind token to object of type"},
		{"name of another", "asked", authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, 422, "must match the service account name"},
		{"account of before", "asked", authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Name: "asked", UID: "old"}}, 409, "does not match the UID of the service account"},
	} {
		_, err := b.client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), tc.account, &tc.request, metav1.CreateOptions{})
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) || status.Status().Code != tc.status || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %d %s", tc.name, err, tc.status, tc.says)
		}
	}
}

// status is what the server answers to somebody who shows token.
func (b *believing) status(t *testing.T, token string) int {
	t.Helper()
	c := rest.CopyConfig(b.config)
	c.BearerToken = ""
	client := must(rest.HTTPClientFor(c))(t)
	req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, b.config.Host+"/api", nil))(t)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func (b *believing) testWrongTokens(t *testing.T) {
	account, pod := b.robot(t, "shown")
	good := must(b.ask(t, "shown", boundTo("Pod", "shown", pod)))(t).Status.Token
	parts := strings.Split(good, ".")
	now := time.Now()
	claims := func(change map[string]any) map[string]any {
		c := map[string]any{
			"iss": accounttoken.DefaultIssuer, "aud": []string{accounttoken.DefaultIssuer}, "sub": "system:serviceaccount:default:shown",
			"exp": now.Add(time.Hour).Unix(), "nbf": now.Add(-time.Hour).Unix(), "iat": now.Add(-time.Hour).Unix(),
			"kubernetes.io": map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "shown", "uid": account.UID}},
		}
		maps.Copy(c, change)
		return c
	}
	sign := func(key any, alg jose.SignatureAlgorithm, change map[string]any) string {
		s := must(jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil))(t)
		return must(jwt.Signed(s).Claims(claims(change)).Serialize())(t)
	}
	own := func(change map[string]any) string { return sign(b.keys.Signer, jose.ES256, change) }
	kube := func(account any, more map[string]any) map[string]any {
		k := map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "shown", "uid": account}}
		maps.Copy(k, more)
		return map[string]any{"kubernetes.io": k}
	}
	another := must(pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")}))(t).AccountKeys()
	der := must(x509.MarshalPKIXPublicKey(b.keys.Signer.Public()))(t)
	for _, tc := range []struct {
		name, token string
		status      int
	}{
		{"good", good, 200},
		{"what the others are made of", own(nil), 200},
		{"signature of another", sign(another.Signer, jose.ES256, nil), 401},
		{"alg none", base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", 401},
		{"HS256 with the public key", sign(der, jose.HS256, nil), 401},
		{"issuer", own(map[string]any{"iss": "https://evil.example"}), 401},
		{"audience", own(map[string]any{"aud": []string{"vault"}}), 401},
		{"no audience", own(map[string]any{"aud": []string{}}), 401},
		{"expired", own(map[string]any{"exp": now.Add(-2 * time.Minute).Unix()}), 401},
		{"not yet valid", own(map[string]any{"nbf": now.Add(2 * time.Minute).Unix()}), 401},
		{"account with another uid", own(kube("old", nil)), 401},
		{"account that is gone", own(map[string]any{
			"sub":           "system:serviceaccount:default:gone",
			"kubernetes.io": map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "gone", "uid": "x"}},
		}), 401},
		{"pod with another uid", own(kube(account.UID, map[string]any{"pod": map[string]any{"name": "shown", "uid": "old"}})), 401},
		{"pod that is gone", own(kube(account.UID, map[string]any{"pod": map[string]any{"name": "gone", "uid": "x"}})), 401},
		{"truncated", good[:len(good)-5], 401},
		{"two parts", parts[0] + "." + parts[1], 401},
		{"huge", good + strings.Repeat("A", 64<<10), 401},
		{"rubbish", "rubbish", 401},
	} {
		if got := b.status(t, tc.token); got != tc.status {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.status)
		}
	}
}

func (b *believing) testReviews(t *testing.T) {
	b.robot(t, "reviewed")
	token := must(b.ask(t, "reviewed", authenticationv1.TokenRequestSpec{Audiences: []string{"vault", accounttoken.DefaultIssuer}}))(t).Status.Token
	foreign := must(b.ask(t, "reviewed", authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}))(t).Status.Token
	for _, tc := range []struct {
		name, token string
		audiences   []string
		want        []string // audiences; none: not authenticated
	}{
		{"of the API", token, nil, []string{accounttoken.DefaultIssuer}},
		{"of another", token, []string{"vault", "bank"}, []string{"vault"}},
		{"of the wrong one", token, []string{"bank"}, nil},
		{"not of the API", foreign, nil, nil},
		{"of its own", foreign, []string{"vault"}, []string{"vault"}},
		{"rubbish", "a.b.c", nil, nil},
	} {
		r := must(b.client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: tc.token, Audiences: tc.audiences},
		}, metav1.CreateOptions{}))(t)
		if r.Status.Authenticated != (tc.want != nil) || !slices.Equal(r.Status.Audiences, tc.want) || tc.want == nil && r.Status.Error == "" ||
			tc.want != nil && r.Status.User.Username != "system:serviceaccount:default:reviewed" {
			t.Errorf("%s: %+v", tc.name, r.Status)
		}
	}
	// Who knows nothing of audiences does not answer for one.
	_, err := b.client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: "joe/testers", Audiences: []string{"vault"}},
	}, metav1.CreateOptions{})
	if !apierrors.IsInternalError(err) {
		t.Errorf("got %v", err)
	}
}

// testDocuments is a relying party: it checks a token by what the server publishes.
func (b *believing) testDocuments(t *testing.T) {
	b.robot(t, "relied")
	token := must(b.ask(t, "relied", authenticationv1.TokenRequestSpec{Audiences: []string{accounttoken.DefaultIssuer, "vault"}}))(t).Status.Token
	get := func(path, contentType string, to any) {
		c := rest.CopyConfig(b.config)
		c.BearerToken = token
		resp, err := must(rest.HTTPClientFor(c))(t).Get(b.config.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != contentType || resp.Header.Get("Cache-Control") != "public, max-age=3600" {
			t.Errorf("%s: %s %v", path, resp.Status, resp.Header)
		}
		if err := json.NewDecoder(resp.Body).Decode(to); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	var config struct {
		Issuer string
		JWKS   string `json:"jwks_uri"`
	}
	get("/.well-known/openid-configuration", "application/json", &config)
	if config.Issuer != accounttoken.DefaultIssuer || config.JWKS == "" || !strings.HasSuffix(config.JWKS, "/openid/v1/jwks") {
		t.Errorf("got %+v", config)
	}
	var set jose.JSONWebKeySet
	get("/openid/v1/jwks", "application/jwk-set+json", &set)
	parsed := must(jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256}))(t)
	keys := set.Key(parsed.Headers[0].KeyID)
	if len(keys) != 1 {
		t.Fatalf("%d keys of the id", len(keys))
	}
	if pub, ok := b.keys.Signer.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(keys[0].Key) {
		t.Error("another key is published")
	}
	var claims jwt.Claims
	if err := parsed.Claims(keys[0].Key, &claims); err != nil {
		t.Fatal(err)
	}
	if err := claims.Validate(jwt.Expected{Issuer: config.Issuer, AnyAudience: jwt.Audience{"vault"}, Subject: "system:serviceaccount:default:relied", Time: time.Now()}); err != nil {
		t.Error(err)
	}
	if got := b.status(t, "nobody.at.all"); got != 401 {
		t.Errorf("a stranger: %d", got)
	}
}

// testOfNodes: a node gets tokens of the accounts of its own pods, and of no others.
func (b *believing) testOfNodes(t *testing.T) {
	_, mine := b.robot(t, "mine")
	_, theirs := b.robot(t, "theirs")
	node := must(kubernetes.NewForConfig(as(b.config, "system:node:node-of-mine", "system:nodes")))(t)
	ask := func(account string, pod *corev1.Pod) error {
		_, err := node.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{Spec: boundTo("Pod", pod.Name, pod)}, metav1.CreateOptions{})
		return err
	}
	if err := ask("mine", mine); err != nil {
		t.Errorf("of its own pod: %v", err)
	}
	if err := ask("theirs", theirs); !apierrors.IsForbidden(err) {
		t.Errorf("of another's pod: %v", err)
	}
}
