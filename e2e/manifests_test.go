// What hawser manifest prints is taken by API servers as it is, and grants what hubs and agents
// need.

package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// manifestForms are the commands that print objects, in the order in which they are applied: a
// pod's account is there before the pod. TestKubernetesAPI and TestEgressSelector run API servers
// with what hawser manifest egress prints.
func manifestForms() []string {
	agent := " --image=none --server=https://192.0.2.1:8132,https://hub.example.net:8132 --discovery-token-ca-cert-hash=sha256:" + strings.Repeat("0a", 32) + " --allow-target=10.96.0.0/12"
	const hub = " --image=none --address=hub.example.net,192.0.2.1"
	return []string{
		"rbac", "rbac --namespace=hubs", "rbac --load-balancers --controllers=*",
		"server --image=none", "server --namespace=hubs --replicas=3" + hub,
		"agent" + agent, "agent --namespace=hubs" + agent,
		"ccm", "ccm --least-privilege --image=none", "ccm --image=none --replicas=2 --use-service-account-credentials", "ccm --image=none --daemonset",
		"server --static-pod" + hub, "agent --static-pod" + agent,
	}
}

// printed is what hawser manifest prints with these words.
func printed(t *testing.T, form string) string {
	t.Helper()
	_, client := bin(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), append([]string{"manifest"}, strings.Fields(form)...)...)
	out, err := cmd.Output()
	must(t, err)
	return string(out)
}

// takesManifests applies all of them, twice in each of kubectl's ways: the API server knows every
// field, has nothing to change the second time, and warns of nothing but these.
func (c *cluster) takesManifests(t *testing.T, warnings ...string) {
	t.Helper()
	warnings = append(warnings, "last-applied-configuration annotation which is required by kubectl apply") // kubectl's own, after --server-side
	for _, form := range manifestForms() {
		text := printed(t, form)
		apply := func(args ...string) map[string]any {
			t.Helper()
			out, said, code := c.kubectl(t, text, append(slices.Clone(args), "--validate=strict", "-o", "json", "-f", "-")...)
			if code != 0 {
				t.Fatalf("hawser manifest %s: exit code %d\n%s", form, code, said)
			}
			for line := range strings.Lines(said) {
				if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(line, w) }) {
					t.Errorf("hawser manifest %s: %s", form, line)
				}
			}
			return objectsOf(t, out)
		}
		if strings.Contains(form, "--static-pod") { // a kubelet reads it from a file
			apply("create", "--dry-run=server")
			continue
		}
		for _, way := range [][]string{{"apply", "--server-side"}, {"apply"}} {
			was := apply(way...)
			if now := apply(way...); !reflect.DeepEqual(now, was) {
				t.Errorf("hawser manifest %s: after %q once more it is\n%v\nand was\n%v", form, way, now, was)
			}
		}
	}
}

// objectsOf are those that kubectl printed, by kind and name, without what controllers write.
// Objects that none of them writes are as old as they were.
func objectsOf(t *testing.T, text string) map[string]any {
	t.Helper()
	var u unstructured.Unstructured
	must(t, json.Unmarshal([]byte(text), &u.Object))
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{u}}
	if u.IsList() {
		var err error
		list, err = u.ToList()
		must(t, err)
	}
	all := map[string]any{}
	for _, o := range list.Items {
		_, written := o.Object["status"]
		meta := map[string]any{"labels": o.GetLabels()}
		if !written {
			meta["resourceVersion"] = o.GetResourceVersion()
		}
		delete(o.Object, "status")
		o.Object["metadata"] = meta
		all[fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())] = o.Object
	}
	return all
}

// rolesAreThere checks that what the printed bindings bind exists.
func (c *cluster) rolesAreThere(t *testing.T) {
	t.Helper()
	rbac := c.client.RbacV1()
	check := func(binding string, r rbacv1.RoleRef, namespace string) {
		var err error
		if r.Kind == "Role" {
			_, err = rbac.Roles(namespace).Get(t.Context(), r.Name, metav1.GetOptions{})
		} else {
			_, err = rbac.ClusterRoles().Get(t.Context(), r.Name, metav1.GetOptions{})
		}
		if err != nil {
			t.Errorf("%s: %v", binding, err)
		}
	}
	all, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, b := range all.Items {
		if strings.HasPrefix(b.Name, "hawser-") {
			check(b.Name, b.RoleRef, "")
		}
	}
	in, err := rbac.RoleBindings("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, b := range in.Items {
		if strings.HasPrefix(b.Name, "hawser-") {
			check(b.Namespace+"/"+b.Name, b.RoleRef, b.Namespace)
		}
	}
}

