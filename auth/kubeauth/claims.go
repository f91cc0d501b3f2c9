package kubeauth

// Claims: every field by which a node could affect others, and how it is handled.
// NodeRestriction enforces exactly this table.

import (
	"context"
	"errors"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/hawser-project/hawser/auth"
)

// A verdict is how a claim is handled.
type verdict string

const (
	accepted verdict = "accepted" // it affects only the node
	bounded  verdict = "bounded"  // it is accepted within limits
	refused  verdict = "refused"
)

// A claim is a line of the table.
type claim struct {
	kind    string // the id of the line; a value of the metric's label
	field   string // the field in the object
	verdict verdict
	moves   string // who is affected by the claim, and how; its bounds
	remedy  string // the remedy after a refusal

	// at has the writes that the check applies to. A line without a check is accepted,
	// or is enforced elsewhere: proof is then the file, from the module's root, and the
	// test that shows it.
	at    []place
	check func(ctx context.Context, w attempt) error
	proof string
}

// A place is a kind of write.
type place struct {
	resource schema.GroupResource
	sub      string
	op       admission.Operation
}

// An attempt is a write of a node in admission.
type attempt struct {
	a       admission.Attributes
	node    string
	objects *Objects
	stored  *stored
}

// other means the subresources of pods that have no place of their own.
const other = "*"

var (
	pods            = corev1.Resource("pods")
	nodes           = corev1.Resource("nodes")
	serviceAccounts = corev1.Resource("serviceaccounts")
	leases          = coordinationv1.Resource("leases")
	csiNodes        = storagev1.Resource("csinodes")
	volumeClaims    = corev1.Resource("persistentvolumeclaims")
	certificates    = certificatesv1.Resource("certificatesigningrequests")
	coreEvents      = corev1.Resource("events")
	newEvents       = eventsv1.Resource("events")

	nodeCreate = place{nodes, "", admission.Create}
	nodeWrites = []place{nodeCreate, {nodes, "", admission.Update}, {nodes, "status", admission.Update}}
	podStatus  = []place{{pods, "status", admission.Update}}
	mirrorPods = []place{{pods, "", admission.Create}}
	leaseWrite = []place{{leases, "", admission.Create}, {leases, "", admission.Update}}
	csiWrites  = []place{{csiNodes, "", admission.Create}, {csiNodes, "", admission.Update}}
	eventWrite = []place{
		{coreEvents, "", admission.Create},
		{coreEvents, "", admission.Update},
		{newEvents, "", admission.Create},
		{newEvents, "", admission.Update},
	}
	claimStatus = []place{{volumeClaims, "status", admission.Update}}
	requests    = []place{{certificates, "", admission.Create}}
)

// claims is the table: objects in the order of a node's life. Lines of one place are
// checked in this order, and the first refusal is returned. The texts are those of
// Kubernetes' NodeRestriction where it has the check.
var claims = func() []claim {
	var all []claim
	for _, part := range [][]claim{nodeClaims, statusClaims, podClaims, mirrorClaims, otherClaims, sessionClaims} {
		all = append(all, part...)
	}
	return all
}()

const byAdministrator = "an administrator sets it, with kubectl"

