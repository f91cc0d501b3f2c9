package kubeauth

// Names that no Node may have.

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/hawser-project/hawser/auth"
)

// nodeNames is the admission plugin.
type nodeNames struct {
	*admission.Handler
	server *auth.ServerNames
}

var _ admission.ValidationInterface = (*nodeNames)(nil)

// NodeNames returns an admission plugin that refuses new Nodes with a name of server, from
// every user. Existing Nodes stay.
func NodeNames(server *auth.ServerNames) admission.Interface {
	return &nodeNames{Handler: admission.NewHandler(admission.Create), server: server}
}

// Validate implements admission.ValidationInterface.
func (n *nodeNames) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("nodes") || a.GetSubresource() != "" {
		return nil
	}
	node, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return unexpected(a.GetObject())
	}
	if err := n.server.Check(node.Name); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}
