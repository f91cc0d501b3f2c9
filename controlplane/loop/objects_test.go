package loop_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Names that lead elsewhere are not asked for, changed or deleted.
func TestObjectsStayInTheirPlace(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/ns/pods/a") && r.URL.Path != "/api/v1/nodes/a" {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	defer api.Close()
	all, err := loop.NewObjects(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	pods, nodes := all.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace("ns"), all.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	for where, r := range map[string]metadata.ResourceInterface{"a namespace": pods, "the cluster": nodes} {
		for _, name := range []string{"..", ".", "../b", "a/log", "../../../watch/pods", "a%2fb", "../../../../../../api/v1/nodes/n1"} {
			_, get := r.Get(t.Context(), name, metav1.GetOptions{})
			_, patch := r.Patch(t.Context(), name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			if remove := r.Delete(t.Context(), name, metav1.DeleteOptions{}); !apierrors.IsNotFound(get) || !apierrors.IsBadRequest(patch) || !apierrors.IsBadRequest(remove) {
				t.Errorf("%q of %s: get %v, patch %v, delete %v", name, where, get, patch, remove)
			}
		}
		if err := r.Delete(t.Context(), "a", metav1.DeleteOptions{}); err == nil || apierrors.IsBadRequest(err) {
			t.Errorf("an object of %s is not deleted: %v", where, err)
		}
	}
}
