package explain

// Fleets, and the page about them.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth"
)

// at is a node of a name and a place.
func at(name, label, value string, change ...func(*scene)) Objects {
	s := healthy()
	s.o.Name, s.o.Node.Name = name, name
	s.o.Node.Labels = map[string]string{label: value}
	for _, c := range change {
		c(s)
	}
	return s.o
}

// frozenSite is a node whose site has lost its network.
func frozenSite(s *scene) {
	s.lost()
	s.noTunnel("LinkSilent")
	s.o.Events = []corev1.Event{{
		Reason: EvictionFrozen, LastTimestamp: ago(3 * time.Minute), Type: corev1.EventTypeWarning,
		Message: "No pod is evicted from node " + s.o.Name + ": SiteLostNetwork: all 3 nodes of site lyon fell silent together; pods are kept until 15:01:11",
	}}
}

// evicted is a node that fell silent alone and has the taint.
func evicted(s *scene) {
	s.lost()
	s.noTunnel("LinkSilent")
	added := ago(time.Minute)
	s.o.Node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}}
}

func TestFleet(t *testing.T) {
	f := Fleet{Time: now}
	f.Add(at("a-1", corev1.LabelTopologyZone, "z", evicted))
	f.Add(at("a-2", corev1.LabelTopologyZone, "z", func(s *scene) { s.o.Node.Spec.Unschedulable = true }))
	f.Add(at("a-3", "", "", func(s *scene) { s.path("False", "ProbeFailed", "it does not answer", time.Hour) }))
	f.Add(at("a-4", corev1.LabelTopologyZone, "z"))
	f.Add(at("a-5", "", "", func(s *scene) {
		s.lost()
		s.noTunnel("AgentStopped")
	}))
	for i := range 8 {
		f.Add(at(fmt.Sprintf("b-%d", i), auth.SiteLabel, "lyon", frozenSite))
	}
	f.Sort()
	var page bytes.Buffer
	if err := f.WriteText(&page); err != nil {
		t.Fatal(err)
	}
	want := `13 nodes: 11 broken, 2 not; 1 cordoned

8 nodes of site lyon, 8 not Ready, the first since 2026-11-22T14:01:11Z (3m57s ago): b-0, b-1, b-2, b-3, b-4, and 3 more
  broken: site-network: site lost network: all 3 nodes of site lyon fell silent together; pods are kept until 15:01:11
  next:   8 nodes: evictions are frozen (SiteLostNetwork): all 3 nodes of site lyon fell silent together; pods are kept until 15:01:11

1 node, 1 not Ready, the first since 2026-11-22T14:01:11Z (3m57s ago): a-5
  broken: agent-stopped: agent stopped: it said goodbye
  next:   1 node: the node gets the taint node.kubernetes.io/unreachable:NoExecute as soon as the eviction rate of its zone allows; its pods' tolerations count from then

1 node of zone z, 1 not Ready, the first since 2026-11-22T14:01:11Z (3m57s ago): a-1
  broken: link: link silent: nothing comes from the node, which may be off or cut off
  next:   1 node, the first at 2026-11-22T14:04:08Z: tainted node.kubernetes.io/unreachable:NoExecute: pods are deleted when their tolerations end

1 node, 0 not Ready, the first since 2026-11-22T13:05:08Z (1h0m0s ago): a-3
  broken: kubelet-api: kubelet API does not answer: heartbeats arrive, but logs, exec and port-forward fail

More about one: hawser explain node NAME
`
	if got := page.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var again struct{ Groups []Group }
	if raw, err := json.Marshal(&f); err != nil || json.Unmarshal(raw, &again) != nil || len(again.Groups) != 4 || again.Groups[0].Next[0].Nodes != 8 {
		t.Errorf("as JSON: %s, %v", raw, err)
	}
}

// TestFleetAfterARestart: nodes that are not back are not well, however fresh their conditions look.
func TestFleetAfterARestart(t *testing.T) {
	f := Fleet{Time: now}
	f.Add(at("a", "", "", func(s *scene) { s.o.Away = &Away{Started: now.Add(-20 * time.Second), Certain: true} }))
	f.Add(at("b", "", "", func(s *scene) { s.o.Revoked = "revoked at T by ann: stolen"; s.noTunnel("AgentRefused") }))
	f.Sort()
	var page bytes.Buffer
	if err := f.WriteText(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1 node, 0 not Ready, the first since 2026-11-22T14:04:48Z (20s ago): a\n  broken: server-restart: agent not back: the server was started",
		": b\n  broken: revoked: the node's identity is revoked at T by ann: stolen;",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("lacks %q:\n%s", want, page.String())
		}
	}
}

// TestFleetReachedBySSH: the page says of how many nodes it does not know whether they can be reached.
func TestFleetReachedBySSH(t *testing.T) {
	f := Fleet{Time: now}
	f.Add(at("a", "", "", (*scene).ssh))
	f.Add(at("b", "", ""))
	f.Add(at("c", "", "", (*scene).ssh, (*scene).lost))
	f.Sort()
	var page bytes.Buffer
	if err := f.WriteText(&page); err != nil {
		t.Fatal(err)
	}
	want := "3 nodes: 1 broken, 2 not; 0 cordoned\nreached by ssh and not broken otherwise: 1 node, which only a dial checks: hawser explain dial NODE:10250\n\n1 node"
	if !strings.HasPrefix(page.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", page.String(), want)
	}
}

// TestFleetIsOnePage: however much is broken.
func TestFleetIsOnePage(t *testing.T) {
	f := Fleet{Time: now}
	for i := range 300 {
		f.Add(at(fmt.Sprintf("n-%03d", i), auth.SiteLabel, fmt.Sprint("s-", i%20), evicted, func(s *scene) {
			if i%20 == 7 { // its taint is not there yet
				s.o.Node.Spec.Taints = nil
			}
		}))
	}
	f.Add(at("o", auth.SiteLabel, "s-3", evicted))
	f.Sort()
	var page bytes.Buffer
	if err := f.WriteText(&page); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(page.String(), "\n"); lines > 30 || !strings.Contains(page.String(), "and 14 groups more, of 210 nodes") ||
		!strings.HasPrefix(strings.SplitN(page.String(), "\n", 3)[2], "16 nodes of site s-3") {
		t.Errorf("%d lines:\n%s", lines, page.String())
	}
	var none bytes.Buffer
	if err := (&Fleet{Time: now}).WriteText(&none); err != nil || none.String() != "0 nodes: 0 broken, 0 not; 0 cordoned\n" {
		t.Errorf("%q, %v", none.String(), err)
	}
}
