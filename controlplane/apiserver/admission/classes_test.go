package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// TestDefaultClasses: claims and ingresses that name no class get the default one, of several the
// newest.
func TestDefaultClasses(t *testing.T) {
	const (
		storage = "storageclass.kubernetes.io/is-default-class"
		beta    = "storageclass.beta.kubernetes.io/is-default-class"
	)
	class := func(name string, age time.Duration, annotation, value string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)), Annotations: map[string]string{annotation: value}}
	}
	claim := func(class *string, annotations map[string]string) runtime.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: class}}
	}
	ingress := func(class *string, annotations map[string]string) runtime.Object {
		return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, Spec: networkingv1.IngressSpec{IngressClassName: class}}
	}
	storages := func(all ...metav1.ObjectMeta) (out []runtime.Object) {
		for _, m := range all {
			out = append(out, &storagev1.StorageClass{ObjectMeta: m})
		}
		return out
	}
	ingresses := func(all ...metav1.ObjectMeta) (out []runtime.Object) {
		for _, m := range all {
			out = append(out, &networkingv1.IngressClass{ObjectMeta: m})
		}
		return out
	}
	claims, web := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), networkingv1.SchemeGroupVersion.WithResource("ingresses")
	for name, c := range map[string]struct {
		classes []runtime.Object
		obj     runtime.Object
		sub     string
		want    *string
	}{
		"claim without a default":     {storages(class("a", 0, storage, "false")), claim(nil, nil), "", nil},
		"claim":                       {storages(class("a", 0, storage, "true")), claim(nil, nil), "", ptr.To("a")},
		"claim, by the name of beta":  {storages(class("a", 0, beta, "true")), claim(nil, nil), "", ptr.To("a")},
		"claim, the newest":           {storages(class("a", 2, storage, "true"), class("b", 1, storage, "true"), class("c", 0, "x", "true")), claim(nil, nil), "", ptr.To("b")},
		"claim, the first of equals":  {storages(class("b", 1, storage, "true"), class("a", 1, storage, "true")), claim(nil, nil), "", ptr.To("a")},
		"claim of a class":            {storages(class("a", 0, storage, "true")), claim(ptr.To("b"), nil), "", ptr.To("b")},
		"claim of no class":           {storages(class("a", 0, storage, "true")), claim(ptr.To(""), nil), "", ptr.To("")},
		"claim with the annotation":   {storages(class("a", 0, storage, "true")), claim(nil, map[string]string{corev1.BetaStorageClassAnnotation: ""}), "", nil},
		"claim's status":              {storages(class("a", 0, storage, "true")), claim(nil, nil), "status", nil},
		"ingress without a default":   {ingresses(class("a", 0, "x", "true")), ingress(nil, nil), "", nil},
		"ingress, the newest":         {ingresses(class("a", 1, networkingv1.AnnotationIsDefaultIngressClass, "true"), class("b", 0, networkingv1.AnnotationIsDefaultIngressClass, "true")), ingress(nil, nil), "", ptr.To("b")},
		"ingress of a class":          {ingresses(class("a", 0, networkingv1.AnnotationIsDefaultIngressClass, "true")), ingress(ptr.To("b"), nil), "", ptr.To("b")},
		"ingress with the annotation": {ingresses(class("a", 0, networkingv1.AnnotationIsDefaultIngressClass, "true")), ingress(nil, map[string]string{"kubernetes.io/ingress.class": "b"}), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := informers.NewSharedInformerFactory(fake.NewClientset(c.classes...), 0)
			t.Cleanup(f.Shutdown)
			for _, p := range []admission.Interface{DefaultStorageClass(), DefaultIngressClass()} {
				p.(initializer.WantsExternalKubeInformerFactory).SetExternalKubeInformerFactory(f)
				if err := admission.ValidateInitialization(p); err != nil {
					t.Fatal(err)
				}
				f.Start(t.Context().Done())
				f.WaitForCacheSync(t.Context().Done())
				resource := claims
				if _, is := c.obj.(*networkingv1.Ingress); is {
					resource = web
				}
				if p.Handles(admission.Update) || !p.Handles(admission.Create) {
					t.Error("not for new objects alone")
				}
				if err := p.(admission.MutationInterface).Admit(t.Context(), attributes(c.obj, nil, resource, c.sub, admission.Create), nil); err != nil {
					t.Error(err)
				}
			}
			var got *string
			switch o := c.obj.(type) {
			case *corev1.PersistentVolumeClaim:
				got = o.Spec.StorageClassName
			case *networkingv1.Ingress:
				got = o.Spec.IngressClassName
			}
			if !ptr.Equal(got, c.want) {
				t.Errorf("class %q, want %q", ptr.Deref(got, "none"), ptr.Deref(c.want, "none"))
			}
		})
	}
	for _, p := range []admission.Interface{DefaultStorageClass(), DefaultIngressClass()} {
		if admission.ValidateInitialization(p) == nil {
			t.Errorf("%T without informers is ready", p)
		}
	}
}
