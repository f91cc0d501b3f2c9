package kubeauth

// NodeRestriction: checks of the bodies of a node's writes.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// RestrictionConfig configures NodeRestriction. Objects is required.
type RestrictionConfig struct {
	Objects *Objects              // reads objects that a request does not contain
	Metrics prometheus.Registerer // nil means none
	Log     *slog.Logger          // nil means discard
}

// restriction is the admission plugin.
type restriction struct {
	*admission.Handler
	objects *Objects
	checks  map[place][]*claim
	refused *refusals
	stored  *stored
}

var (
	_ admission.MutationInterface   = (*restriction)(nil)
	_ admission.ValidationInterface = (*restriction)(nil)
)

// NodeRestriction returns an admission plugin that restricts nodes and bootstrap users to
// objects of their own and to the table of claims. Other users' requests pass, except
// certificate requests for system:masters, which no user may make to a signer of clients.
//
// Refusals are counted by their line of the table, and logged at most once a minute for
// each node. It fails if the metric cannot be registered.
func NodeRestriction(c RestrictionConfig) (admission.Interface, error) {
	refused, err := newRefusals(c.Metrics, c.Log)
	if err != nil {
		return nil, err
	}
	r := &restriction{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete),
		objects: c.Objects, checks: make(map[place][]*claim), refused: refused, stored: newStored(),
	}
	for i := range claims {
		c := &claims[i]
		if c.check == nil {
			continue
		}
		for _, at := range c.at {
			r.checks[at] = append(r.checks[at], c)
		}
	}
	return r, nil
}

// Admit implements admission.MutationInterface. It writes the node's name to an event that a
// node makes and that names nobody, as those of virtual-kubelet do.
func (r *restriction) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, isNode := nodeOf(a.GetUserInfo())
	if e, ok := a.GetObject().(*corev1.Event); ok && isNode && a.GetOperation() == admission.Create && unsigned(e) {
		e.Source.Host = node
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (r *restriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	at := place{a.GetResource().GroupResource(), a.GetSubresource(), a.GetOperation()}
	node, isNode := nodeOf(a.GetUserInfo())
	if !isNode && at != requests[0] {
		return nil
	}
	if isNode && node == "" {
		return admission.NewForbidden(a, fmt.Errorf("could not determine node from user %q", a.GetUserInfo().GetName()))
	}
	if at.resource == pods && at.sub != "" && at.sub != "status" && at.sub != "eviction" {
		at.sub = other
	}
	w := attempt{a: a, node: node, objects: r.objects, stored: r.stored}
	for _, c := range r.checks[at] {
		if err := c.check(ctx, w); err != nil {
			return r.refuse(a, c, err)
		}
	}
	return nil
}

// refuse makes the answer from the error of a check. An error that is an API status
// already, such as that a pod does not exist, is not counted as a refusal.
func (r *restriction) refuse(a admission.Attributes, c *claim, why error) error {
	if status := apierrors.APIStatus(nil); errors.As(why, &status) {
		return why
	}
	r.refused.note(a.GetUserInfo().GetName(), c, why)
	if soon := (*soonError)(nil); errors.As(why, &soon) {
		return soon.answer(c)
	}
	err := admission.NewForbidden(a, fmt.Errorf("%w; %s: %s", why, c.field, c.remedy))
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: metav1.CauseTypeForbidden, Field: c.field, Message: why.Error(),
		})
	}
	return err
}

// unexpected is the error for an object of another type than that of its resource.
func unexpected(obj runtime.Object) error {
	return apierrors.NewBadRequest(fmt.Sprintf("unexpected type %T", obj))
}

// on makes a check from a func of the new object and the old one, which is empty for a
// create. Neither is changed.
func on[T any, P interface {
	*T
	runtime.Object
}](f func(w attempt, now, before P) error) func(context.Context, attempt) error {
	none := P(new(T))
	return func(_ context.Context, w attempt) error {
		now, ok := w.a.GetObject().(P)
		if !ok {
			return unexpected(w.a.GetObject())
		}
		before := none
		if old := w.a.GetOldObject(); old != nil {
			if before, ok = old.(P); !ok {
				return unexpected(old)
			}
		}
		return f(w, now, before)
	}
}

// nameOf is the name of the object of a request: that in its body for a create.
func nameOf(w attempt) (string, error) {
	if w.a.GetOperation() != admission.Create {
		return w.a.GetName(), nil
	}
	m, ok := w.a.GetObject().(metav1.Object)
	if !ok {
		return "", unexpected(w.a.GetObject())
	}
	return m.GetName(), nil
}

// ownerBut returns an error unless the owners are unchanged, or the node is the only one
// and does not block its deletion.
func ownerBut(node string, now, before []metav1.OwnerReference) error {
	if sameOwners(now, before) {
		return nil
	}
	for i := range now {
		o := &now[i]
		if o.APIVersion != "v1" || o.Kind != "Node" || o.Name != node {
			return fmt.Errorf("node %q can only set an owner reference to itself", node)
		}
		if o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion {
			return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
		}
	}
	return nil
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	is := func(p *bool) bool { return p != nil && *p }
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool {
		return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
			is(a.Controller) == is(b.Controller) && is(a.BlockOwnerDeletion) == is(b.BlockOwnerDeletion)
	})
}

// finalizers returns an error if the finalizers have changed.
func finalizers(node, kind string, now, before metav1.Object) error {
	if slices.Equal(now.GetFinalizers(), before.GetFinalizers()) {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to modify finalizers of a %s", node, kind)
}

// bootstrapper reports whether u was authenticated by a bootstrap token and has no other
// role.
func bootstrapper(u user.Info) bool {
	return slices.Contains(u.GetGroups(), bootstrapperGroup) && !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// mirrorsKept bounds the mirror pods of a node: twice the pods that a kubelet runs by
// default.
const mirrorsKept = 220

// isMirror reports whether a pod is a mirror pod.
func isMirror(p *corev1.Pod) bool {
	_, is := p.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}
