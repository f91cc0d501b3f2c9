package scheduler

// Tests of the spread of pods that ask for none.

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ownedBy makes a pod one of a controller's.
func ownedBy(kind string, uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", UID: uid, Controller: new(true)}}
	}
}

// lopsided is a node of each zone a, b and c with 2 CPUs, and one of zone a with so many
// that by room alone everything would be there.
func lopsided() *cache {
	c := newCache()
	for name, cpu := range map[string]string{"a-large": "64", "a": "2", "b": "2", "c": "2"} {
		c.setNode(testNode(name, func(n *corev1.Node) {
			n.Labels[corev1.LabelTopologyZone] = name[:1]
			n.Status.Allocatable = quantities("cpu", cpu, "memory", "64Gi", "pods", "110")
		}))
	}
	return c
}

func TestSiblings(t *testing.T) {
	rs := ownedBy("ReplicaSet", "1")
	for name, tc := range map[string]struct {
		there func(*corev1.Pod) // is on a-large
		pod   func(*corev1.Pod)
		apart bool // it is elsewhere, in another zone
	}{
		"of a replica set":        {rs, rs, true},
		"of a stateful set":       {ownedBy("StatefulSet", "1"), ownedBy("StatefulSet", "1"), true},
		"of a job":                {ownedBy("Job", "1"), ownedBy("Job", "1"), false},
		"of none":                 {nil, nil, false},
		"of another":              {ownedBy("ReplicaSet", "2"), rs, false},
		"of another namespace":    {both(rs, inNamespace("other")), rs, false},
		"that is being deleted":   {both(rs, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }), rs, false},
		"that says how it spread": {both(rs, labelled("app=a")), both(rs, evenly(corev1.LabelOSStable, false)), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := lopsided()
			p := testPod("there", both(asks("cpu", "500m"), func(p *corev1.Pod) {
				if tc.there != nil {
					tc.there(p)
				}
			}))
			p.Spec.NodeName = "a-large"
			c.setPod(p)
			node, why, _ := c.place(newPodInfo(testPod("p", func(p *corev1.Pod) {
				asks("cpu", "500m")(p)
				if tc.pod != nil {
					tc.pod(p)
				}
			})))
			if (node == "b" || node == "c") != tc.apart || !tc.apart && node != "a-large" {
				t.Errorf("on %q (%s)", node, why)
			}
		})
	}
}

// TestSiblingsEverywhere: replicas go to all zones and then to all nodes, and nothing is
// kept of those that are gone.
func TestSiblingsEverywhere(t *testing.T) {
	c := lopsided()
	on := map[string]int{}
	var keys []podKey
	for i := range 4 {
		p := newPodInfo(testPod(fmt.Sprint("p", i), both(asks("cpu", "100m"), ownedBy("ReplicaSet", "1"))))
		node, why, _ := c.place(p)
		if node == "" {
			t.Fatal(why)
		}
		on[node]++
		keys = append(keys, keyOf(p.pod))
		if i == 2 && on["b"]+on["c"] != 2 {
			t.Errorf("three are on %v, want one in each zone", on)
		}
	}
	if nodes := slices.Sorted(maps.Keys(on)); len(nodes) != 4 {
		t.Errorf("four are on %v", on)
	}
	for _, k := range keys {
		c.removePod(k)
	}
	for name := range maps.Clone(c.nodes) {
		c.removeNode(name)
	}
	if len(c.families) != 0 || len(c.zones) != 0 {
		t.Errorf("%v and %v are kept", c.families, c.zones)
	}
}

// TestZoneOfNodeChanges: a node counts in the zone that it is in now.
func TestZoneOfNodeChanges(t *testing.T) {
	c := lopsided()
	c.setNode(testNode("c", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" }))
	if want := map[string]int{"a": 2, "b": 2}; !maps.Equal(c.zones, want) {
		t.Errorf("%v, want %v", c.zones, want)
	}
	c.setNode(testNode("c", nil))
	if want := map[string]int{"a": 2, "b": 1}; !maps.Equal(c.zones, want) {
		t.Errorf("%v, want %v", c.zones, want)
	}
}
