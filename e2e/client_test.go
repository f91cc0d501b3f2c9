// Programs written by others: client-go's informers and leader election, and the
// egress selector of k8s.io/apiserver.

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func portOf(c *cluster) string { return strconv.Itoa(c.port) }

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// waitNode waits until the node is Ready.
func (c *cluster) waitNode(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" is Ready", func() error {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", n.Status.Conditions)
	})
}

func TestClients(t *testing.T) {
	uds := filepath.Join(shortTempDir(t), "connect.sock")
	connectPort := strconv.Itoa(freePort(t))
	c := startUp(t, "--nodes", "1", "--server-arg=--connect-uds="+uds, "--server-arg=--connect-port="+connectPort)
	t.Run("informers", func(t *testing.T) { testInformers(t, c) })
	t.Run("leader election", func(t *testing.T) { testLeaderElection(t, c) })
	t.Run("egress selector over a unix socket", func(t *testing.T) {
		testEgress(t, c, &apiserver.Transport{UDS: &apiserver.UDSTransport{UDSName: uds}})
	})
	t.Run("egress selector over mutual TLS", func(t *testing.T) {
		pki := filepath.Join(c.dir, "pki")
		testEgress(t, c, &apiserver.Transport{TCP: &apiserver.TCPTransport{
			URL: "https://127.0.0.1:" + connectPort,
			TLSConfig: &apiserver.TLSConfig{
				CABundle:   filepath.Join(pki, "ca.crt"),
				ClientCert: filepath.Join(pki, "connect-client.crt"),
				ClientKey:  filepath.Join(pki, "connect-client.key"),
			},
		}})
	})
}

func testInformers(t *testing.T, c *cluster) {
	factory := informers.NewSharedInformerFactory(c.client, 0)
	seen := make(chan string, 1024)
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "add " + o.(*corev1.ConfigMap).Name },
		UpdateFunc: func(_, o any) { seen <- "update " + o.(*corev1.ConfigMap).Name },
		DeleteFunc: func(o any) {
			if m, ok := o.(*corev1.ConfigMap); ok {
				seen <- "delete " + m.Name
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the cache never synced")
	}
	maps := c.client.CoreV1().ConfigMaps("default")
	m, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data = map[string]string{"a": "b"}
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"add watched", "update watched", "delete watched"} {
		for got := ""; got != want; {
			select {
			case got = <-seen:
			case <-time.After(patience):
				t.Fatalf("no %q", want)
			}
		}
	}
}

func testLeaderElection(t *testing.T, c *cluster) {
	elect := func(ctx context.Context, id string, won chan<- string) {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "e2e"}, Client: c.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: id},
			},
			LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { won <- id },
				OnStoppedLeading: func() {},
			},
		})
	}
	won := make(chan string, 2)
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	go func() { elect(first, "first", won); ended <- struct{}{} }()
	if got := <-won; got != "first" {
		t.Fatalf("%s leads", got)
	}
	go func() { elect(second, "second", won); ended <- struct{}{} }()
	stopFirst()
	if got := <-won; got != "second" {
		t.Fatalf("%s leads", got)
	}
	stopSecond()
	<-ended
	<-ended
}

// testEgress has a kubelet's API reached by the very client that kube-apiserver
// uses.
func testEgress(t *testing.T, c *cluster, transport *apiserver.Transport) {
	selector, err := egressselector.NewEgressSelector(&apiserver.EgressSelectorConfiguration{
		EgressSelections: []apiserver.EgressSelection{{
			Name:       "cluster",
			Connection: apiserver.Connection{ProxyProtocol: apiserver.ProtocolHTTPConnect, Transport: transport},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
	if err != nil {
		t.Fatal(err)
	}
	pki := filepath.Join(c.dir, "pki")
	kubelet, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://node-1:10250",
		Dial: dial,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: filepath.Join(pki, "kubelet-ca.crt"), CertFile: filepath.Join(pki, "kubelet-client.crt"), KeyFile: filepath.Join(pki, "kubelet-client.key"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	body, err := kubelet.RESTClient().Get().AbsPath("/healthz").DoRaw(t.Context())
	if err != nil || string(body) != "ok" {
		t.Errorf("healthz: %q, %v", body, err)
	}
	if _, err := dial(t.Context(), "tcp", "no-such-node:10250"); err == nil {
		t.Error("a node that does not exist was reached")
	} else if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no quick answer: %v", err)
	}
}
