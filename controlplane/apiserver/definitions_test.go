// Custom resources: kinds that users define.

package apiserver_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/apiserver/usage"
)

// widgets is a definition with all that a definition can ask for, in a group of its own.
const widgets = `
metadata: {name: widgets.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Size, type: string, jsonPath: .spec.size}
    selectableFields:
    - jsonPath: .spec.size
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            x-kubernetes-validations:
            - {rule: "self.replicas <= 5", message: at most five}
            properties:
              size: {type: string, enum: [small, large], description: How big it is.}
              replicas: {type: integer, default: 1, minimum: 0}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}}
`

// define makes the definition of widgets in group and waits until it is established.
func define(t *testing.T, in *instance, group string) schema.GroupVersionResource {
	t.Helper()
	crd := new(apiextensionsv1.CustomResourceDefinition)
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(widgets, "GROUP", group)), crd); err != nil {
		t.Fatal(err)
	}
	crds := definitionsOf(t, in)
	must(crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{}))(t)
	gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	awaitKind(t, in, gvr)
	return gvr
}

func definitionsOf(t *testing.T, in *instance) apiextensionsclient.Interface {
	t.Helper()
	return must(apiextensionsclient.NewForConfig(in.config))(t)
}

// awaitKind waits until a kind is in discovery and can be listed.
func awaitKind(t *testing.T, in *instance, gvr schema.GroupVersionResource) {
	t.Helper()
	until(t, "the kind is served", func() bool {
		list, err := in.client.Discovery().ServerResourcesForGroupVersion(gvr.GroupVersion().String())
		if err != nil {
			return false
		}
		for _, r := range list.APIResources {
			if r.Name == gvr.Resource {
				return true
			}
		}
		return false
	})
}

func widget(gvr schema.GroupVersionResource, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(), "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func objectsOf(t *testing.T, in *instance, gvr schema.GroupVersionResource, ns string) dynamic.ResourceInterface {
	t.Helper()
	return must(dynamic.NewForConfig(in.config))(t).Resource(gvr).Namespace(ns)
}

func TestDefinitions(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	gvr := define(t, shared, "definitions.example.com")
	objects := objectsOf(t, shared, gvr, ns)
	w := must(objects.Watch(ctx, metav1.ListOptions{}))(t)
	defer w.Stop()

	made := must(objects.Create(ctx, widget(gvr, "a", map[string]any{"size": "small", "unknown": "x"}), metav1.CreateOptions{}))(t)
	if n, _, _ := unstructured.NestedInt64(made.Object, "spec", "replicas"); n != 1 {
		t.Errorf("no default: %v", made.Object)
	}
	if _, ok, _ := unstructured.NestedString(made.Object, "spec", "unknown"); ok {
		t.Errorf("not pruned: %v", made.Object)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "a" {
		t.Errorf("event: %+v", e)
	}
	for name, spec := range map[string]map[string]any{
		"spec.size: Unsupported value": {"size": "huge"}, "spec.size: Required value": {}, "at most five": {"size": "small", "replicas": int64(6)},
	} {
		if _, err := objects.Create(ctx, widget(gvr, "bad", spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := objects.Create(ctx, widget(gvr, "strict", map[string]any{"size": "small", "unknown": "x"}), metav1.CreateOptions{FieldValidation: "Strict"}); !apierrors.IsBadRequest(err) {
		t.Errorf("an unknown field: %v", err)
	}
	checkSubresources(t, objects)
	checkApply(t, objects, gvr)
	must(objects.Create(ctx, widget(gvr, "b", map[string]any{"size": "large"}), metav1.CreateOptions{}))(t)
	if l := must(objects.List(ctx, metav1.ListOptions{FieldSelector: "spec.size=large"}))(t); len(l.Items) != 1 || l.Items[0].GetName() != "b" {
		t.Errorf("selected by a field: %v", l.Items)
	}
	checkTable(t, ns, gvr)
	checkDocuments(t, gvr)

	// The objects go with the definition, and so does the kind.
	if err := definitionsOf(t, shared).ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, "widgets."+gvr.Group, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the kind is gone", func() bool {
		_, err := objects.List(ctx, metav1.ListOptions{})
		_, group := shared.client.Discovery().ServerResourcesForGroupVersion(gvr.GroupVersion().String())
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(group)
	})
	gvr = define(t, shared, gvr.Group)
	if l := must(objects.List(ctx, metav1.ListOptions{}))(t); len(l.Items) != 0 {
		t.Errorf("objects outlived their definition: %v", l.Items)
	}
}

// checkSubresources changes the object a by its status and by its scale.
func checkSubresources(t *testing.T, objects dynamic.ResourceInterface) {
	t.Helper()
	ctx := t.Context()
	was := must(objects.Get(ctx, "a", metav1.GetOptions{}))(t)
	change := was.DeepCopy()
	change.Object["status"] = map[string]any{"replicas": int64(1), "selector": "a=b"}
	_ = unstructured.SetNestedField(change.Object, "large", "spec", "size")
	now := must(objects.UpdateStatus(ctx, change, metav1.UpdateOptions{}))(t)
	if size, _, _ := unstructured.NestedString(now.Object, "spec", "size"); size != "small" || now.GetGeneration() != was.GetGeneration() {
		t.Errorf("the status' subresource wrote the spec: %v", now.Object)
	}
	scale := must(objects.Get(ctx, "a", metav1.GetOptions{}, "scale"))(t)
	if n, _, _ := unstructured.NestedInt64(scale.Object, "status", "replicas"); n != 1 || scale.GetKind() != "Scale" {
		t.Errorf("scale: %v", scale.Object)
	}
	must(objects.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}, "scale"))(t)
	now = must(objects.Get(ctx, "a", metav1.GetOptions{}))(t)
	if n, _, _ := unstructured.NestedInt64(now.Object, "spec", "replicas"); n != 3 || now.GetGeneration() != was.GetGeneration()+1 {
		t.Errorf("scaled: %v", now.Object)
	}
}

