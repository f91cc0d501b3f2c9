// Programs of Kubernetes itself. The tests are skipped without them: make kubernetes builds
// them.

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var kubernetesDir = flag.String("e2e.kubernetes", "", "directory with programs of Kubernetes; without it the tests that need them are skipped")

// needKubernetes skips the test without the programs, and where they cannot run.
func needKubernetes(t *testing.T) {
	t.Helper()
	if *kubernetesDir == "" {
		t.Skip("SKIPPED: no programs of Kubernetes (-e2e.kubernetes): make kubernetes builds them, and runs this test")
	}
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a kubelet needs root")
	}
	for _, name := range []string{"containerd", "ctr", "runc", "busybox", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("SKIPPED: %v: install containerd, runc, busybox-static, containernetworking-plugins and util-linux", err)
		}
	}
}

// kubeconfigOf is a kubeconfig of one cluster, for whoever has the key.
func kubeconfigOf(cluster clientcmdapi.Cluster, cert, key string) clientcmdapi.Config {
	conf := clientcmdapi.NewConfig()
	conf.Clusters["c"] = &cluster
	conf.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificate: cert, ClientKey: key}
	conf.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	conf.CurrentContext = "x"
	return *conf
}

// approve approves what kubelets ask to serve with, as a person does.
func (c *cluster) approve(t *testing.T) {
	t.Helper()
	requests := c.client.CertificatesV1().CertificateSigningRequests()
	approve := func(o any) {
		r := o.(*certificatesv1.CertificateSigningRequest).DeepCopy()
		if len(r.Status.Conditions) > 0 || r.Spec.SignerName != certificatesv1.KubeletServingSignerName {
			return
		}
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
		}}
		if _, err := requests.UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil && t.Context().Err() == nil {
			t.Logf("approve %s: %v", r.Name, err)
		}
	}
	factory := informers.NewSharedInformerFactory(c.client, 5*time.Second) // what failed is tried again
	_, err := factory.Certificates().V1().CertificateSigningRequests().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: approve, UpdateFunc: func(_, o any) { approve(o) },
	})
	must(t, err)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown) // its context is done by then
}

// TestKubernetesKubelet has a kubelet of Kubernetes under an agent of our own server: it
// registers, is Ready and keeps its lease, all through the tunnel, also while its connections are
// cut twenty times; and so does a log that is followed.
func TestKubernetesKubelet(t *testing.T) {
	needKubernetes(t)
	m := startMachine(t)
	c := startUp(t, "--nodes", "0")
	c.approve(t)
	_, client := bin(t)
	way := &proxy{direct: fmt.Sprintf("127.0.0.1:%d", c.port)}
	way.open(t, "127.0.0.1:0")
	t.Cleanup(way.breakDown)
	join := c.joinCommand(t, filepath.Join(client, "hawser"))[1:]
	join[1] = "https://" + way.addr // --server
	c.joinKubelet(t, m, "node-1", join...)
	c.waitNode(t, "node-1")
	since := c.leaseOf(t, "node-1").Spec.RenewTime.Time
	eventually(t, "the kubelet renews its lease", func() error {
		if !c.leaseOf(t, "node-1").Spec.RenewTime.After(since) {
			return errors.New("not yet")
		}
		return nil
	})
	c.podWith(t, "numbers", `,"imagePullPolicy":"Never"`, `,"nodeName":"node-1"`, "sh", "-c", "i=0; while :; do i=$((i+1)); echo number $i; sleep 0.05; done")
	numbers := followLines(t, c, "numbers", func(i int64) string { return fmt.Sprintf("number %d", i) })
	for range 20 {
		seen, renewed := numbers.count(), c.leaseOf(t, "node-1").Spec.RenewTime.Time
		way.cut()
		eventually(t, "the log goes on", func() error {
			if numbers.count() < seen+20 {
				return errors.New("not yet")
			}
			return nil
		})
		if gap := c.leaseOf(t, "node-1").Spec.RenewTime.Sub(renewed); gap > 40*time.Second {
			t.Errorf("the lease was not renewed for %v", gap)
		}
	}
	must(t, numbers.finish())
	n, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	must(t, err)
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && (cond.Status != corev1.ConditionTrue || cond.LastTransitionTime.After(since)) {
			t.Errorf("the node is not Ready since before the cuts: %+v", cond)
		}
	}
	c.mustKubectl(t, "", "delete", "pod", "numbers", "--now")
	// It asks for this as well, and goes on without.
	if _, err := c.client.CertificatesV1().PodCertificateRequests("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("requests for pods' certificates: %v, and README says that they are not served", err)
	}
}
