// People beside the administrator: each has a kubeconfig of their own and does what is
// bound to them, with the real kubectl.

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth/kubeauth/issuers/issuertest"
)

// A somebody uses kubectl by a kubeconfig of their own.
type somebody struct {
	*cluster
	name, kubeconfig string
}

// somebody makes a kubeconfig with the program.
func (c *cluster) somebody(t *testing.T, name string, groups ...string) *somebody {
	t.Helper()
	under, _ := bin(t)
	args := []string{"kubeconfig", "--kubeconfig", c.kubeconfig(), "--user", name}
	for _, g := range groups {
		args = append(args, "--group", g)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(under, "hawser"), args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	if !strings.Contains(said.String(), "the certificate of "+name+" expires at ") {
		t.Errorf("it does not say when: %s", &said)
	}
	s := &somebody{cluster: c, name: name, kubeconfig: filepath.Join(t.TempDir(), name)}
	must(t, os.WriteFile(s.kubeconfig, text, 0o600))
	return s
}

// can wants a command of kubectl to end well, and returns what it prints.
func (s *somebody) can(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	return s.mustKubectl(t, stdin, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
}

// cannot wants a command of kubectl to be refused with a text.
func (s *somebody) cannot(t *testing.T, text, stdin string, args ...string) {
	t.Helper()
	out, said, code := s.kubectl(t, stdin, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	if code == 0 || !strings.Contains(said, text) {
		t.Errorf("%s: kubectl %s: exit code %d, not %q\n%s%s", s.name, strings.Join(args, " "), code, text, out, said)
	}
}

// forbidden is cannot for want of a role.
func (s *somebody) forbidden(t *testing.T, args ...string) {
	t.Helper()
	s.cannot(t, `User "`+s.name+`" cannot`, "", args...)
}

func TestPeople(t *testing.T) {
	t.Parallel()
	provider := issuertest.New(t)
	issuers := filepath.Join(shortTempDir(t), "issuers.json")
	must(t, os.WriteFile(issuers, []byte(issuertest.File(provider.Entry("corp:"))), 0o600))
	f := startFront(t, "yamux", "--server-arg=--authentication-config="+issuers)
	c := f.cluster
	c.mustKubectl(t, "", "create", "namespace", "work")
	c.mustKubectl(t, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "work"}, "spec": {"containers": [{"name": "c", "image": "x", "command": ["sh", "-c", "echo hello; sleep 1h"]}]}}`, "apply", "-f", "-")
	c.mustKubectl(t, "", "wait", "-n", "work", "--for=condition=Ready", "pod/p", "--timeout=2m")
	c.mustKubectl(t, "", "create", "secret", "generic", "s", "-n", "work", "--from-literal=a=b")
	t.Run("viewer", func(t *testing.T) { testViewer(t, c) })
	t.Run("administrator of a namespace", func(t *testing.T) { testNamespaceAdmin(t, c) })
	t.Run("program that reads metrics of nodes", func(t *testing.T) { testScraper(t, f) })
	t.Run("tokens of another issuer", func(t *testing.T) { testOtherIssuer(t, c, provider) })
	t.Run("roles made of others", func(t *testing.T) { testAggregated(t, c) })
	t.Run("bad input", func(t *testing.T) {
		under, _ := bin(t)
		for want, args := range map[string][]string{
			"--user is required":     nil,
			"belong to parts of the": {"--user", "system:node:node-1"},
			"cluster-admin":          {"--user", "x", "--group", "system:masters"},
			"10m0s at least":         {"--user", "x", "--for", "1s"},
		} {
			oneLine(t, exec.CommandContext(t.Context(), filepath.Join(under, "hawser"), append([]string{"kubeconfig"}, args...)...), want)
		}
	})
}

// testViewer: who may view reads logs and does not get in, and nothing at all without a
// binding.
func testViewer(t *testing.T, c *cluster) {
	ann := c.somebody(t, "ann", "staff")
	if asksWhoami(t) {
		if got := ann.can(t, "", "auth", "whoami"); !strings.Contains(got, "ann") || !strings.Contains(got, "staff") {
			t.Errorf("ann is\n%s", got)
		}
	}
	ann.forbidden(t, "get", "pods", "-n", "work")
	c.mustKubectl(t, "", "create", "rolebinding", "staff-views", "-n", "work", "--clusterrole=view", "--group=staff")
	eventually(t, "the binding has effect", func() error {
		if _, said, code := c.kubectl(t, "", "--kubeconfig", ann.kubeconfig, "logs", "p", "-n", "work"); code != 0 {
			return errors.New(said)
		}
		return nil
	})
	if got := ann.can(t, "", "logs", "p", "-n", "work"); got != "hello\n" {
		t.Errorf("logs: %q", got)
	}
	ann.can(t, "", "get", "all,configmaps,events", "-n", "work")
	ann.forbidden(t, "exec", "p", "-n", "work", "--", "true")
	ann.forbidden(t, "get", "secrets", "-n", "work")
	ann.forbidden(t, "delete", "pod", "p", "-n", "work")
	ann.forbidden(t, "get", "pods", "-n", "kube-system")
	ann.forbidden(t, "get", "nodes")
	ann.cannot(t, "cannot impersonate", "", "get", "nodes", "--as=root", "--as-group=system:masters")
	list := ann.can(t, "", "auth", "can-i", "--list", "-n", "work")
	for _, want := range []string{"pods/log", "selfsubjectaccessreviews.authorization.k8s.io", "[/version]"} {
		if !strings.Contains(list, want) {
			t.Errorf("can-i --list lacks %s:\n%s", want, list)
		}
	}
	if strings.Contains(list, "secrets") || strings.Contains(list, "pods/exec") {
		t.Errorf("can-i --list has too much:\n%s", list)
	}
	if out, _, code := c.kubectl(t, "", "--kubeconfig", ann.kubeconfig, "auth", "can-i", "create", "pods/exec", "-n", "work"); code != 1 || out != "no\n" {
		t.Errorf("can-i says %q, %d", out, code)
	}
	c.mustKubectl(t, "", "delete", "rolebinding", "staff-views", "-n", "work")
	eventually(t, "the binding has no effect any more", func() error {
		if _, _, code := c.kubectl(t, "", "--kubeconfig", ann.kubeconfig, "get", "pods", "-n", "work"); code == 0 {
			return errors.New("ann still reads pods")
		}
		return nil
	})
}

// testNamespaceAdmin: the administrator of one namespace works there, gives others what
// they have there, and nothing more to anybody.
func testNamespaceAdmin(t *testing.T, c *cluster) {
	bob := c.somebody(t, "bob")
	c.mustKubectl(t, "", "create", "rolebinding", "bob-admin", "-n", "work", "--clusterrole=admin", "--user=bob")
	eventually(t, "the binding has effect", func() error {
		if _, said, code := c.kubectl(t, "", "--kubeconfig", bob.kubeconfig, "get", "secrets", "-n", "work"); code != 0 {
			return errors.New(said)
		}
		return nil
	})
	if got := bob.can(t, "", "exec", "p", "-n", "work", "--", "echo", "in"); got != "in\n" {
		t.Errorf("exec: %q", got)
	}
	bob.can(t, "", "create", "role", "reads", "-n", "work", "--verb=get", "--resource=secrets")
	bob.can(t, "", "create", "rolebinding", "reads", "-n", "work", "--role=reads", "--user=eve")
	const granting = "attempting to grant RBAC permissions not currently held"
	bob.cannot(t, granting, "", "create", "role", "more", "-n", "work", "--verb=get", "--resource=nodes")
	bob.cannot(t, granting, "", "create", "rolebinding", "more", "-n", "work", "--clusterrole=cluster-admin", "--user=bob")
	bob.cannot(t, granting, "", "patch", "role", "reads", "-n", "work", "--type=json", "-p", `[{"op":"add","path":"/rules/0/verbs/-","value":"escalate"}]`)
	bob.forbidden(t, "create", "clusterrolebinding", "more", "--clusterrole=cluster-admin", "--user=bob")
	bob.forbidden(t, "create", "rolebinding", "more", "-n", "default", "--clusterrole=view", "--user=bob")
	const reconciled = `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reads", "namespace": "work"}, "rules": [{"apiGroups": [""], "resources": [%q], "verbs": ["list"]}]}`
	if got := bob.can(t, fmt.Sprintf(reconciled, "pods"), "auth", "reconcile", "-f", "-"); !strings.Contains(got, "reconciled") {
		t.Errorf("auth reconcile: %s", got)
	}
	bob.cannot(t, granting, fmt.Sprintf(reconciled, "nodes"), "auth", "reconcile", "-f", "-")
}

// testScraper: an account with a role for nodes/metrics reads them at the node itself,
// through the tunnel, and nothing else there.
func testScraper(t *testing.T, f *front) {
	f.mustKubectl(t, "", "create", "serviceaccount", "prom", "-n", "work")
	f.mustKubectl(t, "", "create", "clusterrole", "scrapes", "--verb=get", "--resource=nodes/metrics")
	f.mustKubectl(t, "", "create", "clusterrolebinding", "prom-scrapes", "--clusterrole=scrapes", "--serviceaccount=work:prom")
	token := strings.TrimSpace(f.mustKubectl(t, "", "create", "token", "prom", "-n", "work"))
	client := &http.Client{Transport: &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return f.connect(10250) },
		TLSClientConfig: stranger(), DisableKeepAlives: true,
	}}
	get := func(path, token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://node-1:10250"+path, nil)
		must(t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(text)
	}
	eventually(t, "the role has effect", func() error {
		if code, text := get("/metrics", token); code != http.StatusOK || !strings.Contains(text, "go_goroutines") {
			return fmt.Errorf("%d %.200s", code, text)
		}
		return nil
	})
	for _, path := range []string{"/pods", "/containerLogs/work/p/c", "/stats/summary", "/exec/work/p/c?command=id&output=1"} {
		if code, text := get(path, token); code != http.StatusForbidden || !strings.Contains(text, "system:serviceaccount:work:prom") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for name, bad := range map[string]string{"none": "", "a broken one": token[:len(token)-4] + "AAAA", "another's": "abcdef.0123456789abcdef"} {
		if code, text := get("/metrics", bad); code != http.StatusUnauthorized {
			t.Errorf("token %s: %d %s", name, code, text)
		}
	}
}

// testOtherIssuer: somebody of a company's provider comes in by its token, and can do
// what is bound to a group of that provider, also after it has made new keys.
func testOtherIssuer(t *testing.T, c *cluster, provider *issuertest.Issuer) {
	c.mustKubectl(t, "", "create", "rolebinding", "corp-views", "-n", "work", "--clusterrole=view", "--group=corp:staff")
	anonymous, err := clientcmd.LoadFromFile(c.kubeconfig())
	must(t, err)
	for _, u := range anonymous.AuthInfos {
		u.ClientCertificateData, u.ClientKeyData = nil, nil
	}
	file := filepath.Join(t.TempDir(), "nobody")
	must(t, clientcmd.WriteToFile(*anonymous, file))
	as := func(token string, args ...string) (string, string, int) {
		return c.kubectl(t, "", append([]string{"--kubeconfig", file, "--token", token}, args...)...)
	}
	for range 2 {
		token := provider.Token(nil)
		eventually(t, "the token is believed", func() error {
			if _, said, code := as(token, "get", "pods", "-n", "work"); code != 0 {
				return errors.New(said)
			}
			return nil
		})
		if out, _, _ := as(token, "auth", "whoami"); asksWhoami(t) && (!strings.Contains(out, "corp:ann") || !strings.Contains(out, "corp:staff")) {
			t.Errorf("whoami:\n%s", out)
		}
		if _, said, code := as(token, "get", "secrets", "-n", "work"); code == 0 || !strings.Contains(said, `User "corp:ann" cannot list`) {
			t.Errorf("secrets: %d %s", code, said)
		}
		provider.Rotate("next")
	}
	for name, claims := range map[string]map[string]any{
		"for another audience": {"aud": "other"}, "expired": {"exp": 1}, "of another issuer": {"iss": "https://other.example.com"},
	} {
		if _, said, code := as(provider.Token(claims), "get", "pods", "-n", "work"); code == 0 || !strings.Contains(said, "Unauthorized") && !strings.Contains(said, "must be logged in") {
			t.Errorf("a token %s: %d %s", name, code, said)
		}
	}
}

// testAggregated: a role that somebody labels becomes a part of view.
func testAggregated(t *testing.T, c *cluster) {
	c.mustKubectl(t, "", "create", "clusterrole", "reads-leases", "--verb=get,list", "--resource=leases.coordination.k8s.io")
	c.mustKubectl(t, "", "label", "clusterrole", "reads-leases", "rbac.authorization.k8s.io/aggregate-to-view=true")
	eve := c.somebody(t, "eve")
	c.mustKubectl(t, "", "create", "clusterrolebinding", "eve-views", "--clusterrole=view", "--user=eve")
	eventually(t, "the role is a part of view", func() error {
		if _, said, code := c.kubectl(t, "", "--kubeconfig", eve.kubeconfig, "get", "leases", "-n", "kube-node-lease"); code != 0 {
			return errors.New(said)
		}
		return nil
	})
}
