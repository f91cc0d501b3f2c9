package controlplane

// What each controller needs where roles say who may do what: beside the API server of
// Kubernetes, which has a role for each of its own.

import rbacv1 "k8s.io/api/rbac/v1"

// A Role is what a controller needs in a cluster whose API server asks RBAC.
type Role struct {
	// Name is the role that the API server of Kubernetes makes for it. Empty means none.
	Name string
	// Namespace is where that role is. Empty means that it is a ClusterRole.
	Namespace string
	// More is what the role lacks: kube-controller-manager reads by an identity of its own
	// for all its controllers, and some controllers here read what its do not.
	More []Rule
}

// A Rule is a rule of one API group and one resource in a namespace. An empty Namespace
// means all.
type Rule struct {
	Namespace string
	rbacv1.PolicyRule
}

// RoleOf returns what the controller of a name or an alias (Config.Enabled) needs. It is
// the zero Role for the controllers that Kubernetes does not have: what these need is what
// every hub does. The serviceaccount-token-controller has no Role.Name.
//
// Source: plugin/pkg/auth/authorizer/rbac/bootstrappolicy of Kubernetes.
func RoleOf(name string) Role {
	for _, e := range table() {
		if e.called(name) {
			return roles[e.name]
		}
	}
	return Role{}
}

// memoryLease is what package nodelifecycle remembers.
const memoryLease = "hawser-node-lifecycle"

// roles is by the names of the table. It is never changed.
var roles = map[string]Role{
	"certificatesigningrequest-approving-controller": {Name: ofController("certificate-controller"), More: []Rule{
		// That of Kubernetes approves clients' certificates alone.
		only(rule("certificates.k8s.io", "signers", "approve"), "kubernetes.io/kubelet-serving"),
	}},
	"certificatesigningrequest-signing-controller": {Name: ofController("certificate-controller")},
	"certificatesigningrequest-cleaner-controller": {Name: ofController("certificate-controller")},
	"token-cleaner-controller":                     {Name: ofController("token-cleaner"), Namespace: "kube-system"},
	"serviceaccount-controller":                    {Name: ofController("service-account-controller"), More: []Rule{watching("", "namespaces"), watching("", "serviceaccounts")}},
	"serviceaccount-token-controller": {More: []Rule{ // that of Kubernetes is kube-controller-manager itself
		rule("", "secrets", "list", "watch", "get", "patch", "delete"), rule("", "serviceaccounts", "list", "watch", "get"), rule("", "serviceaccounts/token", "create"),
	}},
	"clusterrole-aggregation-controller":          {Name: ofController("clusterrole-aggregation-controller")},
	"validatingadmissionpolicy-status-controller": {Name: ofController("validatingadmissionpolicy-status-controller")},

	"node-lifecycle-controller": {Name: ofController("node-controller"), More: []Rule{
		rule("coordination.k8s.io", "leases", "get", "list", "watch"),
		in("kube-system", rule("coordination.k8s.io", "leases", "create")), // a rule with names does not cover it
		in("kube-system", only(rule("coordination.k8s.io", "leases", "update"), memoryLease)),
		only(rule("", "namespaces", "get"), "kube-node-lease"),
	}},
	"node-ipam-controller": {Name: ofController("node-controller")},

	"kube-scheduler":                   {Name: "system:kube-scheduler"},
	"taint-eviction-controller":        {Name: ofController("node-controller")},
	"pod-garbage-collector-controller": {Name: ofController("pod-garbage-collector")},
	"disruption-controller":            {Name: ofController("disruption-controller"), More: []Rule{watching("", "pods"), watching("batch", "jobs")}},

	"namespace-controller":                     {Name: ofController("namespace-controller")},
	"resourcequota-controller":                 {Name: ofController("resourcequota-controller")},
	"root-ca-certificate-publisher-controller": {Name: ofController("root-ca-cert-publisher"), More: []Rule{watching("", "namespaces"), only(watching("", "configmaps"), "kube-root-ca.crt")}},
	"garbage-collector-controller":             {Name: ofController("generic-garbage-collector")},
	"deployment-controller":                    {Name: ofController("deployment-controller")},
	"replicaset-controller":                    {Name: ofController("replicaset-controller")},
	"daemonset-controller":                     {Name: ofController("daemon-set-controller")},
	"statefulset-controller":                   {Name: ofController("statefulset-controller")},
	"job-controller":                           {Name: ofController("job-controller")},
	"cronjob-controller":                       {Name: ofController("cronjob-controller")},
	"ttl-after-finished-controller":            {Name: ofController("ttl-after-finished-controller")},

	"endpointslice-controller":           {Name: ofController("endpointslice-controller")},
	"endpoints-controller":               {Name: ofController("endpoint-controller"), More: []Rule{watching("discovery.k8s.io", "endpointslices")}},
	"endpointslice-mirroring-controller": {Name: ofController("endpointslicemirroring-controller")},
}

func rule(group, resource string, verbs ...string) Rule {
	return Rule{PolicyRule: rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: []string{resource}}}
}

func watching(group, resource string) Rule { return rule(group, resource, "list", "watch") }

func only(r Rule, names ...string) Rule {
	r.ResourceNames = names
	return r
}

func in(namespace string, r Rule) Rule {
	r.Namespace = namespace
	return r
}

func ofController(name string) string { return "system:controller:" + name }