var nodeClaims = []claim{
	{
		kind: "node.name", field: "metadata.name", verdict: refused, at: append([]place{{nodes, "", admission.Delete}}, nodeWrites...),
		moves: "another node", remedy: "use the credentials of that node, or an administrator's", check: ownNode,
	},
	{
		kind: "node.delete", field: "metadata.name", verdict: refused, proof: "auth/kubeauth/authorizer_test.go:TestAuthorize",
		moves: "whoever joins next: a node that is made anew chooses its zone again", remedy: "an administrator deletes nodes",
	},
	{
		kind: "node.configSource", field: "spec.configSource", verdict: refused, at: nodeWrites,
		moves: "a configuration that others may read", remedy: "the field is out of use: leave it out", check: on(configSource),
	},
	{
		kind: "node.taints", field: "spec.taints", verdict: bounded, at: nodeWrites[1:],
		moves:  "pods, by taking off what keeps them away; a node brings its taints when it is made (--register-with-taints)",
		remedy: "an administrator taints nodes, with kubectl taint", check: on(taints),
	},
	{
		kind: "node.ownerReferences", field: "metadata.ownerReferences", verdict: refused, at: nodeWrites,
		moves:  "the deletion of the owner, which would wait for the node, and of the node",
		remedy: "leave them out; " + byAdministrator, check: on(nodeOwners),
	},
	{
		kind: "node.finalizers", field: "metadata.finalizers", verdict: refused, at: nodeWrites,
		moves:  "the deletion of the node, which would never end, and controllers that wait for a finalizer of theirs",
		remedy: "leave them out; " + byAdministrator, check: on(nodeFinalizers),
	},
	{
		kind: "node.labels.site", field: "metadata.labels", verdict: refused, at: nodeWrites,
		moves:  "the nodes of its site: one that speaks keeps the others from being excused, one that is silent with them excuses them",
		remedy: "an administrator says which site a node is of: kubectl label node NAME " + auth.SiteLabel + "=SITE", check: on(siteLabel),
	},
	{
		kind: "node.labels", field: "metadata.labels", verdict: bounded, at: nodeWrites,
		moves:  "pods and policies that select nodes by labels of Kubernetes' or of administrators (node-restriction.kubernetes.io/, hawser.dev/)",
		remedy: "an administrator labels nodes, with kubectl label", check: on(nodeLabels),
	},
	{
		kind: "node.labels.zone", field: "metadata.labels", verdict: bounded, at: nodeWrites[1:],
		moves:  "the rate of evictions in the zones that it leaves and enters; a node says where it is once, when it is made (--node-labels)",
		remedy: "an administrator moves nodes, with kubectl label --overwrite", check: on(zoneLabels),
	},
	{
		kind: "node.labels.own", field: "metadata.labels", verdict: accepted, at: nodeWrites,
		moves: "pods that select nodes by labels that no administrator keeps for himself, and only onto this node",
	},
	{
		kind: "node.annotations.hawser", field: "metadata.annotations", verdict: refused, at: nodeWrites,
		moves:  "evictions, which annotations of hawser.dev freeze, on the node and in its site",
		remedy: "an administrator annotates nodes, with kubectl annotate", check: on(hawserAnnotations),
	},
	{
		kind: "node.annotations.transport", field: "metadata.annotations[" + auth.TransportAnnotation + "]", verdict: accepted, at: nodeWrites,
		moves: "only the way to this node; the server believes a machine's sshd by its host key, not by its address",
	},
	{
		kind: "node.annotations.own", field: "metadata.annotations", verdict: accepted, at: nodeWrites,
		moves: "nobody: controllers of the cluster read none of a node's own",
	},
	{
		kind: "node.podCIDR", field: "spec.podCIDR, spec.podCIDRs", verdict: refused, at: nodeWrites,
		moves:  "traffic to the addresses in it, and the ranges of other nodes",
		remedy: "--allocate-node-cidrs gives nodes their ranges, or the cloud controller or an administrator does", check: on(podRanges),
	},
	{
		kind: "node.providerID", field: "spec.providerID", verdict: bounded, at: nodeWrites,
		moves:  "the machine that cloud controllers take for this one; said once and not changed",
		remedy: "delete the node and have it join anew (--provider-id)", check: on(providerID),
	},
	{
		kind: "node.unschedulable", field: "spec.unschedulable", verdict: accepted, at: nodeWrites[:2],
		moves: "pods that would come to this node",
	},
	{
		kind: "node.counts", field: "metadata, spec, status", verdict: bounded, at: nodeWrites,
		moves:  "the memory of all who watch nodes; each list has a greatest length",
		remedy: "report fewer", check: on(counts),
	},
}

