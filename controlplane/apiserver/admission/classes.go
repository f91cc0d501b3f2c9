// The classes of claims and ingresses that name none.

package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

// ingressClassAnnotation named the class of an ingress before the field did.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

// DefaultStorageClass gives a new claim that names no class the default one, if there is one.
func DefaultStorageClass() admission.Interface {
	return &defaultStorageClass{Handler: admission.NewHandler(admission.Create)}
}

type defaultStorageClass struct {
	*admission.Handler
	classes storagelisters.StorageClassLister
}

// SetExternalKubeInformerFactory is called by the server when it makes the chain.
func (d *defaultStorageClass) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Storage().V1().StorageClasses()
	d.classes = classes.Lister()
	d.SetReadyFunc(classes.Informer().HasSynced)
}

func (d *defaultStorageClass) ValidateInitialization() error {
	if d.classes == nil {
		return errors.New("default storage class: no informers")
	}
	return nil
}

func (d *defaultStorageClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("persistentvolumeclaims") || a.GetSubresource() != "" {
		return nil
	}
	c, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a PersistentVolumeClaim: %T", a.GetObject()))
	}
	if _, named := c.Annotations[corev1.BetaStorageClassAnnotation]; named || c.Spec.StorageClassName != nil {
		return nil
	}
	if !d.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return fault("storage classes", err)
	}
	c.Spec.StorageClassName = newest(all, kinds.IsDefaultStorageClass)
	return nil
}

// DefaultIngressClass gives a new ingress that names no class the default one, if there is one.
func DefaultIngressClass() admission.Interface {
	return &defaultIngressClass{Handler: admission.NewHandler(admission.Create)}
}

type defaultIngressClass struct {
	*admission.Handler
	classes networkinglisters.IngressClassLister
}

// SetExternalKubeInformerFactory is called by the server when it makes the chain.
func (d *defaultIngressClass) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Networking().V1().IngressClasses()
	d.classes = classes.Lister()
	d.SetReadyFunc(classes.Informer().HasSynced)
}

func (d *defaultIngressClass) ValidateInitialization() error {
	if d.classes == nil {
		return errors.New("default ingress class: no informers")
	}
	return nil
}

func (d *defaultIngressClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != networkingv1.Resource("ingresses") || a.GetSubresource() != "" {
		return nil
	}
	in, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not an Ingress: %T", a.GetObject()))
	}
	if _, named := in.Annotations[ingressClassAnnotation]; named || in.Spec.IngressClassName != nil {
		return nil
	}
	if !d.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return fault("ingress classes", err)
	}
	in.Spec.IngressClassName = newest(all, func(c *networkingv1.IngressClass) bool {
		return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
	})
	return nil
}

// newest is the name of the default class that was made last, of several the first by name. It is
// nil if there is no default.
func newest[T metav1.Object](classes []T, isDefault func(T) bool) *string {
	var name string
	var made metav1.Time
	for _, c := range classes {
		at := c.GetCreationTimestamp()
		if isDefault(c) && (name == "" || made.Before(&at) || made.Equal(&at) && c.GetName() < name) {
			name, made = c.GetName(), at
		}
	}
	if name == "" {
		return nil
	}
	return &name
}
