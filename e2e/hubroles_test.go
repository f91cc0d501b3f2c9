// What a hub may do in a cluster: it is granted, waited for, and compared with what hubs have asked
// for by the API server's audit log.

package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// grant applies what hawser manifest rbac prints with these flags, and takes a token of the
// service account.
func (h *besideHub) grant(t *testing.T, flags ...string) {
	t.Helper()
	h.mustKubectl(t, printed(t, strings.Join(append([]string{"rbac"}, flags...), " ")), "apply", "--server-side", "-f", "-")
	h.rolesAreRead(t)
	conf, err := clientcmd.LoadFromFile(h.kubeconfig())
	must(t, err)
	token := h.mustKubectl(t, "", "create", "token", "hawser-hub", "-n", "hawser-system", "--duration=24h")
	for _, u := range conf.AuthInfos {
		*u = clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}
	}
	must(t, clientcmd.WriteToFile(*conf, h.kube))
}

// rolesAreRead waits until the API server goes by the hub's roles, which it hears of a little after
// they were made.
func (h *besideHub) rolesAreRead(t *testing.T) {
	t.Helper()
	roles, err := h.client.RbacV1().Roles("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=hawser-hub"})
	must(t, err)
	for i := range roles.Items {
		r := &roles.Items[i].Rules[0]
		what := authorizationv1.ResourceAttributes{Namespace: roles.Items[i].Namespace, Verb: r.Verbs[0], Group: r.APIGroups[0], Resource: r.Resources[0]}
		if len(r.ResourceNames) > 0 {
			what.Name = r.ResourceNames[0]
		}
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: hubAccount, Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceAttributes: &what,
		}}
		eventually(t, "the hub may "+what.Verb+" "+what.Resource+" in "+what.Namespace, func() error {
			is, err := h.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err == nil && !is.Status.Allowed {
				err = errNotYet
			}
			return err
		})
	}
}

// rare are rules whose case this test has not, or not always: older API servers cannot
// begin a watch with what there is, which has to be listed there; alike events are counted by
// a patch from the eleventh on; and the API server of this test keeps the same records of
// nodes as the hub, and is often the first to write them.
var rare = []string{
	"list nodes in ", "list configmaps in hawser-node-identities", "list configmaps in kube-system", "list leases in hawser-servers",
	"patch events in default", "get nodes in ", "get configmaps in hawser-node-identities", "create configmaps in hawser-node-identities",
	"update configmaps in hawser-node-identities", "delete configmaps in hawser-node-identities",
}

// asked is what hubs have asked of the API server, by its log: how often, by verb, resource
// and namespace. It fails if any of it was refused.
func (h *besideHub) asked(t *testing.T) map[string]int {
	t.Helper()
	asked := map[string]int{}
	file, err := os.Open(h.audit)
	must(t, err)
	defer file.Close()
	for d := json.NewDecoder(file); ; {
		var e struct {
			Verb        string                                                  `json:"verb"`
			User        struct{ Username string }                               `json:"user"`
			ObjectRef   struct{ Resource, Subresource, Namespace, Name string } `json:"objectRef"`
			Annotations map[string]string                                       `json:"annotations"`
			At          time.Time                                               `json:"requestReceivedTimestamp"`
		}
		if err := d.Decode(&e); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
			return asked
		}
		if e.User.Username != hubAccount {
			continue
		}
		what := strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
		asked[what+" in "+e.ObjectRef.Namespace]++
		early := slices.ContainsFunc(h.starting, func(s [2]time.Time) bool { return e.At.After(s[0]) && e.At.Before(s[1]) })
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" && !early {
			t.Errorf("the hub was refused: %s %s/%s", what, e.ObjectRef.Namespace, e.ObjectRef.Name)
		}
	}
}

// usedItsRoles checks that the hub asked for nothing that it may not have, and that it
// needed every rule that it was given, but for those that are rare.
func (h *besideHub) usedItsRoles(t *testing.T, rare []string) {
	t.Helper()
	asked := h.asked(t)
	check := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, verb := range r.Verbs {
				where := namespace
				if r.Resources[0] == "namespaces" { // which are in themselves
					where = r.ResourceNames[0]
				}
				if what := verb + " " + r.Resources[0] + " in " + where; asked[what] == 0 && !slices.Contains(rare, what) {
					t.Errorf("nothing needs %s", what)
				}
			}
		}
	}
	cluster, err := h.client.RbacV1().ClusterRoles().Get(t.Context(), "hawser-hub", metav1.GetOptions{})
	must(t, err)
	check("", cluster.Rules)
	roles, err := h.client.RbacV1().Roles("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=hawser-hub"})
	must(t, err)
	for i := range roles.Items {
		check(roles.Items[i].Namespace, roles.Items[i].Rules)
	}
	if len(roles.Items) == 0 {
		t.Error("there are no roles")
	}
}