var statusClaims = []claim{
	{
		kind: "node.conditions.hawser", field: "status.conditions", verdict: refused, at: nodeWrites,
		moves:  "evictions, which go by what the control plane knows of the tunnel (hawser.dev/TunnelConnected, hawser.dev/DataPathReady)",
		remedy: "leave them to the control plane", check: on(hawserConditions),
	},
	{
		kind: "node.conditions", field: "status.conditions", verdict: accepted, at: nodeWrites,
		moves: "pods of this node; a zone counts it as one node of many",
	},
	{
		kind: "node.conditions.times", field: "status.conditions: lastTransitionTime", verdict: bounded, proof: "controlplane/freeze_test.go:TestTimesOfNodes",
		moves: "the excuses of this node, which count from it: the control plane replaces a time that is still to come once the node is silent",
	},
	{
		kind: "node.addresses", field: "status.addresses", verdict: bounded, at: nodeWrites,
		moves:  "the server's dials: no loopback, link-local, multicast or unspecified address",
		remedy: "report an address that other machines reach (--node-ip)", check: on(addresses),
	},
	{
		kind: "node.addresses.others", field: "status.addresses", verdict: bounded, proof: "cmd/hawser/routes_test.go:TestRoutesOfClaims",
		moves: "traffic to another node's, the server's, a pod's or a service's address: such a claim makes no route, or an ambiguous one, which is dialed by nobody",
	},
	{
		kind: "node.volumesAttached", field: "status.volumesAttached", verdict: refused, at: nodeWrites,
		moves:  "volumes, which the attach-detach controller says are attached",
		remedy: "report status.volumesInUse only", check: on(volumesAttached),
	},
	{
		kind: "node.capacity", field: "status.capacity, status.allocatable", verdict: accepted, at: nodeWrites,
		moves: "pods that the scheduler sends to this node; taints and labels of administrators keep them away",
	},
	{
		kind: "node.kubeletPort", field: "status.daemonEndpoints.kubeletEndpoint.Port", verdict: accepted, at: nodeWrites,
		moves: "dials to this node, which go by its verified name",
	},
	{
		kind: "node.size", field: "metadata, spec, status", verdict: bounded, at: nodeWrites,
		moves: "the store, and the memory of all who watch nodes", remedy: "report fewer images, and shorter annotations and messages", check: on(nodeSized),
	},
	{
		kind: "node.rate", field: "metadata", verdict: bounded, at: slices.Concat(nodeWrites, leaseWrite, csiWrites),
		moves: "the store, which versions of a Node, a Lease or a CSINode without end would fill; each node has so many bytes a second", remedy: "come back later, and report less", check: nodeRate,
	},
	{
		kind: "node.nodeInfo", field: "status.nodeInfo", verdict: accepted, at: nodeWrites,
		moves: "nobody: it is shown",
	},
}

