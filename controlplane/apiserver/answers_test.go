package apiserver_test

// Webhooks whose answers do not end.

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestEndlessWebhook: an answer is read up to its bound, and the request fails, or goes on
// where the webhook's policy says so.
func TestEndlessWebhook(t *testing.T) {
	read := make(chan int, 8)
	h := startHookWith(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		n, err := 0, error(nil)
		for chunk := bytes.Repeat([]byte(" "), 1<<16); err == nil && n < mostSent; {
			var more int
			more, err = w.Write(chunk)
			n += more
		}
		read <- n
	})
	client, _, ns := startHooked(t, nil, nil)
	hook := validatingHook(ns, admissionv1.WebhookClientConfig{URL: ptr.To(h.URL), CABundle: h.ca}, admissionv1.Fail)
	must(client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), hook, metav1.CreateOptions{}))(t)
	if err := refusedBad(t, client, ns); !strings.Contains(err.Error(), "the answer has more than") {
		t.Errorf("got %v", err)
	}
	if n := <-read; n >= mostSent {
		t.Errorf("%d bytes were read", n)
	}
}
