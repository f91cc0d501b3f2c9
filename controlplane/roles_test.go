package controlplane

// Tests that what a controller asks of an API server is what its role and the rules that
// it is given more grant.

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// ofKubernetes is what the roles of Kubernetes grant, a rule a line: resources of a group,
// names in brackets, verbs. Source: controller_policy.go,
// namespace_policy.go and policy.go of plugin/pkg/auth/authorizer/rbac/bootstrappolicy.
const ofKubernetes = `
system:controller:certificate-controller
- events create,update,patch
certificates.k8s.io certificatesigningrequests get,list,watch,delete
certificates.k8s.io certificatesigningrequests/status,certificatesigningrequests/approval update
certificates.k8s.io signers[kubernetes.io/kube-apiserver-client-kubelet] approve
certificates.k8s.io signers[kubernetes.io/legacy-unknown,kubernetes.io/kube-apiserver-client,kubernetes.io/kube-apiserver-client-kubelet,kubernetes.io/kubelet-serving] sign
authorization.k8s.io subjectaccessreviews create
system:controller:token-cleaner
- events create,update,patch
- secrets get,list,watch,delete
system:controller:service-account-controller
- events create,update,patch
- serviceaccounts create
system:controller:clusterrole-aggregation-controller
rbac.authorization.k8s.io clusterroles escalate,get,list,watch,update,patch
system:controller:validatingadmissionpolicy-status-controller
- events create,update,patch
admissionregistration.k8s.io validatingadmissionpolicies get,list,watch
admissionregistration.k8s.io validatingadmissionpolicies/status get,patch,update
system:controller:node-controller
- events create,update,patch
- nodes get,list,watch,update,delete,patch
- nodes/status,pods/status patch,update
- pods list,watch,get,delete
system:kube-scheduler
- events create,update,patch
- nodes,namespaces get,list,watch
- pods get,list,watch,delete
- pods/binding,bindings create
- pods/status patch,update
- services,replicationcontrollers,persistentvolumeclaims,persistentvolumes get,list,watch
apps replicasets,statefulsets get,list,watch
policy poddisruptionbudgets get,list,watch
system:controller:pod-garbage-collector
- pods list,watch,delete
- nodes get,list,watch
- pods/status patch
system:controller:disruption-controller
- events create,update,patch
apps deployments,replicasets,statefulsets get,list,watch
- replicationcontrollers get,list,watch
policy poddisruptionbudgets get,list,watch
policy poddisruptionbudgets/status update
- pods/status patch,update
* */scale get
system:controller:namespace-controller
- namespaces get,list,watch,delete
- namespaces/finalize,namespaces/status update
* * get,list,watch,delete,deletecollection
system:controller:resourcequota-controller
- events create,update,patch
* * list,watch
- resourcequotas/status update
system:controller:root-ca-cert-publisher
- events create,update,patch
- configmaps create,update
system:controller:generic-garbage-collector
- events create,update,patch
* * get,list,watch,patch,update,delete
system:controller:deployment-controller
- events create,update,patch
apps deployments get,list,watch,update
apps deployments/status,deployments/finalizers update
apps replicasets get,list,watch,create,update,patch,delete
- pods get,list,watch,update
system:controller:replicaset-controller
- events create,update,patch
apps replicasets get,list,watch,update
apps replicasets/status,replicasets/finalizers update
- pods list,watch,patch,create,delete
system:controller:daemon-set-controller
- events create,update,patch
apps daemonsets get,list,watch
apps daemonsets/status,daemonsets/finalizers update
- nodes list,watch
- pods list,watch,create,delete,patch
- pods/binding create
apps controllerrevisions get,list,watch,create,delete,update,patch
system:controller:statefulset-controller
- events create,update,patch
- pods list,watch,get,create,delete,update,patch
apps statefulsets get,list,watch
apps statefulsets/status,statefulsets/finalizers update
apps controllerrevisions get,create,delete,update,patch,list,watch
- persistentvolumeclaims get,create,list,watch,update,delete
- pods/finalizers update
system:controller:job-controller
- events create,update,patch
batch jobs get,list,watch,update,patch
batch jobs/status,jobs/finalizers update
- pods list,watch,create,delete,patch
system:controller:cronjob-controller
- events create,update,patch
batch cronjobs get,list,watch,update
batch jobs get,list,watch,create,update,delete,patch
batch cronjobs/status,cronjobs/finalizers update
- pods list,watch,delete
system:controller:ttl-after-finished-controller
- events create,update,patch
batch jobs get,list,watch,delete
system:controller:endpointslice-controller
- events create,update,patch
- services,pods,nodes get,list,watch
- services/finalizers update
discovery.k8s.io endpointslices get,list,watch,create,update,delete
system:controller:endpoint-controller
- events create,update,patch
- services,pods get,list,watch
- endpoints get,list,watch,create,update,delete
- endpoints/restricted create
system:controller:endpointslicemirroring-controller
- events create,update,patch
- services,endpoints get,list,watch
- services/finalizers,endpoints/finalizers update
discovery.k8s.io endpointslices get,list,watch,create,update,delete
`

