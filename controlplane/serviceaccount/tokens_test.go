package serviceaccount

// Tests of what becomes of Secrets for tokens, in fake time. TestAccountSecrets of controlplane has
// a real API server.

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// TestTokens: a Secret gets what it lacks, is deleted if its account is not there, and is left alone
// otherwise.
func TestTokens(t *testing.T) {
	full := map[string][]byte{"token": []byte("old"), "ca.crt": []byte("CA"), "namespace": []byte("ns")}
	for name, tc := range map[string]struct {
		typ          corev1.SecretType
		account, uid string // annotations
		data         map[string][]byte
		fails        int // requests for a token
		want         string
	}{
		"empty":            {corev1.SecretTypeServiceAccountToken, "robot", "", nil, 0, "token=new ca.crt=CA namespace=ns uid=u-robot"},
		"at the next try":  {corev1.SecretTypeServiceAccountToken, "robot", "", nil, 1, "token=new ca.crt=CA namespace=ns uid=u-robot"},
		"another CA":       {corev1.SecretTypeServiceAccountToken, "robot", "u-robot", map[string][]byte{"token": []byte("old"), "ca.crt": []byte("x")}, 0, "token=old ca.crt=CA namespace=ns uid=u-robot"},
		"full":             {corev1.SecretTypeServiceAccountToken, "robot", "u-robot", full, 0, "token=old ca.crt=CA namespace=ns uid=u-robot"},
		"nobody's":         {corev1.SecretTypeServiceAccountToken, "nobody", "", nil, 0, "gone"},
		"another robot's":  {corev1.SecretTypeServiceAccountToken, "robot", "u-other", full, 0, "gone"},
		"without account":  {corev1.SecretTypeServiceAccountToken, "", "", nil, 0, "token= ca.crt= namespace= uid="},
		"of another type":  {corev1.SecretTypeOpaque, "nobody", "", nil, 0, "token= ca.crt= namespace= uid="},
		"of type, by name": {corev1.SecretTypeOpaque, "robot", "", nil, 0, "token= ca.crt= namespace= uid="},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", UID: "u-s", Annotations: map[string]string{}}, Type: tc.typ, Data: tc.data}
				if tc.account != "" {
					s.Annotations[corev1.ServiceAccountNameKey] = tc.account
				}
				if tc.uid != "" {
					s.Annotations[corev1.ServiceAccountUIDKey] = tc.uid
				}
				client, _, err := apitest.New(s, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "ns", UID: "u-robot"}})
				if err != nil {
					t.Fatal(err)
				}
				fails := tc.fails
				client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if fails--; fails >= 0 {
						return true, nil, errors.New("out of order")
					}
					r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
					if b := r.Spec.BoundObjectRef; r.UID != types.UID("u-robot") || b == nil || b.Kind != "Secret" || b.Name != "s" || b.UID != "u-s" || *r.Spec.ExpirationSeconds != tokenSeconds {
						t.Errorf("asked for %+v", r)
					}
					r.Status.Token = "new"
					return true, r, nil
				})
				_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Tokens, error) {
					return NewTokens(loop.Deps{Client: client, Informers: f}, TokensConfig{CA: func() []byte { return []byte("CA") }})
				})
				<-time.After(time.Minute)
				synctest.Wait()
				got := "gone"
				if s, err := client.CoreV1().Secrets("ns").Get(t.Context(), "s", metav1.GetOptions{}); err == nil {
					got = fmt.Sprintf("token=%s ca.crt=%s namespace=%s uid=%s", s.Data["token"], s.Data["ca.crt"], s.Data["namespace"], s.Annotations[corev1.ServiceAccountUIDKey])
				}
				if got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
				for _, a := range client.Actions() {
					if a.Matches("patch", "secrets") && strings.HasPrefix(name, "full") {
						t.Error("it was written")
					}
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}

// TestTokensFollowTheAuthority: another CA reaches the Secrets that there are.
func TestTokensFollowTheAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", UID: "u-s", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot", corev1.ServiceAccountUIDKey: "u-robot"}},
			Type:       corev1.SecretTypeServiceAccountToken,
			Data:       map[string][]byte{"token": []byte("old"), "ca.crt": []byte("first"), "namespace": []byte("ns")},
		}
		client, _, err := apitest.New(s, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "ns", UID: "u-robot"}})
		if err != nil {
			t.Fatal(err)
		}
		var ca atomic.Value
		ca.Store("first")
		changed := make(chan func(), 1)
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Tokens, error) {
			return NewTokens(loop.Deps{Client: client, Informers: f}, TokensConfig{
				CA:      func() []byte { return []byte(ca.Load().(string)) },
				Changed: func(f func()) func() { changed <- f; return func() {} },
			})
		})
		<-time.After(time.Minute)
		ca.Store("first and second")
		(<-changed)()
		<-time.After(time.Minute)
		if s, err := client.CoreV1().Secrets("ns").Get(t.Context(), "s", metav1.GetOptions{}); err != nil || string(s.Data["ca.crt"]) != "first and second" || string(s.Data["token"]) != "old" {
			t.Errorf("%v, %v", s, err)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestTokensConfig(t *testing.T) {
	if _, err := NewTokens(loop.Deps{}, TokensConfig{}); err == nil {
		t.Error("it needs no CA")
	}
}
