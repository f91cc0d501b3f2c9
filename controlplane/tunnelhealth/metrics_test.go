package tunnelhealth

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// Each of the three conditions is counted by its three statuses, also those that no node has.
func TestNodesByHealth(t *testing.T) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	with := func(t corev1.NodeConditionType, s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s}
	}
	for _, n := range []*corev1.Node{
		node("well", with(corev1.NodeReady, corev1.ConditionTrue), with(evidence.TunnelConnected, corev1.ConditionTrue), with(evidence.DataPathReady, corev1.ConditionTrue)),
		node("cut", with(corev1.NodeReady, corev1.ConditionUnknown), with(evidence.TunnelConnected, corev1.ConditionFalse), with(evidence.DataPathReady, corev1.ConditionUnknown)),
		node("plain", with(corev1.NodeReady, corev1.ConditionTrue), with(corev1.NodeDiskPressure, corev1.ConditionFalse)),
		node("new"),
	} {
		if err := store.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	r := prometheus.NewPedanticRegistry()
	newMetrics(r, corelisters.NewNodeLister(store))
	const want = `# HELP hawser_tunnel_health_nodes Nodes by the status of a condition; those that never had a tunnel have Ready alone.
# TYPE hawser_tunnel_health_nodes gauge
hawser_tunnel_health_nodes{condition="DataPathReady",status="false"} 0
hawser_tunnel_health_nodes{condition="DataPathReady",status="true"} 1
hawser_tunnel_health_nodes{condition="DataPathReady",status="unknown"} 1
hawser_tunnel_health_nodes{condition="Ready",status="false"} 0
hawser_tunnel_health_nodes{condition="Ready",status="true"} 2
hawser_tunnel_health_nodes{condition="Ready",status="unknown"} 1
hawser_tunnel_health_nodes{condition="TunnelConnected",status="false"} 1
hawser_tunnel_health_nodes{condition="TunnelConnected",status="true"} 1
hawser_tunnel_health_nodes{condition="TunnelConnected",status="unknown"} 0
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), prefix+"nodes"); err != nil {
		t.Error(err)
	}
}
