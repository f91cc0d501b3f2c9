package controlplane

// A test of Secrets with tokens of service accounts, against a real API server.

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestAccountSecrets: such a Secret gets a token, by which its holder is the account for as long as
// both are there, and goes with the account.
func TestAccountSecrets(t *testing.T) {
	c := workload{startCluster(t)}
	ctx, secrets, accounts := t.Context(), c.admin.CoreV1().Secrets("default"), c.admin.CoreV1().ServiceAccounts("default")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	secret := func(name, account string) {
		t.Helper()
		_, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
			Type:       corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		must(err)
	}
	robot, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	must(err)
	ca, err := os.ReadFile(c.ca)
	must(err)
	filled := func(name string) *corev1.Secret {
		t.Helper()
		var s *corev1.Secret
		c.becomes(string(ca)+" default "+string(robot.UID), func() string {
			if s, err = secrets.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err.Error()
			}
			return string(s.Data[corev1.ServiceAccountRootCAKey]) + " " + string(s.Data[corev1.ServiceAccountNamespaceKey]) + " " + s.Annotations[corev1.ServiceAccountUIDKey]
		})
		return s
	}
	holder := func(s *corev1.Secret) func() string {
		conf := &rest.Config{Host: c.host, BearerToken: string(s.Data[corev1.ServiceAccountTokenKey]), TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}}
		client := kubernetes.NewForConfigOrDie(conf)
		return func() string {
			_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return string(apierrors.ReasonForError(err))
		}
	}
	secret("first", "robot")
	secret("second", "robot")
	first, second := holder(filled("first")), holder(filled("second"))
	c.becomes(string(metav1.StatusReasonForbidden), first) // known, and may do nothing
	must(secrets.Delete(ctx, "first", metav1.DeleteOptions{}))
	c.becomes(string(metav1.StatusReasonUnauthorized), first)
	c.becomes(string(metav1.StatusReasonForbidden), second)

	gone := func(name string) {
		t.Helper()
		c.becomes(string(metav1.StatusReasonNotFound), func() string {
			_, err := secrets.Get(ctx, name, metav1.GetOptions{})
			return string(apierrors.ReasonForError(err))
		})
	}
	secret("nobodys", "nobody")
	gone("nobodys")
	must(accounts.Delete(ctx, "robot", metav1.DeleteOptions{}))
	_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	must(err)
	gone("second") // it was another robot's
	c.becomes(string(metav1.StatusReasonUnauthorized), second)
	if !c.writers.wrote("serviceaccount-token-controller") {
		t.Error("nothing was written by the controller")
	}
}
