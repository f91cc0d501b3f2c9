// What a hub may do in somebody else's cluster: one table, from which the manifest of its
// roles is made and by which a hub finds what the cluster refuses.

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane"
	"github.com/hawser-project/hawser/controlplane/leader"
	"github.com/hawser-project/hawser/controlplane/servers"
)

// grantCommand gives a hub all that it needs, also where somebody has edited its roles. It
// has the options of hawser manifest rbac: roles that are applied are all that there is.
const grantCommand = "hawser manifest rbac%s | kubectl apply --server-side --force-conflicts -f -"

// A permit is a rule of the hub's roles.
type permit struct {
	feature   string // what there is not without it
	group     string
	resource  string // with its subresource, as roles have it
	verbs     []string
	namespace string   // empty means the whole cluster
	names     []string // of objects; none means all
	// option is the flag of hawser manifest rbac that grants it; empty means always granted.
	option string
	// controller is who needs it, of those that the flag names; empty means each of them.
	controller string
	// needed says whether a hub of these flags needs it; nil means that every one does.
	needed func(*serverOptions) bool
}

// Flags of hawser manifest rbac that grant more.
const (
	forBalancers   = "load-balancers"
	forControllers = "controllers"
)

// balances says whether a hub listens for Services.
func (o *serverOptions) balances() bool { return len(o.balancers.addrs) > 0 }

// elects says whether a hub takes part in an election.
func (o *serverOptions) elects() bool {
	return o.controllers.elect && !slices.Equal(o.controllers.Enabled, besideControllers)
}

// permits are the hub's, without those of Kubernetes' role of a controller that is asked for
// by name.
func permits() []permit {
	health := func(o *serverOptions) bool { return controlplane.Selected(o.controllers.Enabled, besideControllers[0]) }
	balances, elects := (*serverOptions).balances, (*serverOptions).elects
	return append(forChosen(), []permit{
		{feature: "routes to nodes by address", resource: "nodes", verbs: []string{"get", "list", "watch"}},
		{feature: "the conditions of tunnels", resource: "nodes/status", verbs: []string{"patch"}, needed: health},
		{feature: "events about tunnels and routes", resource: "events", verbs: []string{"create", "patch"}, namespace: metav1.NamespaceDefault},
		{feature: "load balancers", resource: "services", verbs: []string{"list", "watch"}, option: forBalancers, needed: balances},
		{feature: "load balancers", group: "discovery.k8s.io", resource: "endpointslices", verbs: []string{"list", "watch"}, option: forBalancers, needed: balances},
		{feature: "events about load balancers", resource: "events", verbs: []string{"create", "patch"}, option: forBalancers, needed: balances},
		{feature: "the election of a leader", group: "coordination.k8s.io", resource: "leases", verbs: []string{"create"}, namespace: leader.DefaultNamespace, option: forControllers, needed: elects},
		{feature: "the election of a leader", group: "coordination.k8s.io", resource: "leases", verbs: []string{"get", "list", "watch", "update"}, namespace: leader.DefaultNamespace, names: []string{besideLease}, option: forControllers, needed: elects},
		{feature: "events of the election", resource: "events", verbs: []string{"create", "patch"}, namespace: leader.DefaultNamespace, option: forControllers, needed: elects},
		{feature: "admission and revocation of nodes", resource: "namespaces", verbs: []string{"get"}, names: []string{nodekeys.Namespace}},
		{feature: "admission and revocation of nodes", resource: "configmaps", verbs: []string{"get", "list", "watch", "create", "update", "delete"}, namespace: nodekeys.Namespace},
		{feature: "other hubs, and telling a copy of a hub's data directory", group: "coordination.k8s.io", resource: "leases", verbs: []string{"get", "list", "watch", "create", "update", "delete"}, namespace: servers.Namespace},
		{feature: "the authorities of agents", resource: "configmaps", verbs: []string{"list", "watch"}, namespace: clientsNamespace, names: []string{clientsName}},
		{
			feature: "publishing the hub's authority to agents", resource: "configmaps", verbs: []string{"get", "update"}, namespace: hubNamespace, names: []string{hubName},
			needed: func(o *serverOptions) bool { return o.beside.cert == "" },
		},
		{feature: "metrics and the status page for those who may see them", group: "authentication.k8s.io", resource: "tokenreviews", verbs: []string{"create"}},
		{feature: "metrics and the status page for those who may see them", group: "authorization.k8s.io", resource: "subjectaccessreviews", verbs: []string{"create"}},
	}...)
}

