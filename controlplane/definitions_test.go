package controlplane

// A test of the controllers with objects of a kind that a user defines.

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/pki"
)

var gadgets = schema.GroupVersionResource{Group: "gadgets.example.com", Version: "v1", Resource: "gadgets"}

// gadget is an object of a kind that defined defines, which keeps all that it is given.
func gadget(name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gadgets.GroupVersion().WithKind("Gadget"))
	u.SetName(name)
	u.SetOwnerReferences(owners)
	return u
}

// defined makes the kind and returns a client of it.
func (c workload) defined() dynamic.NamespaceableResourceInterface {
	c.t.Helper()
	crds, err := apiextensionsclient.NewForConfig(c.as(c.keys, pki.Admin))
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = crds.ApiextensionsV1().CustomResourceDefinitions().Create(c.t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets." + gadgets.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gadgets.Group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(c.as(c.keys, pki.Admin))
	if err != nil {
		c.t.Fatal(err)
	}
	c.becomes("", func() string {
		_, err := objects.Resource(gadgets).List(c.t.Context(), metav1.ListOptions{})
		return text(err)
	})
	return objects.Resource(gadgets)
}

// Objects of defined kinds are owned, counted and removed with their namespace, also while
// an extension server does not answer.
func TestDefinedKinds(t *testing.T) {
	c := workload{startCluster(t)}
	ctx := t.Context()
	aggregated, err := aggregatorclient.NewForConfig(c.as(c.keys, pki.Admin))
	if err != nil {
		t.Fatal(err)
	}
	_, err = aggregated.ApiregistrationV1().APIServices().Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.absent.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "absent.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "absent"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kind := c.defined()
	for _, ns := range []string{"x", "y"} {
		if _, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	objects := kind.Namespace("x")
	owner, err := objects.Create(ctx, gadget("owner"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ref := metav1.OwnerReference{APIVersion: gadgets.GroupVersion().String(), Kind: "Gadget", Name: owner.GetName(), UID: owner.GetUID()}
	if _, err := objects.Create(ctx, gadget("owned", ref), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{ref}}}
	if _, err := c.admin.CoreV1().ConfigMaps("x").Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.CoreV1().ResourceQuotas("x").Create(ctx, quotaOf("q", map[corev1.ResourceName]string{"count/gadgets.gadgets.example.com": "2"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("2", func() string { return c.used("x", "q", "count/gadgets.gadgets.example.com") })
	if _, err := objects.Create(ctx, gadget("third"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("one too many: %v", err)
	}
	if err := objects.Delete(ctx, "owner", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	c.becomes("true true", func() string {
		_, err := objects.Get(ctx, "owned", metav1.GetOptions{})
		_, also := c.admin.CoreV1().ConfigMaps("x").Get(ctx, "owned", metav1.GetOptions{})
		return bools(apierrors.IsNotFound(err), apierrors.IsNotFound(also))
	})
	c.becomes("0", func() string { return c.used("x", "q", "count/gadgets.gadgets.example.com") })

	if _, err := kind.Namespace("y").Create(ctx, gadget("last"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.admin.CoreV1().Namespaces().Delete(ctx, "y", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("true", func() string {
		_, err := kind.Namespace("y").Get(ctx, "last", metav1.GetOptions{})
		return bools(apierrors.IsNotFound(err))
	})
	// The namespace itself waits for the group that cannot be asked, as in Kubernetes.
	if err := aggregated.ApiregistrationV1().APIServices().Delete(ctx, "v1.absent.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("true", func() string {
		_, err := c.admin.CoreV1().Namespaces().Get(ctx, "y", metav1.GetOptions{})
		return bools(apierrors.IsNotFound(err))
	})
}

// bools are values of which a test waits for all.
func bools(all ...bool) string { return strings.Trim(fmt.Sprint(all), "[]") }
