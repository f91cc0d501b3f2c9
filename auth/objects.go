// Names in objects that say who a node is to the rest of the cluster, and whom to believe.

package auth

const (
	// SiteLabel is the label of Nodes whose value is the site that a node is of:
	// nodes that lose their network together. It is an administrator's to set;
	// Kubernetes' NodeRestriction keeps nodes from labels of its domain.
	SiteLabel = "node-restriction.kubernetes.io/site"
	// SiteGroup, followed by a site, is a group of bootstrap tokens: the nodes that
	// join with such a token are of that site.
	SiteGroup = "system:bootstrappers:site:"
	// TransportAnnotation is the annotation of Nodes that says how a node without
	// a tunnel is reached. A node sets its own.
	TransportAnnotation = "hawser.dev/transport"
	// KubeletCAKey is the key of ConfigMap kube-system/extension-apiserver-authentication
	// that tells nodes by which authorities their serving certificates are known.
	KubeletCAKey = "hawser-kubelet-ca-file"
)
