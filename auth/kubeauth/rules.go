package kubeauth

// The fixed rules: what each identity may do, independent of the cluster's objects.

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Names that Kubernetes gives to the parties here.
const (
	controllerUser    = user.KubeControllerManager
	schedulerUser     = user.KubeScheduler
	nodeUserPrefix    = "system:node:"
	bootstrapperGroup = "system:bootstrappers"
	nodeLeases        = "kube-node-lease"
	certificatesGroup = "certificates.k8s.io"
)

// A rule allows verbs on resources. "*" among the resources means every resource and no
// subresource: a subresource such as pods/exec must be listed.
type rule struct {
	verbs     []string
	groups    []string // "*" means any
	resources []string // "pods", "pods/status", "*", "*/status"
	namespace string   // empty means any
}

func (r *rule) allows(a authorizer.Attributes) bool {
	return slices.Contains(r.verbs, a.GetVerb()) &&
		(slices.Contains(r.groups, "*") || slices.Contains(r.groups, a.GetAPIGroup())) &&
		(r.namespace == "" || r.namespace == a.GetNamespace()) &&
		r.covers(a.GetResource(), a.GetSubresource())
}

func (r *rule) covers(resource, sub string) bool {
	for _, have := range r.resources {
		main, s, _ := strings.Cut(have, "/")
		if s == sub && (main == "*" || main == resource) {
			return true
		}
	}
	return false
}

func anyAllows(rules []rule, a authorizer.Attributes) bool {
	for i := range rules {
		if rules[i].allows(a) {
			return true
		}
	}
	return false
}

var (
	read       = []string{"get", "list", "watch"}
	write      = []string{"create", "update", "patch"}
	remove     = []string{"delete", "deletecollection"}
	change     = []string{"update", "patch"}
	create     = []string{"create"}
	core       = []string{""}
	eventGroup = []string{"", "events.k8s.io"}
)

// publicPaths may be read by every client, authenticated or not. A star at the end means
// all paths below.
var publicPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*", "/version", "/version/"}

// discoveryPaths may be read by every authenticated user.
var discoveryPaths = []string{"/api", "/api/", "/api/*", "/apis", "/apis/", "/apis/*", "/openapi", "/openapi/", "/openapi/*"}

// openIDPaths are the documents for verifying tokens of service accounts. Service accounts
// may read them.
var openIDPaths = []string{"/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/"}

// selfRules let the authenticated ask about themselves.
var selfRules = []rule{
	{verbs: create, groups: []string{"authorization.k8s.io"}, resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}},
	{verbs: create, groups: []string{"authentication.k8s.io"}, resources: []string{"selfsubjectreviews"}},
}

