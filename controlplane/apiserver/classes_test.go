package apiserver_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestDefaultClasses: a claim and an ingress that name no class have the default one.
func TestDefaultClasses(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	mark := func(annotation string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "usual", Annotations: map[string]string{annotation: "true"}}
	}
	storage, networking := shared.client.StorageV1().StorageClasses(), shared.client.NetworkingV1()
	must(storage.Create(ctx, &storagev1.StorageClass{ObjectMeta: mark("storageclass.kubernetes.io/is-default-class"), Provisioner: "p"}, metav1.CreateOptions{}))(t)
	must(networking.IngressClasses().Create(ctx, &networkingv1.IngressClass{
		ObjectMeta: mark(networkingv1.AnnotationIsDefaultIngressClass), Spec: networkingv1.IngressClassSpec{Controller: "example.com/c"},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = storage.Delete(context.WithoutCancel(ctx), "usual", metav1.DeleteOptions{})
		_ = networking.IngressClasses().Delete(context.WithoutCancel(ctx), "usual", metav1.DeleteOptions{})
	})
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{GenerateName: "i"}, Spec: networkingv1.IngressSpec{
		DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}}},
	}}
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) { // until the plugins have seen the classes
		c := must(shared.client.CoreV1().PersistentVolumeClaims(ns).Create(ctx, claim, metav1.CreateOptions{}))(t)
		i := must(networking.Ingresses(ns).Create(ctx, ingress, metav1.CreateOptions{}))(t)
		if ptr.Deref(c.Spec.StorageClassName, "") == "usual" && ptr.Deref(i.Spec.IngressClassName, "") == "usual" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("storage class %v, ingress class %v", c.Spec.StorageClassName, i.Spec.IngressClassName)
		}
	}
}
