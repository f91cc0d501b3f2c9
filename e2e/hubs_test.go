// Several hubs beside one cluster: any of them reaches any node, they say one thing of it, and
// nodes outlive hubs.

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"github.com/hawser-project/hawser/controlplane/servers"
	"github.com/hawser-project/hawser/e2e/await"
)

// besides is another hub beside the same cluster, of an ID.
func (h *besideHub) besides(t *testing.T, id string) *besideHub {
	t.Helper()
	o := *h
	o.front = &front{h.cluster, filepath.Join(h.dir, id+".sock")}
	o.data, o.port, o.health, o.connectPort = filepath.Join(h.dir, id), await.FreePort(t), await.FreePort(t), await.FreePort(t)
	return &o
}

// grpcSocket is where the hub's front end is that speaks konnectivity's gRPC.
func (h *besideHub) grpcSocket() string { return h.socket + "-g" }

// byGRPC dials through that, as a kube-apiserver does.
func (h *besideHub) byGRPC(ctx context.Context, network, addr string) (net.Conn, error) {
	unix := func(ctx context.Context, path string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	tunnel, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, context.WithoutCancel(ctx), "passthrough:///"+h.grpcSocket(),
		grpc.WithContextDialer(unix), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return tunnel.DialContext(ctx, network, addr)
}

// reachesBoth says whether a kubelet answers through both front ends, asked once each.
func (h *besideHub) reachesBoth(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, reachedWithin)
	defer cancel()
	if err := h.kubeletAnswers(ctx, name); err != nil {
		return fmt.Errorf("CONNECT: %w", err)
	}
	if err := h.answersBy(ctx, name, h.byGRPC); err != nil {
		return fmt.Errorf("gRPC: %w", err)
	}
	return nil
}

// isAt waits until the Node says which hubs have it.
func (h *besideHub) isAt(t *testing.T, name, at string) {
	t.Helper()
	eventually(t, name+" says that it is at "+at, func() error {
		n, err := h.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := condition(n, tunnelConnected); !strings.Contains(c.Message, ", at server "+at) {
			return fmt.Errorf("conditions: %v", n.Status.Conditions)
		}
		return nil
	})
}

// TestTwoHubs: hubs beside one cluster find each other; both front ends of each reach nodes
// that the other has; one hub speaks of a node; agents that know both are in reach of the
// other at once when one is killed; what they may do in the cluster is enough, also to elect a leader.
func TestTwoHubs(t *testing.T) {
	t.Parallel()
	h := startBeside(t)
	a, b := h.besides(t, "hub-a"), h.besides(t, "hub-b")
	for id, hub := range map[string]*besideHub{"hub-a": a, "hub-b": b} {
		hub.start(t, "--server-id", id, "--konnectivity-uds", hub.grpcSocket())
	}
	eventually(t, "both have told of themselves", func() error {
		all, err := h.client.CoordinationV1().Leases(servers.Namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) != 2 {
			err = fmt.Errorf("%d have", len(all.Items))
		}
		return err
	})
	a.joins(t, "near-a")
	b.joins(t, "near-b")
	b.joins(t, "both", a)
	for _, name := range []string{"near-a", "near-b", "both"} {
		h.waitNode(t, name)
		for _, hub := range []*besideHub{a, b} {
			eventually(t, name+" is in reach", func() error { return hub.reachesBoth(t.Context(), name) })
		}
	}
	h.isAt(t, "near-a", "hub-a")
	h.isAt(t, "near-b", "hub-b")
	eventually(t, "both hubs have the node", func() error {
		n, err := h.client.CoreV1().Nodes().Get(t.Context(), "both", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := condition(n, tunnelConnected); !strings.Contains(c.Message, ", also at hub-") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})

	b.killHub(t)
	killed := time.Now()
	for {
		err := a.reachesBoth(t.Context(), "both")
		took := time.Since(killed)
		if err == nil {
			t.Logf("in reach %v after a hub was killed", took)
			break
		}
		if took > reachedWithin {
			t.Fatalf("out of reach for %v: %v", took, err)
		}
	}
	h.isAt(t, "both", "hub-a")
	eventually(t, "a node that nobody has says so", func() error {
		n, err := h.client.CoreV1().Nodes().Get(t.Context(), "near-b", metav1.GetOptions{})
		if err == nil && condition(n, tunnelConnected).Status != "False" {
			err = errors.New(condition(n, tunnelConnected).Message)
		}
		return err
	})
	must(t, a.reachesBoth(t.Context(), "near-a"))
	// A hub that writes against another one does so many times a second.
	if n := h.asked(t)["patch nodes/status in "]; n > 60 {
		t.Errorf("the conditions of three nodes were written %d times", n)
	}
	// With controllers that are chosen by name, of which none has a role for Leases, it is ready once
	// it leads.
	h.grant(t, "--controllers=tokencleaner")
	c := h.besides(t, "hub-c")
	c.start(t, "--server-id", "hub-c", "--controllers=tokencleaner")
}
