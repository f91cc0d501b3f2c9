// Dormant plugins: what asks webhooks takes megabytes, and is made when there is one.

package apiserver

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
)

// A dormant plugin has nothing to do as long as there is no configuration.
type dormant struct {
	*admission.Handler
	configurations cache.SharedIndexInformer
	wake           func() (admission.Interface, error) // called once
}

func newDormant(configurations cache.SharedIndexInformer, wake func() (admission.Interface, error)) *dormant {
	d := &dormant{Handler: admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), configurations: configurations}
	d.wake = sync.OnceValues(wake)
	d.SetReadyFunc(configurations.HasSynced)
	return d
}

// plugin is what there is to ask; nil if that is nothing. Before it is known which
// configurations there are, nobody is let through.
func (d *dormant) plugin(a admission.Attributes) (admission.Interface, error) {
	if !d.WaitForReady() {
		return nil, admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	if len(d.configurations.GetStore().ListKeys()) == 0 {
		return nil, nil
	}
	p, err := d.wake()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return p, nil
}

// A changing plugin is dormant until there is a mutating webhook.
type changing struct{ *dormant }

// Admit implements admission.MutationInterface.
func (c changing) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := c.plugin(a)
	if p, ok := p.(admission.MutationInterface); ok && p.Handles(a.GetOperation()) {
		return p.Admit(ctx, a, o)
	}
	return err
}

// A refusing plugin is dormant until there is a validating webhook.
type refusing struct{ *dormant }

// Validate implements admission.ValidationInterface.
func (r refusing) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := r.plugin(a)
	if p, ok := p.(admission.ValidationInterface); ok && p.Handles(a.GetOperation()) {
		return p.Validate(ctx, a, o)
	}
	return err
}
