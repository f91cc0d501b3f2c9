// The token command and the kubeconfig it goes by.

package main

import (
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
)

func TestTokenRefusesWhatItIsNotTold(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	tests := map[string]struct {
		kubeconfig string // $KUBECONFIG
		args       []string
		want       string // in the error; empty means none
	}{
		"alone":                {"", nil, ""},
		"no such subcommand":   {"", []string{"make"}, `unknown command "make" for "hawser token"`},
		"list too much":        {"", []string{"list", "x"}, `unknown command "x"`},
		"delete nothing":       {"", []string{"delete"}, "name the tokens to delete by their ids"},
		"delete no id":         {"", []string{"delete", "abcdef", "Abcdef"}, `token "Abcdef": want its id`},
		"delete half a token":  {"", []string{"delete", "abcdef.0123"}, `token "abcdef": want its id`},
		"delete nowhere":       {"", []string{"delete", "abcdef"}, "no kubeconfig: give --kubeconfig FILE or set KUBECONFIG"},
		"argument too many":    {"", []string{"create", "x"}, `unknown command "x"`},
		"negative":             {"", []string{"create", "--ttl", "-1h"}, "--ttl -1h0m0s is negative"},
		"site with a capital":  {"", []string{"create", "--site", "Berlin"}, `--site "Berlin": want`},
		"site with a comma":    {"", []string{"create", "--site", "a,system:masters"}, `--site "a,system:masters": want`},
		"site that is long":    {"", []string{"create", "--site", strings.Repeat("a", 64)}, "at most 63"},
		"server without https": {"", []string{"create", "--print-join-command", "--server", "127.0.0.1:8132"}, `--server "127.0.0.1:8132": want https://HOST:PORT`},
		"server with a zone":   {"", []string{"create", "--print-join-command", "--server", "https://[fe80::1%25eth0]:17743"}, `--server "https://[fe80::1%25eth0]:17743": want an address without a zone`},
		"one of two servers":   {"", []string{"create", "--print-join-command", "--server", "https://a:8132,http://b:8132"}, `--server "http://b:8132": want https://HOST:PORT`},
		"server for no one":    {"", []string{"create", "--server", "https://127.0.0.1:8132"}, "--server is for --print-join-command"},
		"servers":              {"", []string{"create", "--print-join-command", "--server", "https://a:8132,https://b"}, "no kubeconfig"},
		"environment misleads": {missing, []string{"create"}, "KUBECONFIG " + missing},
		"flag misleads":        {"", []string{"create", "--kubeconfig", missing}, missing},
		"nothing given":        {"", []string{"create"}, "no kubeconfig: give --kubeconfig FILE or set KUBECONFIG"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			clitest.Refused(t, clitest.Run(t, newRoot(), tt.kubeconfig, append([]string{"token"}, tt.args...)...), tt.want)
		})
	}
}

// TestTokens: what is made is listed without its secret, and deleted by its id or whole.
func TestTokens(t *testing.T) {
	now := time.Now()
	client := fake.NewClientset()
	var made []string
	for _, site := range []string{"", "berlin"} {
		token, err := makeToken(t.Context(), client, time.Now(), time.Duration(len(site))*time.Hour, site)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, token)
	}
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	for id, end := range map[string]string{"old123": "2001-01-01T00:00:00Z", "bad123": "soon"} {
		s := &corev1.Secret{Type: bootstrapapi.SecretTypeBootstrapToken, Data: map[string][]byte{bootstrapapi.BootstrapTokenExpirationKey: []byte(end)}}
		s.Name = bootstrapapi.BootstrapTokenSecretPrefix + id
		if _, err := secrets.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if groups, site := tokenGroups("a\x1b[2J,system:bootstrappers:site:\tb\n,c"); groups != "a?[2J,c" || site != "?b?" {
		t.Errorf("what no terminal should see: %q, %q", groups, site)
	}
	list := func() string {
		var out strings.Builder
		if err := listTokens(t.Context(), &out, client, now); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	got := list()
	for _, want := range []string{made[0][:6] + ` .* never .* - .* system:bootstrappers`, made[1][:6] + ` .* (5h59m|6h) .* berlin .* system:bootstrappers`, `old123 .* expired`, `bad123 .* broken`} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, token := range made {
		if strings.Contains(got, token[7:]) {
			t.Errorf("a secret in\n%s", got)
		}
	}
	if err := deleteTokens(t.Context(), io.Discard, client, []string{made[0], made[1][:6]}); err != nil {
		t.Fatal(err)
	}
	if got := list(); strings.Contains(got, made[0][:6]) || strings.Contains(got, made[1][:6]) || !strings.Contains(got, "old123") {
		t.Errorf("after two were deleted:\n%s", got)
	}
	clitest.Refused(t, deleteTokens(t.Context(), io.Discard, client, []string{made[0]}), "there is no token "+made[0][:6])
}

// TestTokenIsSignedFor: a token can be used at once beside a cluster that signs what it
// publishes with tokens, and is printed where nobody does, after a while.
func TestTokenIsSignedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		published bool
		signed    time.Duration // after the token; 0 means never
		want      time.Duration
	}{
		"nothing is published": {false, 0, 0},
		"signed":               {true, 3 * time.Second, 3 * time.Second},
		"nobody signs":         {true, 0, signTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				maps := client.CoreV1().ConfigMaps(metav1.NamespacePublic)
				info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.ConfigMapClusterInfo}, Data: map[string]string{}}
				if tt.published {
					if _, err := maps.Create(t.Context(), info, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				began, signer := time.Now(), make(chan error, 1)
				sign := func() { // as kube-controller-manager does
					secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
					for _, s := range secrets.Items {
						if string(s.Data[bootstrapapi.BootstrapTokenUsageSigningKey]) == "true" {
							info.Data[bootstrapapi.JWSSignatureKeyPrefix+string(s.Data[bootstrapapi.BootstrapTokenIDKey])] = "x"
						}
					}
					_, uerr := maps.Update(t.Context(), info, metav1.UpdateOptions{})
					signer <- errors.Join(err, uerr)
				}
				if tt.signed > 0 {
					time.AfterFunc(tt.signed, sign)
				} else {
					signer <- nil
				}
				var out strings.Builder
				if err := errors.Join(createToken(t.Context(), &out, io.Discard, client, &rest.Config{}, time.Hour, "", false, ""), <-signer); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < tt.want || took > tt.want+signLook || len(out.String()) != 24 {
					t.Errorf("%q after %s, want it after %s", out.String(), took, tt.want)
				}
			})
		})
	}
}
