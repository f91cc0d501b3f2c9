// The servers of a join command, with an API server of ours and with another one.

package main

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/servers"
)

// ofVersion has a cluster say that its API server is of a version.
func ofVersion(client *fake.Clientset, v string) *fake.Clientset {
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: v}
	return client
}

// hubLease is the Lease of a hub that was renewed so long ago.
func hubLease(id, address string, ago time.Duration) runtime.Object {
	renewed := metav1.NewMicroTime(time.Now().Add(-ago))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: id, Namespace: servers.Namespace, Annotations: map[string]string{servers.Address: address}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
	}
}

// TestJoinCommandNamesHubs: beside another API server a join command names the hubs, which have the
// tunnel, and says that nodes may reach them otherwise. It is refused before a token is made if there are
// none.
func TestJoinCommandNamesHubs(t *testing.T) {
	const other = "v1.37.2"
	for name, tt := range map[string]struct {
		version string
		leases  []runtime.Object
		want    string // after --server; empty means refused
	}{
		"embedded":          {apiserver.Version, []runtime.Object{hubLease("a", "10.0.0.1:7000", 0)}, "https://192.0.2.1:6443"},
		"no hub":            {other, nil, ""},
		"hubs":              {other, []runtime.Object{hubLease("b", "hub.example.net:8132", 0), hubLease("a", "10.0.0.1:8132", 0)}, "https://10.0.0.1:8132,https://hub.example.net:8132"},
		"one is gone":       {other, []runtime.Object{hubLease("a", "10.0.0.1:8132", time.Hour), hubLease("b", "10.0.0.2:8132", 0)}, "https://10.0.0.2:8132"},
		"all seem gone":     {other, []runtime.Object{hubLease("a", "10.0.0.1:8132", time.Hour)}, "https://10.0.0.1:8132"},
		"no address at all": {other, []runtime.Object{hubLease("a", "$(reboot):8132", 0), hubLease("b", "", 0)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := ofVersion(fake.NewClientset(append(tt.leases, published("192.0.2.1"))...), tt.version)
			var out, notes strings.Builder
			err := createToken(t.Context(), &out, &notes, client, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: pkitest.New(t, "ca").PEM()}}, time.Hour, "", true, "")
			if tt.want != "" {
				if err != nil || !strings.HasPrefix(out.String(), "hawser-agent --server "+tt.want+" --token ") {
					t.Errorf("%q, %v; want %s", out.String(), err, tt.want)
				}
				if strings.Contains(notes.String(), "by which hubs reach each other") != (tt.version == other) {
					t.Errorf("it says %q", notes.String())
				}
				return
			}
			clitest.Refused(t, err, "give --server https://HUB:8132")
			if secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{}); err != nil || len(secrets.Items) > 0 {
				t.Errorf("%d tokens were made, %v", len(secrets.Items), err)
			}
		})
	}
}