var podClaims = []claim{
	{
		kind: "pod.subresource", field: "the request's subresource", verdict: refused,
		at: []place{
			{pods, other, admission.Create},
			{pods, other, admission.Update},
			{pods, other, admission.Delete},
			{pods, "", admission.Update},
			{pods, "status", admission.Create},
			{pods, "status", admission.Delete},
			{pods, "eviction", admission.Update},
			{pods, "eviction", admission.Delete},
		},
		moves: "pods of others, and those of the node in other ways than by reporting on them", remedy: "use an administrator's credentials",
		check: podSubresource,
	},
	{
		kind: "pod.delete", field: "spec.nodeName", verdict: bounded, at: []place{{pods, "", admission.Delete}},
		moves: "pods of other nodes; a node deletes those that are bound to it", remedy: "use an administrator's credentials",
		check: func(_ context.Context, w attempt) error { return ownPod(w, "delete") },
	},
	{
		kind: "pod.status", field: "spec.nodeName", verdict: bounded, at: podStatus,
		moves: "pods of other nodes; a node reports on those that are bound to it", remedy: "use the credentials of that node",
		check: func(_ context.Context, w attempt) error { return ownPod(w, "update pod status for") },
	},
	{
		kind: "pod.labels", field: "metadata.labels", verdict: refused, at: podStatus,
		moves:  "services, disruption budgets and controllers that select pods by labels",
		remedy: "send the status alone", check: on(podLabels),
	},
	{
		kind: "pod.annotations", field: "metadata.annotations", verdict: refused, at: podStatus,
		moves:  "controllers that go by annotations, such as which pod of a ReplicaSet goes first",
		remedy: "send the status alone", check: on(podAnnotations),
	},
	{
		kind: "pod.finalizers", field: "metadata.finalizers", verdict: refused, at: podStatus,
		moves:  "the deletion of the pod and its namespace, and the count of a Job's pods",
		remedy: "send the status alone", check: on(podFinalizers),
	},
	{
		kind: "pod.ownerReferences", field: "metadata.ownerReferences", verdict: refused, at: podStatus,
		moves: "the controller of the pod", remedy: "send the status alone", check: on(podOwners),
	},
	{
		kind: "pod.resourceClaimStatuses", field: "status.resourceClaimStatuses", verdict: refused, at: podStatus,
		moves: "claims of other pods", remedy: "leave it to the control plane", check: on(claimStatuses),
	},
	{
		kind: "pod.resources", field: "status.resources, status.allocatedResources, status.containerStatuses: resources, allocatedResources", verdict: bounded, at: podStatus,
		moves:  "the scheduler, which takes the room on the node for what its pods have; quotas go by what pods ask for",
		remedy: "report what the pod asks for, CPU, memory and ephemeral storage, none less than zero", check: on(podAmounts),
	},
	{
		kind: "pod.addresses", field: "status.podIPs, status.hostIPs", verdict: bounded, at: podStatus,
		moves:  "dials to the pod: they go through the node that it is bound to, whatever its address; no loopback, link-local, multicast or unspecified address",
		remedy: "report an address that others can dial", check: on(podAddresses),
	},
	{
		kind: "pod.size", field: "status", verdict: bounded, at: podStatus,
		moves: "the store, and the memory of all who watch pods", remedy: "report shorter messages", check: on(statusSized),
	},
	{
		kind: "pod.rate", field: "status", verdict: bounded, at: slices.Concat(podStatus, mirrorPods, claimStatus),
		moves: "the store, which versions of pods without end would fill; each node has so many bytes a second", remedy: "come back later, and report less often", check: statusRate,
	},
	{
		kind: "pod.conditions", field: "status.phase, status.conditions", verdict: accepted, at: podStatus,
		moves: "whoever owns the pod, which ends when its node says so",
	},
	{
		kind: "pod.times", field: "status.conditions: lastTransitionTime, status.containerStatuses", verdict: bounded,
		proof: "controlplane/children/children_test.go:TestEndedAt",
		moves: "the pauses of whoever owns the pod, and which of its pods goes first: no time counts that is still to come or from before the pod was made",
	},
	{
		kind: "eviction", field: "spec.nodeName", verdict: bounded, at: []place{{pods, "eviction", admission.Create}},
		moves: "pods of other nodes; a node evicts those that are bound to it", remedy: "use an administrator's credentials", check: evictOwn,
	},
	{
		kind: "token", field: "spec.boundObjectRef", verdict: bounded, at: []place{{serviceAccounts, "token", admission.Create}},
		moves:  "whatever the service account may do; a node gets tokens for pods that run on it as the account, bound to the pod",
		remedy: "name a pod of the node, with its UID, that runs as the service account", check: boundToPod,
	},
	{
		kind: "token.audience", field: "spec.audiences", verdict: bounded, at: []place{{serviceAccounts, "token", admission.Create}},
		moves:  "whoever believes tokens for that audience; a node gets those for which its pod has a volume",
		remedy: "give the pod a projected volume with a serviceAccountToken for the audience", check: podAudience,
	},
}