// userRules are the lists of the control plane's own identities.
var userRules = map[string][]rule{
	controllerUser: {
		// Namespace deletion and garbage collection are about every kind there is.
		{verbs: read, groups: []string{"*"}, resources: []string{"*"}},
		{verbs: remove, groups: []string{"*"}, resources: []string{"*"}},
		// For owner references and finalizers, which every object can have. A patch of
		// those alone cannot be distinguished from another here.
		{verbs: []string{"patch"}, groups: []string{"*"}, resources: []string{"*"}},
		{verbs: change, groups: core, resources: []string{"namespaces/finalize", "*/status"}},
		{verbs: change, groups: []string{"admissionregistration.k8s.io", "apps", "batch", "policy", "storage.k8s.io", certificatesGroup}, resources: []string{"*/status"}},
		{verbs: write, groups: core, resources: []string{
			"nodes", "pods", "namespaces", "endpoints", "serviceaccounts", "configmaps", "services",
			"persistentvolumes", "persistentvolumeclaims", "replicationcontrollers",
		}},
		{verbs: create, groups: core, resources: []string{"pods/eviction", "serviceaccounts/token"}},
		{verbs: write, groups: []string{"apps", "batch", "discovery.k8s.io", "storage.k8s.io"}, resources: []string{"*"}},
		{verbs: []string{"get", "update", "patch"}, groups: []string{"apps"}, resources: []string{"*/scale"}},
		// Disruption budgets of custom resources' pods.
		{verbs: []string{"get"}, groups: []string{"*"}, resources: []string{"*/scale"}},
		{verbs: write, groups: []string{"coordination.k8s.io"}, resources: []string{"leases"}},
		{verbs: write, groups: eventGroup, resources: []string{"events"}},
		{verbs: change, groups: []string{certificatesGroup}, resources: []string{"certificatesigningrequests/approval"}},
		{verbs: []string{"approve", "sign"}, groups: []string{certificatesGroup}, resources: []string{"signers"}},
		{verbs: create, groups: []string{"authorization.k8s.io"}, resources: []string{"subjectaccessreviews"}},
		{verbs: create, groups: []string{"authentication.k8s.io"}, resources: []string{"tokenreviews"}},
		// Aggregated roles have rules that the controllers do not have.
		{verbs: []string{"escalate", "update", "patch"}, groups: []string{"rbac.authorization.k8s.io"}, resources: []string{"clusterroles"}},
	},
	schedulerUser: {
		{verbs: read, groups: core, resources: []string{
			"nodes", "pods", "namespaces", "services", "replicationcontrollers", "persistentvolumes", "persistentvolumeclaims",
		}},
		{verbs: read, groups: []string{"apps"}, resources: []string{"replicasets", "statefulsets"}},
		{verbs: read, groups: []string{"policy"}, resources: []string{"poddisruptionbudgets"}},
		{verbs: read, groups: []string{"storage.k8s.io"}, resources: []string{"storageclasses", "csinodes", "csidrivers", "csistoragecapacities"}},
		{verbs: create, groups: core, resources: []string{"pods/binding", "bindings"}},
		{verbs: change, groups: core, resources: []string{"pods/status"}},
		{verbs: []string{"delete"}, groups: core, resources: []string{"pods"}},
		{verbs: write, groups: eventGroup, resources: []string{"events"}},
		{verbs: []string{"get", "list", "watch", "create", "update"}, groups: []string{"coordination.k8s.io"}, resources: []string{"leases"}, namespace: "kube-system"},
	},
}

// bootstrapRules let a machine without a certificate request one. It may read the requests
// that its user has made; see ownRequest.
var bootstrapRules = []rule{
	{verbs: create, groups: []string{certificatesGroup}, resources: []string{"certificatesigningrequests"}},
}

// JoinGroup is the group of bootstrap tokens whose requests for a node's certificate are
// approved automatically, as with kubeadm. A token is in it by its auth-extra-groups.
const JoinGroup = "system:bootstrappers:kubeadm:default-node-token"

// joinRules are the rules of JoinGroup.
var joinRules = []rule{
	{verbs: create, groups: []string{certificatesGroup}, resources: []string{"certificatesigningrequests/nodeclient"}},
}

// nodeRules are what every node may do without access to another node's objects.
var nodeRules = []rule{
	{verbs: read, groups: core, resources: []string{"services"}},
	{verbs: []string{"get"}, groups: core, resources: []string{"endpoints"}},
	{verbs: write, groups: eventGroup, resources: []string{"events"}},
	{verbs: read, groups: []string{"node.k8s.io"}, resources: []string{"runtimeclasses"}},
	{verbs: read, groups: []string{"storage.k8s.io"}, resources: []string{"csidrivers"}},
	{verbs: create, groups: []string{"authentication.k8s.io"}, resources: []string{"tokenreviews"}},
	{verbs: create, groups: []string{"authorization.k8s.io"}, resources: []string{"subjectaccessreviews", "localsubjectaccessreviews"}},
	{verbs: create, groups: []string{certificatesGroup}, resources: []string{
		"certificatesigningrequests", "certificatesigningrequests/selfnodeclient",
	}},
}
