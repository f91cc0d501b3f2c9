package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// kubeconfigAt writes a kubeconfig of an API at url, and returns its name.
func kubeconfigAt(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],
		"clusters":[{"name":"c","cluster":{"server":%q}}]}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// complete is what a shell is offered for a line that goes on, and the directive for it.
func complete(t *testing.T, line ...string) (names []string, directive string) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs(append([]string{"__complete"}, line...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, l := range all[:len(all)-1] {
		name, _, _ := strings.Cut(l, "\t")
		names = append(names, name)
	}
	return names, all[len(all)-1]
}

// What a shell is offered are the names that the cluster has.
func TestCompleteNames(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/secrets"):
			_, _ = w.Write([]byte(`{"kind":"SecretList","apiVersion":"v1","items":[{"metadata":{"name":"bootstrap-token-abcdef"}},{"metadata":{"name":"else"}}]}`))
		case r.URL.Query().Get("continue") == "":
			_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":"more"},"items":[{"metadata":{"name":"node-1"}},{"metadata":{"name":"edge"}}]}`))
		default:
			_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"node-2"}}]}`))
		}
	}))
	defer api.Close()
	t.Setenv("KUBECONFIG", kubeconfigAt(t, api.URL))
	const noFiles, noSpace = ":4", ":6"
	for _, tt := range []struct {
		line      string
		want      []string
		directive string
	}{
		{"explain node n", []string{"node-1", "node-2"}, noFiles},
		{"explain node ", []string{"node-1", "edge", "node-2"}, noFiles},
		{"explain node node-1 ", nil, noFiles},
		{"explain dial e", []string{"edge:"}, noSpace},
		{"node revoke node-2", []string{"node-2"}, noFiles},
		{"node allow e", []string{"edge"}, noFiles},
		{"diag --node node", []string{"node-1", "node-2"}, noFiles},
		{"token delete ", []string{"abcdef"}, noFiles},
		{"token delete abcdef ", nil, noFiles},
		{"top tunnels --sort-by ", []string{"name", "site", "tunnel", "rtt", "streams", "bytes", "lost", "resumed", "failed"}, noFiles},
	} {
		got, directive := complete(t, strings.Split(tt.line, " ")...)
		if !slices.Equal(got, tt.want) || directive != tt.directive {
			t.Errorf("%q: %q %s, want %q %s", tt.line, got, directive, tt.want, tt.directive)
		}
	}
	t.Setenv("KUBECONFIG", kubeconfigAt(t, "http://127.0.0.1:1"))
	if got, directive := complete(t, "explain", "node", ""); got != nil || directive != noFiles {
		t.Errorf("nobody answers: %q %s", got, directive)
	}
}

// Lines of hawser kubectl are kubectl's to complete, and no others.
func TestKubectlCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"__complete kubectl get no":  "__complete get no",
		"__completeNoDesc kubectl ":  "__completeNoDesc ",
		"__complete kubectl":         "",
		"__complete explain kubectl": "",
		"kubectl get no":             "",
		"":                           "",
	} {
		got, ok := kubectlCompletion(strings.Split(line, " "))
		if strings.Join(got, " ") != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, want %q", line, got, ok, want)
		}
	}
}

// Of a server that cannot be asked one line says what may help, and its error is kept.
func TestRemedy(t *testing.T) {
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer refuses.Close()
	stranger := httptest.NewUnstartedServer(http.NotFoundHandler())
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0)
	stranger.StartTLS()
	defer stranger.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for url, want := range map[string]string{
		refuses.URL:  "; the certificate or token of the kubeconfig is not valid",
		stranger.URL: "; the kubeconfig has the authority of another cluster",
		gone.URL:     "; is the server running",
	} {
		for _, line := range []string{"token list", "explain fleet", "diag --output " + filepath.Join(t.TempDir(), "f"), "top tunnels"} {
			cmd := newRoot()
			cmd.SetArgs(append(strings.Fields(line), "--kubeconfig", kubeconfigAt(t, url)))
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %q", line, err, want)
			}
		}
	}
	expired := fmt.Errorf("ask: %w", x509.CertificateInvalidError{Reason: x509.Expired})
	if err := withRemedy(expired); !errors.Is(err, expired) || !strings.Contains(err.Error(), "clock") {
		t.Errorf("an expired certificate: %v", err)
	}
	late := fmt.Errorf("ask: %w", &url.Error{Op: "Get", URL: "https://127.0.0.1", Err: context.DeadlineExceeded})
	if err := withRemedy(late); !errors.Is(err, late) || !strings.Contains(err.Error(), "; look at the server's log") {
		t.Errorf("a server that does not answer: %v", err)
	}
	if err := withRemedy(errors.New("else")); err.Error() != "else" || withRemedy(nil) != nil {
		t.Errorf("another error becomes %v", err)
	}
}

func TestKubectlArgs(t *testing.T) {
	for line, want := range map[string]string{
		"kubectl get pods":               "get pods",
		"top nodes --sort-by cpu":        "top nodes --sort-by cpu",
		"top node a":                     "top node a",
		"__complete kubectl get po":      "__complete get po",
		"__completeNoDesc kubectl top n": "__completeNoDesc top n",
		"top":                            "none",
		"top tunnels":                    "none",
		"node kubectl":                   "none",
		"":                               "none",
	} {
		got := "none"
		if args, ok := kubectlArgs(strings.Fields(line)); ok {
			got = strings.Join(args, " ")
		}
		if got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// Flags that take one of a few values offer these, and no names of files.
func TestCompleteValues(t *testing.T) {
	for line, want := range map[string]string{
		"server --log-format":          "text json",
		"server --cloud-provider":      "",
		"fleet --transport":            "qmux quic yamux h2",
		"fleet --weight":               "light full",
		"manifest egress --transport":  viaUDS + " " + viaMTLS,
		"manifest egress --protocol":   protoConnect + " " + protoGRPC,
		"explain node node-1 --output": "json",
		"top tunnels --sort-by":        "name site tunnel rtt streams bytes lost resumed failed",
	} {
		got, directive := complete(t, append(strings.Fields(line), "")...)
		if strings.Join(got, " ") != want || directive != ":4" {
			t.Errorf("%s offers %q %s", line, got, directive)
		}
	}
	if _, directive := complete(t, "diag", "--output", ""); directive != ":0" {
		t.Errorf("names of files are not offered: %s", directive)
	}
}

// Each of flagValues is of a flag that is there.
func TestValuesAreOfFlags(t *testing.T) {
	names := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { names[f.Name], names[c.CommandPath()+" "+f.Name] = true, true })
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(newRoot())
	for name := range flagValues {
		if !names[name] {
			t.Errorf("there is no flag %q", name)
		}
	}
}