// forChosen is what the roles of Kubernetes lack for controllers that are asked for by name.
func forChosen() (all []permit) {
	for _, name := range controlplane.Names() {
		for _, r := range controlplane.RoleOf(name).More {
			all = append(all, permit{
				feature: name, group: r.APIGroups[0], resource: r.Resources[0], verbs: r.Verbs, namespace: r.Namespace, names: r.ResourceNames,
				option: forControllers, controller: name,
				needed: func(o *serverOptions) bool { return controlplane.Selected(o.controllers.Enabled, name) },
			})
		}
	}
	return all
}

// reviews are the questions whether the permit is there.
func (p *permit) reviews() []authorizationv1.ResourceAttributes {
	names := p.names
	if len(names) == 0 {
		names = []string{""}
	}
	resource, sub, _ := strings.Cut(p.resource, "/")
	var all []authorizationv1.ResourceAttributes
	for _, verb := range p.verbs {
		for _, name := range names {
			all = append(all, authorizationv1.ResourceAttributes{
				Verb: verb, Group: p.group, Resource: resource, Subresource: sub, Namespace: p.namespace, Name: name,
			})
		}
	}
	return all
}

// refusedPermits are what the cluster refuses of what the hub needs, and of more.
// Unless it is complete, the cluster did not tell of all.
func refusedPermits(ctx context.Context, o *serverOptions, api kubernetes.Interface, more []*permit) (found []remark, complete bool) {
	needed := slices.DeleteFunc(permits(), func(p permit) bool { return p.needed != nil && !p.needed(o) })
	for _, p := range more {
		if !slices.ContainsFunc(needed, func(n permit) bool { return n.covers(p) }) {
			needed = append(needed, *p)
		}
	}
	for _, p := range needed {
		for _, r := range p.reviews() {
			bounded, cancel := context.WithTimeout(ctx, askPatience)
			answer, err := api.AuthorizationV1().SelfSubjectAccessReviews().Create(bounded, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r},
			}, metav1.CreateOptions{})
			cancel()
			if err != nil {
				return append(found, remark{text: "cannot tell what the cluster permits this hub", attrs: []any{"err", err}}), false
			}
			if !answer.Status.Allowed {
				found = append(found, remark{
					text: "the cluster refuses the hub a permission", about: p.about(r.Verb),
					attrs: []any{"verb", r.Verb, "resource", p.object(), "without", p.feature, "grant", o.grant()},
				})
			}
		}
	}
	return found, true
}

// about tells a verb of the permit apart from all others.
func (p *permit) about(verb string) string { return verb + " " + p.object() + " for " + p.feature }

// covers says whether who is asked for p is asked for other as well.
func (p *permit) covers(other *permit) bool {
	names := len(p.names) == 0 || len(other.names) > 0 && !slices.ContainsFunc(other.names, func(name string) bool { return !slices.Contains(p.names, name) })
	return names && p.group == other.group && p.resource == other.resource && (p.namespace == "" || p.namespace == other.namespace) &&
		!slices.ContainsFunc(other.verbs, func(verb string) bool { return !slices.Contains(p.verbs, verb) })
}

// grant is the command that grants a hub of these flags what it needs.
func (o *serverOptions) grant() string {
	options := ""
	if o.balances() {
		options += " --" + forBalancers
	}
	if !slices.Equal(o.controllers.Enabled, besideControllers) {
		options += " --" + forControllers + "=" + shellescape.Quote(strings.Join(o.controllers.Enabled, ","))
	}
	return fmt.Sprintf(grantCommand, options)
}

// object is what the permit is about, for people.
func (p *permit) object() string {
	text := p.resource
	if p.group != "" {
		text = strings.Replace(text, p.resource, p.resource+"."+p.group, 1)
	}
	where := slices.DeleteFunc([]string{p.namespace, strings.Join(p.names, ",")}, func(s string) bool { return s == "" })
	if len(where) > 0 {
		text += fmt.Sprintf(" (%s)", strings.Join(where, "/"))
	}
	return text
}
