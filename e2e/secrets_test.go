// No secret is told: not in a log at any verbosity, not in a metric, not in the audit log,
// not in a command line, and none is in a core file.

package e2e

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// everything has bodies logged but for kinds that are secrets, as Kubernetes recommends.
const everything = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  resources:
  - {group: "", resources: [secrets, serviceaccounts/token]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
- level: RequestResponse
`

const (
	passphrase = "correct-horse-battery-staple"
	wrongToken = "not-a-token-that-anybody-has-made"
	keyAtRest  = "c2VjcmV0LWtleS1vZi0zMi1ieXRlcy1mb3ItYWVzLTA="
)

// A hoard is secrets by what they are.
type hoard map[string]string

// keys adds the private keys of a directory.
func (h hoard) keys(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".key" && filepath.Ext(path) != ".pem" {
			return nil //nolint:nilerr // what has gone meanwhile is no secret
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // likewise
		}
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if strings.HasSuffix(block.Type, "PRIVATE KEY") {
				// Of the scalar what is on the first line; all keys begin with the same.
				h[path] = base64.StdEncoding.EncodeToString(block.Bytes[36:48])
			}
		}
		return nil
	}))
}

func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	dir := shortTempDir(t)
	policy, audit, keys := filepath.Join(dir, "policy"), filepath.Join(dir, "audit"), filepath.Join(dir, "keys")
	must(t, os.WriteFile(policy, []byte(everything), 0o600))
	must(t, os.WriteFile(keys, fmt.Appendf(nil, keysText, "{name: one, secret: "+keyAtRest+"}"), 0o600))
	c := startUp(t, "--nodes=1", "--server-arg=--v=10", "--agent-arg=--v=10",
		"--server-arg=--audit-policy-file="+policy, "--server-arg=--audit-log-path="+audit, "--server-arg=--encryption-provider-config="+keys)
	h := hoard{"the Secret's data": passphrase, "the Secret's data, encoded": base64.StdEncoding.EncodeToString([]byte(passphrase)), "a wrong token": wrongToken, "the key at rest": keyAtRest}
	join, err := os.ReadFile(filepath.Join(c.dir, "join-token"))
	must(t, err)
	_, h["the join token"], _ = strings.Cut(strings.TrimSpace(string(join)), ".")
	h["the join token, encoded"] = base64.StdEncoding.EncodeToString([]byte(h["the join token"]))

	c.mustKubectl(t, "", "create", "secret", "generic", "s", "--from-literal=k="+passphrase)
	c.podWith(t, "holder", `,"env":[{"name":"K","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}],"volumeMounts":[{"name":"v","mountPath":"/var/s"}]`,
		`,"volumes":[{"name":"v","secret":{"secretName":"s"}}]`, "sleep", "10000")
	account := strings.TrimSpace(c.mustKubectl(t, "", "create", "token", "default"))
	// The signature is what makes a token one.
	for what, token := range map[string]string{"a service account's token": account, "a pod's token": c.mustKubectl(t, "", "exec", "holder", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")} {
		h[what] = token[strings.LastIndex(token, ".")+1:]
	}
	for token, want := range map[string]string{account: "system:serviceaccount:default:default", wrongToken: ""} {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: c.rest.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.rest.CAData}})
		must(t, err)
		becomes(t, "a token is looked at", want, client)
		_, _ = client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-1/proxy/pods").DoRaw(t.Context()) // refused
	}
	h.keys(t, c.dir)
	if len(h) < 15 {
		t.Errorf("only %d secrets are known", len(h))
	}
	for what, secret := range h {
		if len(secret) < 12 {
			t.Errorf("%s is not known: %q", what, secret)
		}
	}
	h.search(t, c, audit)
	for pid, line := range processesOf(c.dir) {
		if limit := coreLimit(t, pid); limit != "0 0" {
			t.Errorf("core files of %s may have %s bytes", line, limit)
		}
	}
}

// coreLimit is the soft and the hard limit of a process's core files.
func coreLimit(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
			return strings.Join(strings.Fields(strings.TrimSuffix(strings.TrimSpace(rest), "bytes")), " ")
		}
	}
	t.Fatalf("no limit in %s", text)
	return ""
}

// search looks for the secrets wherever they must not be.
func (h hoard) search(t *testing.T, c *cluster, audit string) {
	t.Helper()
	places := map[string]string{"what hawser up says": c.out.String()}
	for _, file := range append(c.logFiles(), audit) {
		text, err := os.ReadFile(file)
		must(t, err)
		places[file] = string(text)
	}
	for _, program := range []string{"server", "node-1"} {
		text, err := c.client.Discovery().RESTClient().Get().AbsPath(metricsOf(program)).DoRaw(t.Context())
		must(t, err)
		places["metrics of "+program] = string(text)
	}
	for pid, line := range processesOf(c.dir) {
		places[fmt.Sprintf("command line of %d", pid)] = line
	}
	if len(places) < 8 || !strings.Contains(places[audit], `"level":"RequestResponse"`) {
		t.Errorf("only %d places were looked at", len(places))
	}
	for _, found := range h.within(places) {
		t.Error(found)
	}
}

// within says which of the secrets are in texts, by where these are from.
func (h hoard) within(places map[string]string) (found []string) {
	for place, text := range places {
		for what, secret := range h {
			if i := strings.Index(text, secret); i >= 0 {
				found = append(found, fmt.Sprintf("%s holds %s: …%s…", place, what, text[max(0, i-200):min(len(text), i+len(secret))]))
			}
		}
	}
	return found
}

// A secret in the middle of a line of a log is found, whatever it is.
func TestHoardFindsWhatIsTold(t *testing.T) {
	ca := pkitest.New(t, "ca")
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "ca.key"), pkitest.KeyPEM(t, ca.Key), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "ca.crt"), ca.PEM(), 0o600))
	h := hoard{"a token": wrongToken}
	h.keys(t, dir)
	if len(h) != 2 {
		t.Fatalf("%d secrets are known, want the token and the key", len(h))
	}
	key, err := x509.MarshalPKCS8PrivateKey(ca.Key)
	must(t, err)
	for name, tc := range map[string]struct {
		text string
		want int
	}{
		"nothing":        {"level=INFO msg=connected node=node-1\n", 0},
		"a certificate":  {string(ca.PEM()), 0},
		"a token":        {"level=INFO msg=x\nlevel=DEBUG msg=request header=\"Bearer " + wrongToken + "\" node=node-1\n", 1},
		"a key, in PEM":  {"level=ERROR msg=\"cannot read\" text=" + strconv.Quote(string(pkitest.KeyPEM(t, ca.Key))), 1},
		"a key, encoded": {"data: " + base64.StdEncoding.EncodeToString(key), 1},
		"both":           {wrongToken + string(pkitest.KeyPEM(t, ca.Key)), 2},
	} {
		if found := h.within(map[string]string{"server.log": tc.text}); len(found) != tc.want || tc.want > 0 && !strings.HasPrefix(found[0], "server.log holds ") {
			t.Errorf("%s: found %q, want %d", name, found, tc.want)
		}
	}
}