// ofEveryHub is what a hub may beside another API server whatever controllers it runs, of
// what these ask as well.
var ofEveryHub = []Rule{
	rule("", "nodes", "get", "list", "watch"),
	rule("", "nodes/status", "patch"),
	only(rule("", "namespaces", "get"), nodekeys.Namespace),
	in(nodekeys.Namespace, rule("", "configmaps", "get", "create", "update", "delete")),
	in("default", rule("", "events", "create", "patch")), // those about nodes are there
}

// upstream returns the rules of a role of Kubernetes.
func upstream(role string) (rules []Rule) {
	_, text, found := strings.Cut(ofKubernetes, "\n"+role+"\n")
	if !found {
		return nil
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "system:") {
			break
		}
		f := strings.Fields(line)
		r := rbacv1.PolicyRule{APIGroups: []string{strings.TrimPrefix(f[0], "-")}, Verbs: strings.Split(f[2], ",")}
		names, limited := "", false
		if f[1], names, limited = strings.Cut(f[1], "["); limited {
			r.ResourceNames = strings.Split(strings.TrimSuffix(names, "]"), ",")
		}
		r.Resources = strings.Split(f[1], ",")
		rules = append(rules, Rule{PolicyRule: r})
	}
	return rules
}

// grants tells whether rules allow a request.
func grants(rules []Rule, r *request.RequestInfo) bool {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	has := func(all []string, s ...string) bool {
		return slices.ContainsFunc(all, func(have string) bool { return have == "*" || slices.Contains(s, have) })
	}
	return slices.ContainsFunc(rules, func(rule Rule) bool {
		return (rule.Namespace == "" || rule.Namespace == r.Namespace) && has(rule.APIGroups, r.APIGroup) && has(rule.Verbs, r.Verb) &&
			has(rule.Resources, resource, "*/"+r.Subresource) && (len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.Name))
	})
}

// refusedBy returns what the roles of a controller do not grant it, for people. None is "".
func refusedBy(controller string, r *request.RequestInfo) string {
	role := RoleOf(controller)
	theirs := upstream(role.Name)
	if role.Namespace != "" {
		for i := range theirs {
			theirs[i].Namespace = role.Namespace
		}
	}
	if grants(slices.Concat(theirs, role.More, ofEveryHub), r) {
		return ""
	}
	return strings.Join([]string{controller, "may not", r.Verb, r.APIGroup, r.Resource, r.Subresource, r.Namespace, r.Name}, " ")
}

// infos reads requests as an API server does.
var infos = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// asked returns what the roles of the controller that makes a request do not grant it.
func asked(r *http.Request) string {
	name, ok := controllerOf(r.UserAgent())
	info, err := infos.NewRequestInfo(r)
	if !ok || err != nil || !info.IsResourceRequest || !slices.Contains(Names(), name) {
		return ""
	}
	return refusedBy(name, info)
}

