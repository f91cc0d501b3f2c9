package loop

// Clients for objects of any kind.

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// NewObjects returns a client for what objects of any kind have in common. It takes no name that
// is no segment of a path: the library joins names into paths as they are, and what it is given
// comes from owner references, which anybody writes, and from lists of extension servers. To get
// such an object is NotFound, to change it BadRequest, and nothing is sent.
func NewObjects(c *rest.Config) (metadata.Interface, error) {
	all, err := metadata.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return objects{all}, nil
}

type objects struct{ all metadata.Interface }

// Resource implements metadata.Interface.
func (o objects) Resource(r schema.GroupVersionResource) metadata.Getter {
	g := o.all.Resource(r)
	return getter{oneKind{g, r.GroupResource()}, g}
}

type getter struct {
	oneKind
	in metadata.Getter
}

// Namespace implements metadata.Getter.
func (g getter) Namespace(ns string) metadata.ResourceInterface {
	return oneKind{g.in.Namespace(ns), g.resource}
}

// oneKind is a client for objects of a kind, by names of objects alone.
type oneKind struct {
	metadata.ResourceInterface
	resource schema.GroupResource
}

// check returns an error for what is no name of an object.
func check(name string) error {
	if bad := content.IsPathSegmentName(name); len(bad) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("%q is no name of an object: %s", name, strings.Join(bad, ", ")))
	}
	return nil
}

// Get implements metadata.ResourceInterface.
func (n oneKind) Get(ctx context.Context, name string, o metav1.GetOptions, sub ...string) (*metav1.PartialObjectMetadata, error) {
	if check(name) != nil {
		return nil, apierrors.NewNotFound(n.resource, name)
	}
	return n.ResourceInterface.Get(ctx, name, o, sub...)
}

// Delete implements metadata.ResourceInterface.
func (n oneKind) Delete(ctx context.Context, name string, o metav1.DeleteOptions, sub ...string) error {
	if err := check(name); err != nil {
		return err
	}
	return n.ResourceInterface.Delete(ctx, name, o, sub...)
}

// Patch implements metadata.ResourceInterface.
func (n oneKind) Patch(ctx context.Context, name string, t types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*metav1.PartialObjectMetadata, error) {
	if err := check(name); err != nil {
		return nil, err
	}
	return n.ResourceInterface.Patch(ctx, name, t, data, o, sub...)
}