var mirrorClaims = []claim{
	{
		kind: "mirror", field: "metadata.annotations[" + corev1.MirrorPodAnnotationKey + "]", verdict: bounded, at: mirrorPods,
		moves: "the scheduler and controllers; a node shows what it runs by itself, as a mirror pod bound to it", remedy: "let a controller make the pod", check: on(mirrorPod),
	},
	{
		kind: "mirror.name", field: "metadata.name", verdict: bounded, at: mirrorPods,
		moves: "whoever wants to make a pod of that name", remedy: "let the name end with a dash and the node's name", check: on(mirrorName),
	},
	{
		kind: "mirror.namespace", field: "metadata.namespace, spec.terminationGracePeriodSeconds", verdict: accepted, proof: "controlplane/claims_test.go:TestMirrorPodsHoldNobody",
		moves: "nobody: a mirror pod counts against no quota, and is deleted at once, with its namespace or without",
	},
	{
		kind: "mirror.references", field: "spec", verdict: refused, at: mirrorPods,
		moves: "what the authorizer lets the node read: what its pods name", remedy: "let a controller make the pod", check: on(mirrorReferences),
	},
	{
		kind: "mirror.labels", field: "metadata.labels", verdict: refused, at: mirrorPods,
		moves:  "services, which would send the node what is meant for others, and disruption budgets",
		remedy: "leave labels out of the manifest, or let a controller make the pod", check: on(mirrorLabels),
	},
	{
		kind: "mirror.affinity", field: "spec.affinity", verdict: refused, at: mirrorPods,
		moves: "pods of the whole cluster, which an anti-affinity keeps away", remedy: "leave it out: the pod is not scheduled", check: on(mirrorAffinity),
	},
	{
		kind: "mirror.finalizers", field: "metadata.finalizers", verdict: refused, at: mirrorPods,
		moves: "the deletion of the namespace, which would never end", remedy: "leave them out", check: on(mirrorFinalizers),
	},
	{
		kind: "mirror.owner", field: "metadata.ownerReferences", verdict: bounded, at: mirrorPods,
		moves: "the deletion of the owner; the one owner is the node, which does not wait for it", remedy: "name the node as the one owner", check: mirrorOwner,
	},
	{
		kind: "mirror.size", field: "metadata, spec", verdict: bounded, at: mirrorPods,
		moves: "the store, and the memory of all who watch pods", remedy: "leave long annotations and arguments out", check: on(mirrorSized),
	},
	{
		kind: "mirror.count", field: "spec.nodeName", verdict: bounded, at: mirrorPods,
		moves: "the store, which mirror pods without end would fill", remedy: "run fewer static pods", check: mirrorCount,
	},
}