// agentsMay checks that an agent that is a node may do what it does by way of the API server, and
// cannot write what it follows.
func (c *cluster) agentsMay(t *testing.T) {
	t.Helper()
	ask := func(verb, group, resource, namespace, name string) authorizationv1.ResourceAttributes {
		resource, sub, _ := strings.Cut(resource, "/")
		return authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace, Name: name}
	}
	for want, all := range map[bool][]authorizationv1.ResourceAttributes{
		true: {
			ask("get", "", "configmaps", "kube-public", "hawser-tunnel"),
			ask("get", "", "configmaps", "kube-system", "kube-root-ca.crt"),
			ask("get", "", "configmaps", "kube-system", "extension-apiserver-authentication"),
			ask("create", "certificates.k8s.io", "certificatesigningrequests", "", ""),
			ask("create", "", "nodes", "", ""), ask("get", "", "nodes", "", "node-1"), ask("patch", "", "nodes/status", "", "node-1"),
			ask("create", "coordination.k8s.io", "leases", corev1.NamespaceNodeLease, ""),
			ask("update", "coordination.k8s.io", "leases", corev1.NamespaceNodeLease, "node-1"),
		},
		false: {
			ask("update", "", "configmaps", "kube-public", "hawser-tunnel"),
			ask("get", "", "configmaps", "hawser-node-identities", "node-1"),
			ask("update", "coordination.k8s.io", "leases", "hawser-servers", "hub-a"),
			ask("list", "", "secrets", "hawser-system", ""),
		},
	} {
		for _, a := range all {
			answer, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:node:node-1", Groups: []string{"system:nodes", "system:authenticated"}, ResourceAttributes: &a,
			}}, metav1.CreateOptions{})
			must(t, err)
			if answer.Status.Allowed != want {
				t.Errorf("%+v of an agent: allowed %v, want %v", a, answer.Status.Allowed, want)
			}
		}
	}
}

// leadsAlone has the hub run every controller, and listen for Services, by the roles that were
// applied, where nobody else runs any: what there is to do is done, and nothing is refused.
func (h *besideHub) leadsAlone(t *testing.T) {
	t.Helper()
	file := func(name string) string { return filepath.Join(h.dir, "pki", name) }
	h.start(t, "--controllers=*", "--load-balancer-addresses=127.0.0.9", "--cluster-signing-cert-file", file("ca.crt"), "--cluster-signing-key-file", file("ca.key"))
	h.mustKubectl(t, workOfAll, "apply", "--server-side", "-f", "-")
	for _, what := range []struct{ kind, selector string }{
		{"pods", "app=deployed"}, {"pods", "app=stateful"}, {"pods", "app=toil"}, {"endpointslices", "kubernetes.io/service-name=web"},
	} {
		eventually(t, what.kind+" "+what.selector, func() error {
			if out := h.mustKubectl(t, "", "get", what.kind, "-n", "work", "-l", what.selector, "-o", "name"); out == "" {
				return errNotYet
			}
			return nil
		})
	}
	h.mustKubectl(t, "", "delete", "namespace", "work", "--timeout=1m")
	h.signalHub(t, syscall.SIGTERM)
	h.asked(t)
}

// workOfAll is something for each kind of controller to do.
const workOfAll = `
{apiVersion: v1, kind: Namespace, metadata: {name: work}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: work}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: quota, namespace: work}, spec: {hard: {pods: "100"}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: deployed, namespace: work},
 spec: {selector: {matchLabels: {app: deployed}}, template: {metadata: {labels: {app: deployed}}, spec: {containers: [{name: main, image: none}]}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: stateful, namespace: work},
 spec: {serviceName: web, selector: {matchLabels: {app: stateful}}, template: {metadata: {labels: {app: stateful}}, spec: {containers: [{name: main, image: none}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: toil, namespace: work},
 spec: {template: {metadata: {labels: {app: toil}}, spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}}}
---
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: budget, namespace: work}, spec: {minAvailable: 1, selector: {matchLabels: {app: deployed}}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: work}, spec: {type: LoadBalancer, selector: {app: deployed}, ports: [{port: 18099}]}}
`

// TestManifests: Hawser's own API server takes each form.
func TestManifests(t *testing.T) {
	t.Parallel()
	c := startUp(t, append(slices.Clone(notOurs), "--server-arg=--load-balancer-addresses=127.0.0.8")...)
	c.takesManifests(t, "StatefulSet with volumeClaimTemplates gets its claims here and no volumes")
	c.agentsMay(t)
}

// TestKubernetesManifests: kube-apiserver of Kubernetes takes each form, and a hub of theirs leads
// beside it in place of kube-controller-manager.
func TestKubernetesManifests(t *testing.T) {
	k := startKubeAPI(t)
	k.takesManifests(t)
	k.rolesAreThere(t)
	k.grant(t, "--load-balancers", "--controllers=*")
	k.agentsMay(t)
	(&cluster{dir: filepath.Join(k.dir, "manager")}).killServer(t)
	k.leadsAlone(t)
}
