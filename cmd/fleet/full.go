// A full node: what hawser-agent consists of, put together in the same way.

package fleet

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/kubeletapi"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// kubeletBacklog is how many connections may wait for a node's kubelet API.
const kubeletBacklog = 16

// liveFull is one life of a full node.
func (m *member) liveFull(ctx context.Context) error {
	streams := memnet.NewHandoff(nodeAddr(m.name), kubeletBacklog)
	link, err := m.fleet.newAgent(m, streams)
	if err != nil {
		return err
	}
	api, conns, err := m.newAPI(link)
	if err != nil {
		return err
	}
	cfg := &m.fleet.cfg
	n, err := node.New(node.Config{
		Name: m.name, API: api, Runtime: m.runtime, DataDir: m.fleet.dir(m.name), Version: version,
		CloseConnections: conns.Close, Labels: m.fleet.labels(m), IPs: []netip.Addr{m.ip}, MaxPods: cfg.MaxPods,
		StatusUpdate: cfg.StatusUpdate, StatusReport: cfg.StatusReport, LeaseDuration: cfg.LeaseDuration, Log: cfg.Log,
		Thresholds: node.Thresholds{Hard: []node.Threshold{}}, // what this machine is short of all nodes would be
	})
	if err != nil {
		return err
	}
	rotation, err := bootstrap.NewRotation(bootstrap.RotationConfig{
		Identity: m.identity, Requests: api.CSRs,
		ConfigMaps: api.ConfigMaps(metav1.NamespaceSystem), TrustChanged: conns.Renew, Renewed: conns.Close, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	kubelet, err := kubeletapi.New(kubeletapi.Config{
		NodeName: m.name, Pods: n.Pods(), Runtime: m.runtime, TLS: rotation.ServerTLS(), ClientCAs: m.identity.ClientCAs, DataDir: m.fleet.cfg.Dir, Log: cfg.Log,
	})
	if err != nil {
		return fmt.Errorf("kubelet API: %w", err)
	}
	return m.together(ctx, link, conns, n.Run, rotation.Run, func(ctx context.Context) error { return kubelet.Serve(ctx, streams) })
}
