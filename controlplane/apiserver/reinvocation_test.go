package apiserver_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// answerInjection adds a container to pods that have none of the name at "/inject", and an
// annotation to pods that have it at "/early".
func answerInjection(w http.ResponseWriter, r *http.Request) {
	var review admissionreviewv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	switch has := strings.Contains(string(review.Request.Object.Raw), `"sidecar"`); {
	case strings.HasSuffix(r.URL.Path, "/inject") && !has:
		answer.Patch = []byte(`[{"op":"add","path":"/spec/containers/-","value":{"name":"sidecar","image":"sidecar:1"}}]`)
	case strings.HasSuffix(r.URL.Path, "/early") && has:
		answer.Patch = []byte(`[{"op":"add","path":"/metadata/annotations/early","value":"again"}]`)
	}
	if answer.Patch != nil {
		answer.PatchType = ptr.To(admissionreviewv1.PatchTypeJSONPatch)
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client notices
}

// What a webhook adds is seen by the plugins and by the webhooks before it that want that.
func TestReinvocation(t *testing.T) {
	client, _, ns := startHooked(t, nil, nil)
	ctx, h := t.Context(), startHookWith(t, answerInjection)
	must(client.CoreV1().LimitRanges(ns).Create(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")},
	}}}}, metav1.CreateOptions{}))(t)
	rules := configMapRules()
	rules[0].Resources = []string{"pods"}
	hook := func(name string, policy admissionv1.ReinvocationPolicyType) admissionv1.MutatingWebhook {
		return admissionv1.MutatingWebhook{
			Name: name + ".hawser.dev", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(h.URL + "/" + name), CABundle: h.ca}, Rules: rules, ReinvocationPolicy: &policy,
			NamespaceSelector: inNamespace(ns), SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}
	}
	must(client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "inject"},
		Webhooks:   []admissionv1.MutatingWebhook{hook("early", admissionv1.IfNeededReinvocationPolicy), hook("inject", admissionv1.NeverReinvocationPolicy)},
	}, metav1.CreateOptions{}))(t)
	var pod *corev1.Pod
	until(t, "a container is injected", func() bool {
		p, err := client.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Log(err) // the namespace has no account yet
			return false
		}
		pod = p
		return len(p.Spec.Containers) > 1
	})
	if len(pod.Spec.Containers) != 2 {
		t.Fatalf("injected more than once: %v", pod.Spec.Containers)
	}
	if limit := pod.Spec.Containers[1].Resources.Limits.Cpu(); limit.String() != "200m" {
		t.Errorf("the injected container has the limit %v", limit)
	}
	if pod.Annotations["early"] != "again" {
		t.Errorf("a webhook whose reinvocationPolicy is IfNeeded was not asked again: %v", pod.Annotations)
	}
}
