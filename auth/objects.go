// Names in API objects: of a node's site and transport, and of authorities.

package auth

const (
	// SiteLabel is the label of Nodes with the node's site: nodes of a site lose their network
	// together. Administrators set it; Kubernetes' NodeRestriction refuses labels of its
	// domain from nodes.
	SiteLabel = "node-restriction.kubernetes.io/site"
	// SiteGroup, followed by a site, is a group of bootstrap tokens: nodes that join with such
	// a token belong to that site.
	SiteGroup = "system:bootstrappers:site:"
	// TransportAnnotation is the annotation of Nodes with the transport of a node without a
	// tunnel. A node sets its own.
	TransportAnnotation = "hawser.dev/transport"
	// KubeletCAKey is the key of ConfigMap kube-system/extension-apiserver-authentication with
	// the authorities of nodes' serving certificates.
	KubeletCAKey = "hawser-kubelet-ca-file"
)
