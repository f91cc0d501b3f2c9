package controlplane

// Tests of who may see the status page, on a whole API server.

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/statuspage"
)

// noSessions is a hub to which nobody has come.
type noSessions struct{}

func (noSessions) Observe(string) (evidence.Session, bool) { return evidence.Session{}, false }
func (noSessions) Follow(ctx context.Context, _ func([]string)) error {
	<-ctx.Done()
	return nil
}

func (noSessions) Samples() []statuspage.Sample { return nil }

func (noSessions) Evictions() (statuspage.Evictions, bool) { return statuspage.Evictions{}, false }

// asks is the code of the answer to a GET.
func asks(t *testing.T, client kubernetes.Interface, path string) int {
	t.Helper()
	code := 0
	client.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&code)
	return code
}

// account is a client with the token of a service account.
func (c *cluster) account(name string) *kubernetes.Clientset {
	c.t.Helper()
	ctx, accounts := c.t.Context(), c.admin.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	r, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.client(&rest.Config{Host: c.host, BearerToken: r.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
}

func TestWhoSeesTheStatusPage(t *testing.T) {
	page := statuspage.New(statuspage.Config{Source: noSessions{}})
	c := startClusterIn(t, t.TempDir(), func(c *apiserver.Config) { c.Status = page.Handler(apiserver.StatusPath) })
	nodes := informers.NewSharedInformerFactory(c.admin, 0)
	if err := page.Use(nodes.Core().V1().Nodes().Informer()); err != nil {
		t.Fatal(err)
	}
	nodes.Start(t.Context().Done())
	t.Cleanup(nodes.Shutdown)
	started := make(chan struct{})
	close(started)
	c.begin("status page", page.Run, started)

	const fleet, file, bare = apiserver.StatusPath + "fleet", apiserver.StatusPath + "page.js", "/hawser/status"
	node, viewer, other := c.join(c.token("aaaaaa", time.Hour), "node-1"), c.account("viewer"), c.account("other")
	anonymous := c.client(&rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
	stranger := c.client(&rest.Config{Host: c.host, BearerToken: "aaaaaa.aaaaaaaaaaaaaaaa", TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
	if code := asks(t, viewer, file); code != http.StatusForbidden {
		t.Errorf("one without the role gets %d", code)
	}
	// The node is bound, too, before the viewer: what is known of the second is of the first.
	for _, who := range []rbacv1.Subject{
		{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}, {Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "viewer"},
	} {
		_, err := c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "see-"}, Subjects: []rbacv1.Subject{who},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:status-viewer"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for began := time.Now(); asks(t, viewer, file) != http.StatusOK; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the role does not let its holder see the page")
		}
	}
	for who, want := range map[*kubernetes.Clientset]int{
		stranger: http.StatusUnauthorized, anonymous: http.StatusForbidden, node.Clientset: http.StatusForbidden, other: http.StatusForbidden,
	} {
		for _, path := range []string{fleet, file, apiserver.StatusPath, bare} {
			if code := asks(t, who, path); code != want {
				t.Errorf("%s: %d, want %d", path, code, want)
			}
		}
	}
	for who, client := range map[string]*kubernetes.Clientset{"an administrator": c.admin, "a viewer": viewer} {
		for _, path := range []string{file, apiserver.StatusPath, bare} {
			if code := asks(t, client, path); code != http.StatusOK {
				t.Errorf("%s gets %d for %s", who, code, path)
			}
		}
	}
	stream, err := viewer.Discovery().RESTClient().Get().AbsPath(fleet).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"node":"node-1"`) || !strings.Contains(lines.Text(), `"is":"True"`) {
		t.Errorf("first %s, %v", lines.Text(), lines.Err())
	}
	if err := c.admin.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() && !strings.Contains(lines.Text(), `"gone":[1]`) {
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
}