// TestRolesOfControllers: a controller may list and watch all kinds that it waits for, and
// write events if it has a recorder, of a component that no other has. Each role that is named
// is one of Kubernetes.
func TestRolesOfControllers(t *testing.T) {
	groups := map[string]string{} // by kind
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if gvk.Version == "v1" {
			groups[gvk.Kind] = gvk.Group
		}
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, "", "")
		cert, key := authority(t)
		plane, err := New(Config{Client: &rest.Config{}, Signer: csr.SignerConfig{CertFile: cert, KeyFile: key}, CollectGarbage: true})
		if err != nil {
			t.Fatal(err)
		}
		plane.cfg.Client.CAData = []byte("x")
		plane.cfg.IPAM.Allocate, plane.cfg.IPAM.ClusterCIDR = true, "10.244.0.0/16"
		s := &shared{
			cfg: plane.cfg, deps: loop.Deps{Client: p.client, Informers: informers.NewSharedInformerFactory(p.client, 0), Metrics: &scope{}, Log: plane.log},
			freezes: newEvents(),
		}
		defer s.freezes.Shutdown()
		components := map[string]string{}
		for _, e := range plane.entries {
			s.events = newEvents()
			defer s.events.Shutdown()
			its, k, err := s.of(&e)
			if err != nil {
				t.Fatal(err)
			}
			made, err := e.make(its)
			if err != nil {
				t.Fatal(e.name, err)
			}
			if role := RoleOf(e.name).Name; (role == "") != (strings.HasPrefix(e.name, "hawser-") || e.name == "serviceaccount-token-controller") || role != "" && upstream(role) == nil {
				t.Errorf("%s has the role %q", e.name, role)
			}
			for component := range its.events.sinks {
				if made == nil {
					continue // there is nothing for it to do here
				}
				if components[component] != "" {
					t.Errorf("%s and %s have events of %s", e.name, components[component], component)
				}
				components[component] = e.name
				for _, verb := range []string{"create", "patch"} {
					if text := refusedBy(e.name, &request.RequestInfo{Verb: verb, Resource: "events", Namespace: "ns"}); text != "" {
						t.Error(text)
					}
				}
			}
			for kind := range k.watched {
				plural, _ := meta.UnsafeGuessKindToResource(scheme.Scheme.PrioritizedVersionsForGroup(groups[kind])[0].WithKind(kind))
				for _, verb := range []string{"list", "watch"} {
					if text := refusedBy(e.name, &request.RequestInfo{Verb: verb, APIGroup: groups[kind], Resource: plural.Resource}); text != "" {
						t.Error(text)
					}
				}
			}
		}
	})
}

// TestRareRequests: what controllers ask on occasions that a short life does not bring.
func TestRareRequests(t *testing.T) {
	const leases, system = "coordination.k8s.io", "kube-system"
	for name, all := range map[string][]request.RequestInfo{
		"node-lifecycle-controller": {
			{Verb: "get", APIGroup: leases, Resource: "leases", Namespace: system, Name: memoryLease},
			{Verb: "create", APIGroup: leases, Resource: "leases", Namespace: system},
			{Verb: "update", APIGroup: leases, Resource: "leases", Namespace: system, Name: memoryLease},
			{Verb: "get", APIGroup: leases, Resource: "leases", Namespace: "kube-node-lease", Name: "n"},
			{Verb: "get", Resource: "namespaces", Namespace: "kube-node-lease", Name: "kube-node-lease"},
			{Verb: "update", Resource: "pods", Subresource: "status", Namespace: "default", Name: "p"},
		},
		"certificatesigningrequest-approving-controller": {
			{Verb: "approve", APIGroup: "certificates.k8s.io", Resource: "signers", Name: "kubernetes.io/kubelet-serving"},
			{Verb: "approve", APIGroup: "certificates.k8s.io", Resource: "signers", Name: "kubernetes.io/kube-apiserver-client-kubelet"},
		},
		"root-ca-certificate-publisher-controller": {
			{Verb: "watch", Resource: "configmaps", Name: "kube-root-ca.crt"}, {Verb: "update", Resource: "configmaps", Namespace: "default", Name: "kube-root-ca.crt"},
		},
		"taint-eviction-controller": {
			{Verb: "patch", Resource: "pods", Subresource: "status", Namespace: "default", Name: "p"}, {Verb: "delete", Resource: "pods", Namespace: "default", Name: "p"},
		},
		"disruption-controller": {{Verb: "get", APIGroup: "example.net", Resource: "things", Subresource: "scale", Namespace: "default", Name: "x"}},
	} {
		for i := range all {
			if text := refusedBy(name, &all[i]); text != "" {
				t.Error(text)
			}
		}
	}
}
