package rbac

// The default ClusterRoles, Roles and bindings.

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/hawser-project/hawser/auth/pki"
)

const (
	// bootstrapping is Kubernetes' label of the default roles.
	bootstrapping = "kubernetes.io/bootstrapping"
	defaults      = "rbac-defaults"
	// aggregateTo, followed by admin, edit or view, is the label of the parts of that role.
	aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"
)

var (
	read      = []string{"get", "list", "watch"}
	change    = []string{"create", "delete", "deletecollection", "patch", "update"}
	all       = []string{"*"}
	readWrite = append(append([]string(nil), read...), change...)
)

const (
	core         = ""
	apps         = "apps"
	batch        = "batch"
	policyGroup  = "policy"
	networking   = "networking.k8s.io"
	discovery    = "discovery.k8s.io"
	certificates = "certificates.k8s.io"
	authn        = "authentication.k8s.io"
	authz        = "authorization.k8s.io"
	coordination = "coordination.k8s.io"
	extensions   = "extensions"
	devices      = "resource.k8s.io"
	metrics      = "metrics.k8s.io"
	events       = "events.k8s.io"
	storage      = "storage.k8s.io"
)

// on is a rule about resources of one API group.
func on(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
}

// at is a rule about non-resource paths.
func at(verbs []string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: paths}
}

func can(verbs ...string) []string { return verbs }

func role(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{bootstrapping: defaults}}, Rules: rules}
}

// part is a role that is a part of another one.
func part(of string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	r := role("system:aggregate-to-"+of, rules...)
	r.Labels[aggregateTo+of] = "true"
	return r
}

// whole is a role that is made of others, and itself a part of another one unless of is
// empty.
func whole(name, of string) rbacv1.ClusterRole {
	r := role(name)
	if of != "" {
		r.Labels[aggregateTo+of] = "true"
	}
	r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{MatchLabels: map[string]string{aggregateTo + name: "true"}},
	}}
	return r
}

// ClusterRoles are Kubernetes' bootstrap roles, with the resources that this API has. The
// caller owns them.
func ClusterRoles() []rbacv1.ClusterRole {
	return append(append(forPeople(), forEverybody()...), forParts()...)
}