// checkApply has two managers apply entries of one list, and each the other's field.
func checkApply(t *testing.T, objects dynamic.ResourceInterface, gvr schema.GroupVersionResource) {
	t.Helper()
	ctx := t.Context()
	apply := func(manager string, spec map[string]any) (*unstructured.Unstructured, error) {
		return objects.Apply(ctx, "applied", widget(gvr, "applied", spec), metav1.ApplyOptions{FieldManager: manager})
	}
	port := func(name string) []any { return []any{map[string]any{"name": name, "port": int64(1)}} }
	must(apply("one", map[string]any{"size": "small", "ports": port("a")}))(t)
	got := must(apply("two", map[string]any{"ports": port("b")}))(t)
	if ports, _, _ := unstructured.NestedSlice(got.Object, "spec", "ports"); len(ports) != 2 {
		t.Errorf("entries of two managers: %v", ports)
	}
	if _, err := apply("two", map[string]any{"size": "large"}); !apierrors.IsConflict(err) {
		t.Errorf("another's field: %v", err)
	}
	if err := objects.Delete(ctx, "applied", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// checkTable asks for what kubectl get prints.
func checkTable(t *testing.T, ns string, gvr schema.GroupVersionResource) {
	t.Helper()
	body := must(shared.client.RESTClient().Get().AbsPath("/apis", gvr.Group, gvr.Version, "namespaces", ns, gvr.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context()))(t)
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.ColumnDefinitions) != 2 || table.ColumnDefinitions[1].Name != "Size" || len(table.Rows) != 2 {
		t.Errorf("%s", body)
	}
}

// checkDocuments looks for the kind, and for one of each other server, in the documents
// that kubectl explain and others read.
func checkDocuments(t *testing.T, gvr schema.GroupVersionResource) {
	t.Helper()
	get := func(path string) string {
		return string(must(shared.client.RESTClient().Get().AbsPath(path).DoRaw(t.Context()))(t))
	}
	root := get("/openapi/v3")
	for _, gv := range []string{gvr.GroupVersion().String(), "apps/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1"} {
		if !strings.Contains(root, `"apis/`+gv+`"`) {
			t.Errorf("%s is not in %s", gv, root)
		}
	}
	if one := get("/openapi/v3/apis/" + gvr.GroupVersion().String()); !strings.Contains(one, "How big it is.") {
		t.Errorf("%.300s", one)
	}
	second := get("/openapi/v2")
	for _, want := range []string{"How big it is.", "io.k8s.api.apps.v1.Deployment", "CustomResourceDefinitionSpec", "APIServiceSpec"} {
		if !strings.Contains(second, want) {
			t.Errorf("%s is not in the document", want)
		}
	}
}

// A definition and its objects are there after a restart, and objects of a kind that
// is to be encrypted cannot be read in the store. Whom a user has given metrics.k8s.io
// keeps it, until the user takes it back.
func TestDefinitionsOutliveServer(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	gvr := schema.GroupVersionResource{Group: "restart.example.com", Version: "v1", Resource: "widgets"}
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [widgets.restart.example.com]\n" +
		"  providers:\n  - secretbox: {keys: [{name: a, secret: " + base64.StdEncoding.EncodeToString(make([]byte, 32)) + "}]}\n"
	if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(use func(in *instance, usage func() *unstructured.Unstructured, registry dynamic.ResourceInterface)) {
		t.Helper()
		in := must(startWith(dir, func(c *apiserver.Config) {
			c.Encryption = apiserver.Encryption{ConfigFile: keys}
			c.Usage = func(apiserver.Getters) usage.Source { return nil } // nobody asks
		}))(t)
		registry := objectsOf(t, in, schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, "")
		use(in, func() *unstructured.Unstructured {
			return must(registry.Get(ctx, "v1beta1.metrics.k8s.io", metav1.GetOptions{}))(t)
		}, registry)
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}
	service := func(u *unstructured.Unstructured) string {
		name, _, _ := unstructured.NestedString(u.Object, "spec", "service", "name")
		return name
	}
	with(func(in *instance, usage func() *unstructured.Unstructured, registry dynamic.ResourceInterface) {
		define(t, in, gvr.Group)
		must(objectsOf(t, in, gvr, corev1.NamespaceDefault).Create(ctx, widget(gvr, "kept", map[string]any{"size": "small"}), metav1.CreateOptions{}))(t)
		if service(usage()) != "" {
			t.Errorf("at first: %v", usage())
		}
		patch := `{"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"kube-system","name":"metrics-server"}}}`
		must(registry.Patch(ctx, "v1beta1.metrics.k8s.io", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	})
	if inStore(t, dir, `"name":"kept"`) {
		t.Error("an object of a kind that is encrypted can be read")
	}
	with(func(in *instance, usage func() *unstructured.Unstructured, registry dynamic.ResourceInterface) {
		must(objectsOf(t, in, gvr, corev1.NamespaceDefault).Get(ctx, "kept", metav1.GetOptions{}))(t)
		awaitKind(t, in, gvr)
		if service(usage()) != "metrics-server" {
			t.Errorf("after a restart: %v", usage())
		}
		if err := registry.Delete(ctx, "v1beta1.metrics.k8s.io", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, "it is the server's again", func() bool {
			u, err := registry.Get(ctx, "v1beta1.metrics.k8s.io", metav1.GetOptions{})
			return err == nil && service(u) == ""
		})
	})
}

// The groups that the server serves itself have APIServices, each available.
func TestRegistration(t *testing.T) {
	get := func(name string) (*unstructured.Unstructured, error) {
		return objectsOf(t, shared, schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}, "").Get(t.Context(), name, metav1.GetOptions{})
	}
	for _, name := range []string{"v1.", "v1.apps", "v1.events.k8s.io", "v1.apiextensions.k8s.io"} {
		got := must(get(name))(t)
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		if len(conditions) != 1 || conditions[0].(map[string]any)["status"] != "True" || got.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] == "" {
			t.Errorf("%s: %v", name, got.Object)
		}
	}
	groups := must(shared.client.Discovery().ServerGroups())(t)
	var names []string
	for _, g := range groups.Groups {
		names = append(names, g.Name)
	}
	if all := strings.Join(names, " "); !strings.Contains(all, "apiextensions.k8s.io") || !strings.Contains(all, "apiregistration.k8s.io") || !strings.Contains(all, "apps events.k8s.io authentication.k8s.io") {
		t.Errorf("order of the groups: %s", all)
	}
}