var otherClaims = []claim{
	{
		kind: "lease.name", field: "metadata.name, metadata.namespace", verdict: refused, at: append([]place{{leases, "", admission.Delete}}, leaseWrite...),
		moves: "the health of another node, and the election of leaders", remedy: "use the lease of the node", check: leaseName,
	},
	{
		kind: "lease.holder", field: "spec.holderIdentity", verdict: bounded, at: leaseWrite,
		moves: "whoever believes that another node holds the lease; it is the node's name", remedy: "write the node's name", check: on(leaseHolder),
	},
	{
		kind: "lease.times", field: "spec.renewTime, spec.leaseDurationSeconds", verdict: accepted, at: leaseWrite,
		moves: "only the health of this node: the control plane goes by its own clock and by whether the time changes",
	},
	{
		kind: "lease.owners", field: "metadata.ownerReferences", verdict: bounded, at: leaseWrite,
		moves: "the deletion of the owner; it is the node, which does not wait for it", remedy: "name the node alone, without blockOwnerDeletion", check: on(leaseOwners),
	},
	{
		kind: "lease.finalizers", field: "metadata.finalizers", verdict: refused, at: leaseWrite,
		moves: "the deletion of the lease, which would outlive its node", remedy: "leave them out", check: on(leaseFinalizers),
	},
	{
		kind: "csinode.name", field: "metadata.name", verdict: refused, at: append([]place{{csiNodes, "", admission.Delete}}, csiWrites...),
		moves: "volumes of another node", remedy: "use the CSINode of the node", check: csiNodeName,
	},
	{
		kind: "csinode.drivers", field: "spec.drivers", verdict: accepted, at: csiWrites,
		moves: "volumes of this node",
	},
	{
		kind: "csinode.owners", field: "metadata.ownerReferences", verdict: bounded, at: csiWrites,
		moves: "the deletion of the owner; it is the node, which does not wait for it", remedy: "name the node alone, without blockOwnerDeletion", check: on(csiOwners),
	},
	{
		kind: "csinode.finalizers", field: "metadata.finalizers", verdict: refused, at: csiWrites,
		moves: "the deletion of the CSINode, which would outlive its node", remedy: "leave them out", check: on(csiFinalizers),
	},
	{
		kind: "volumeclaim", field: "the request's subresource", verdict: refused, at: []place{{volumeClaims, "", admission.Update}},
		moves: "the volumes of others", remedy: "use an administrator's credentials",
		check: func(context.Context, attempt) error { return errors.New("may only update PVC status") },
	},
	{
		kind: "volumeclaim.status", field: "all but status.capacity, status.conditions, status.allocatedResourceStatuses", verdict: refused, at: claimStatus,
		moves: "the claim's volume, its deletion, and quotas, which go by status.allocatedResources", remedy: "leave it as it is", check: on(claimFields),
	},
	{
		kind: "volumeclaim.size", field: "status", verdict: bounded, at: claimStatus,
		moves: "the store, and the memory of all who watch claims", remedy: "report shorter messages", check: on(claimSized),
	},
	{
		kind: "volumeclaim.expanded", field: "status.capacity, status.conditions, status.allocatedResourceStatuses", verdict: accepted, at: claimStatus,
		moves: "whoever owns the claim, which a pod on the node mounts: whether its volume has grown",
	},
	{
		kind: "event.size", field: "metadata, message", verdict: bounded, at: eventWrite,
		moves: "the store, and the memory of all who watch events", remedy: "leave long annotations, labels and texts out", check: on(eventSized),
	},
	{
		kind: "event.about", field: "involvedObject", verdict: bounded, at: eventWrite,
		moves: "people, who would believe it of another; a node tells of itself and of its pods", remedy: "tell of the node and of pods that are bound to it", check: eventAbout,
	},
	{
		kind: "event.source", field: "source.host, reportingInstance", verdict: bounded, at: eventWrite,
		moves: "the events of others, which it would rewrite or speak for", remedy: "write the node's name", check: on(eventSource),
	},
	{
		kind: "event.metadata", field: "metadata.finalizers, metadata.ownerReferences", verdict: refused, at: eventWrite,
		moves: "the deletion of the namespace and of owners", remedy: "leave them out", check: on(eventMetadata),
	},
	{
		kind: "event.rate", field: "metadata", verdict: bounded, at: eventWrite,
		moves: "the store, which events without end would fill; each node has so many bytes a second", remedy: "come back later, and record less", check: on(eventRate),
	},
	{
		kind: "request.size", field: "metadata, spec.request", verdict: bounded, at: requests,
		moves: "the store, and the memory of all who watch requests", remedy: "leave long annotations and labels out", check: on(requestSized),
	},
	{
		kind: "request.subject", field: "spec.request, spec.signerName", verdict: bounded, at: requests,
		moves:  "another node, and all who believe certificates; a node asks for its own name, of the signers of kubelets",
		remedy: "ask for a certificate of the node's own name", check: requestSubject,
	},
	{
		kind: "request.metadata", field: "metadata.finalizers, metadata.ownerReferences", verdict: refused, at: requests,
		moves: "the removal of requests that have been answered, and of owners", remedy: "leave them out", check: on(requestMetadata),
	},
	{
		kind: "request.rate", field: "metadata", verdict: bounded, at: requests,
		moves: "the store, which requests without end would fill; each node and each join token has so many bytes a second", remedy: "come back later", check: on(requestRate),
	},
	{
		kind: "request.name", field: "metadata.name", verdict: accepted, at: requests,
		moves: "nobody: whatever its name, a request gets no more than its subject may have",
	},
}

// sessionClaims are the claims of an agent in the tunnel. The server uses the certificate.
var sessionClaims = []claim{
	{
		kind: "hello.node", field: "hello: Node", verdict: refused, proof: "server/hub_test.go:TestRefusedSessions",
		moves: "the streams to another node", remedy: "start the agent with the --node-name that its certificate has",
	},
	{
		kind: "hello.instance", field: "hello: Instance, Sequence", verdict: bounded, proof: "server/fencing_test.go:TestCloneIsFenced",
		moves: "only sessions of the same certificate: which of them is the node's",
	},
	{
		kind: "hello.meta", field: "hello: Meta", verdict: accepted, proof: "tunnel/wire_test.go:TestFrameLimits",
		moves: "nobody: it is shown, and bounded in size by the frame",
	},
}