// forPeople are cluster-admin, admin, edit, view and what these are made of.
func forPeople() []rbacv1.ClusterRole {
	const workloads = "deployments"
	scales := []string{workloads + "/scale", "replicasets/scale", "statefulsets/scale"}
	running := []string{"daemonsets", workloads, "replicasets", "statefulsets"}
	// Nothing is served of these groups, but who may not have a rule may not grant it, and charts have.
	formerly := slices.Clip([]string{"daemonsets", workloads, workloads + "/scale", "ingresses", "networkpolicies", "replicasets", "replicasets/scale", "replicationcontrollers/scale"})
	return []rbacv1.ClusterRole{
		role("cluster-admin", on("*", all, "*"), at(all, "*")),
		whole("admin", ""), whole("edit", "admin"), whole("view", "edit"),
		part("admin",
			on(authz, can("create"), "localsubjectaccessreviews"),
			on("rbac.authorization.k8s.io", readWrite, "roles", "rolebindings"),
		),
		part("edit",
			on(core, read, "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"),
			on(core, can("impersonate"), "serviceaccounts"),
			on(core, change, "pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"),
			on(core, can("create"), "pods/eviction"),
			on(core, change, "configmaps", "events", "persistentvolumeclaims", "replicationcontrollers", "replicationcontrollers/scale",
				"secrets", "serviceaccounts", "services", "services/proxy"),
			on(core, can("create"), "serviceaccounts/token"),
			on(events, change, "events"),
			on(apps, change, append(append([]string{workloads + "/rollback"}, running...), scales...)...),
			on("autoscaling", change, "horizontalpodautoscalers"),
			on(batch, change, "cronjobs", "jobs"),
			on(policyGroup, change, "poddisruptionbudgets"),
			on(networking, change, "ingresses", "networkpolicies"),
			on(coordination, readWrite, "leases"),
			on(extensions, change, append(formerly, workloads+"/rollback")...),
			on(devices, change, "resourceclaims", "resourceclaimtemplates"),
		),
		part("view",
			on(core, read, "configmaps", "endpoints", "persistentvolumeclaims", "persistentvolumeclaims/status", "pods",
				"replicationcontrollers", "replicationcontrollers/scale", "serviceaccounts", "services", "services/status"),
			on(core, read, "bindings", "events", "limitranges", "namespaces/status", "pods/log", "pods/status",
				"replicationcontrollers/status", "resourcequotas", "resourcequotas/status"),
			on(core, read, "namespaces"),
			on(events, read, "events"),
			on(discovery, read, "endpointslices"),
			on(apps, read, append(append([]string{
				"controllerrevisions", "daemonsets/status", workloads + "/status", "replicasets/status", "statefulsets/status",
			}, running...), scales...)...),
			on("autoscaling", read, "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
			on(batch, read, "cronjobs", "cronjobs/status", "jobs", "jobs/status"),
			on(policyGroup, read, "poddisruptionbudgets", "poddisruptionbudgets/status"),
			on(networking, read, "ingresses", "ingresses/status", "networkpolicies"),
			on(metrics, read, "pods"),
			on(extensions, read, append(formerly, "daemonsets/status", workloads+"/status", "ingresses/status", "replicasets/status")...),
			on(devices, read, "resourceclaims", "resourceclaims/status", "resourceclaimtemplates"),
		),
		role("system:status-viewer", at(can("get"), "/hawser/status", "/hawser/status/*")), // no user has it until an administrator binds it
	}
}

// forEverybody are the roles of authenticated and of anonymous users.
func forEverybody() []rbacv1.ClusterRole {
	health := []string{"/healthz", "/livez", "/readyz", "/version", "/version/"}
	return []rbacv1.ClusterRole{
		role("system:discovery", at(can("get"), "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/")),
		role("system:public-info-viewer", at(can("get"), health...)),
		role("system:basic-user",
			on(authz, can("create"), "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
			on(authn, can("create"), "selfsubjectreviews"),
		),
		role("system:service-account-issuer-discovery", at(can("get"), "/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/")),
	}
}

// forParts are roles for programs, to be bound to their accounts.
func forParts() []rbacv1.ClusterRole {
	signer := func(name, signer string) rbacv1.ClusterRole {
		r := on(certificates, can("approve"), "signers")
		r.ResourceNames = []string{signer}
		return role("system:certificates.k8s.io:"+name, r)
	}
	return []rbacv1.ClusterRole{
		role("system:monitoring", at(can("get"), "/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*")),
		role("system:auth-delegator", on(authn, can("create"), "tokenreviews"), on(authz, can("create"), "subjectaccessreviews")),
		role("system:kubelet-api-admin", on(core, read, "nodes"), on(core, can("proxy"), "nodes"), on(core, all,
			"nodes/proxy", "nodes/metrics", "nodes/log", "nodes/stats", "nodes/healthz", "nodes/pods", "nodes/configz", "nodes/checkpoint")),
		role("system:node-bootstrapper", on(certificates, can("create", "get", "list", "watch"), "certificatesigningrequests")),
		role("system:certificates.k8s.io:certificatesigningrequests:nodeclient", on(certificates, can("create"), "certificatesigningrequests/nodeclient")),
		role("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", on(certificates, can("create"), "certificatesigningrequests/selfnodeclient")),
		signer("kube-apiserver-client-approver", "kubernetes.io/kube-apiserver-client"),
		signer("kube-apiserver-client-kubelet-approver", "kubernetes.io/kube-apiserver-client-kubelet"),
		signer("kubelet-serving-approver", "kubernetes.io/kubelet-serving"),
		signer("legacy-unknown-approver", "kubernetes.io/legacy-unknown"),
		role("system:node-proxier",
			on(core, can("list", "watch"), "services", "endpoints"), on(core, read, "nodes"),
			on(discovery, can("list", "watch"), "endpointslices"), on(networking, can("list", "watch"), "servicecidrs"),
			on(core, can("create", "patch", "update"), "events"), on(events, can("create", "patch", "update"), "events"),
		),
		role("system:node-problem-detector",
			on(core, can("get"), "nodes"), on(core, can("patch"), "nodes/status"),
			on(core, can("create", "patch", "update"), "events"), on(events, can("create", "patch", "update"), "events"),
		),
		role("system:kube-dns", on(core, can("list", "watch"), "endpoints", "services")),
		role("system:persistent-volume-provisioner",
			on(core, can("create", "delete", "get", "list", "watch"), "persistentvolumes"),
			on(core, can("get", "list", "update", "watch"), "persistentvolumeclaims"), on(storage, read, "storageclasses"),
			on(core, can("watch"), "events"), on(core, can("create", "patch", "update"), "events"), on(events, can("create", "patch", "update"), "events"),
		),
	}
}

// ClusterRoleBindings are the default bindings of the roles above. The caller owns them.
func ClusterRoleBindings() []rbacv1.ClusterRoleBinding {
	bind := func(role string, subjects ...rbacv1.Subject) rbacv1.ClusterRoleBinding {
		return rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role, Labels: map[string]string{bootstrapping: defaults}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   subjects,
		}
	}
	group := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
	}
	known, unknown := group(user.AllAuthenticated), group(user.AllUnauthenticated)
	return []rbacv1.ClusterRoleBinding{
		bind("cluster-admin", group(user.SystemPrivilegedGroup)),
		bind("system:discovery", known),
		bind("system:basic-user", known),
		bind("system:public-info-viewer", known, unknown),
		bind("system:monitoring", group(user.MonitoringGroup)),
		bind("system:kubelet-api-admin", group(pki.KubeletClientGroup)), // a kubelet authorizes requests of the API server by it
		bind("system:node-proxier", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.KubeProxy}),
		bind("system:service-account-issuer-discovery", group("system:serviceaccounts")),
	}
}

// Roles are those of single namespaces.
func Roles() []rbacv1.Role {
	reader := on(core, read, "configmaps")
	reader.ResourceNames = []string{"extension-apiserver-authentication"}
	return []rbacv1.Role{{
		ObjectMeta: metav1.ObjectMeta{
			Name: "extension-apiserver-authentication-reader", Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{bootstrapping: defaults},
		},
		Rules: []rbacv1.PolicyRule{reader},
	}}
}
