// The scale subresource.

package apiserver_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

func TestScale(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	deployments := shared.client.AppsV1().Deployments(ns)
	labels := map[string]string{"app": "x"}
	d := must(deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("").Spec},
		},
	}, metav1.CreateOptions{}))(t)
	if *d.Spec.Replicas != 1 || d.Generation != 1 {
		t.Errorf("new deployment: %+v", d)
	}
	scale := must(deployments.GetScale(ctx, "d", metav1.GetOptions{}))(t)
	if scale.Spec.Replicas != 1 || scale.Status.Selector != "app=x" {
		t.Errorf("scale: %+v", scale)
	}
	table := must(shared.client.AppsV1().RESTClient().Get().Namespace(ns).Resource("deployments").Name("d").SubResource("scale").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx))(t)
	if !strings.Contains(string(table), `"name":"Desired"`) {
		t.Errorf("kubectl get --subresource=scale: %s", table)
	}
	scale.Spec.Replicas = 5
	must(deployments.UpdateScale(ctx, "d", scale, metav1.UpdateOptions{}))(t)
	if d = must(deployments.Get(ctx, "d", metav1.GetOptions{}))(t); *d.Spec.Replicas != 5 || d.Generation != 2 {
		t.Errorf("scaled: %d, generation %d", *d.Spec.Replicas, d.Generation)
	}
	if _, err := deployments.UpdateScale(ctx, "d", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: -1}}, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("scale to -1: %v", err)
	}
	d.Status.Replicas, d.Labels = 5, map[string]string{"from": "status"}
	if d = must(deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{}))(t); d.Status.Replicas != 5 || d.Labels["from"] != "" || d.Generation != 2 {
		t.Errorf("status: %+v", d)
	}
}

// TestScaleOwnsReplicas: who scales an object takes the replicas from who applied them.
func TestScaleOwnsReplicas(t *testing.T) {
	for _, k := range []struct {
		apiVersion, kind, resource string
		client                     rest.Interface
	}{
		{"apps/v1", "Deployment", "deployments", shared.client.AppsV1().RESTClient()},
		{"apps/v1", "ReplicaSet", "replicasets", shared.client.AppsV1().RESTClient()},
		{"apps/v1", "StatefulSet", "statefulsets", shared.client.AppsV1().RESTClient()},
		{"v1", "ReplicationController", "replicationcontrollers", shared.client.CoreV1().RESTClient()},
	} {
		t.Run(k.kind, func(t *testing.T) {
			ctx, ns := t.Context(), namespace(t)
			patch := func(kind types.PatchType, manager, body string, subresource ...string) (int32, error) {
				r := k.client.Patch(kind).Namespace(ns).Resource(k.resource).Name("x").SubResource(subresource...).Param("fieldManager", manager)
				result := r.Body([]byte(body)).Do(ctx)
				if err := result.Error(); err != nil {
					return 0, err
				}
				var o struct{ Spec struct{ Replicas int32 } }
				err := json.Unmarshal(must(result.Raw())(t), &o)
				return o.Spec.Replicas, err
			}
			apply := func(replicas string) (int32, error) {
				selector := `{"matchLabels":{"a":"b"}}`
				if k.kind == "ReplicationController" {
					selector = `{"a":"b"}`
				}
				return patch(types.ApplyPatchType, "kubectl", fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"x"},"spec":{%s"selector":%s,
					"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, k.apiVersion, k.kind, replicas, selector))
			}
			must(apply(`"replicas":1,`))(t)
			if n := must(patch(types.MergePatchType, "kubectl", `{"spec":{"replicas":3}}`, "scale"))(t); n != 3 {
				t.Errorf("scaled to %d", n)
			}
			if _, err := apply(`"replicas":1,`); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "kubectl" with subresource "scale"`) {
				t.Errorf("apply with other replicas: %v", err)
			}
			if n := must(apply(""))(t); n != 3 {
				t.Errorf("apply without replicas: %d", n)
			}
			scale := `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"x"},"spec":{"replicas":4}}`
			if _, err := patch(types.ApplyPatchType, "other", scale, "scale"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "kubectl"`) {
				t.Errorf("apply of a scale: %v", err)
			}
			if n := must(patch(types.MergePatchType, "other", `{"spec":{"replicas":4}}`, "scale"))(t); n != 4 {
				t.Errorf("scaled to %d", n)
			}
			if n := must(patch(types.ApplyPatchType, "other", scale, "scale"))(t); n != 4 {
				t.Errorf("apply of the scale that there is: %d", n)
			}
		})
	}
}
