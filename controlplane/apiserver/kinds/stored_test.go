// What is stored otherwise than it was written.

package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestStoredGrace(t *testing.T) {
	t.Parallel()
	p := defaulted[corev1.Pod](t, `{spec: {terminationGracePeriodSeconds: -1}}`)
	if g := *p.Spec.TerminationGracePeriodSeconds; g != 1 {
		t.Errorf("%d s to end", g)
	}
}

func TestStoredServices(t *testing.T) {
	t.Parallel()
	s := defaulted[corev1.Service](t, `{spec: {type: ExternalName, internalTrafficPolicy: Cluster}}`)
	if s.Spec.InternalTrafficPolicy != nil {
		t.Errorf("traffic to a name: %v", *s.Spec.InternalTrafficPolicy)
	}
	old := defaulted[corev1.Service](t, `{spec: {clusterIP: None, ipFamilyPolicy: PreferDualStack}}`)
	s = defaulted[corev1.Service](t, `{spec: {clusterIP: None}}`)
	KeepAllocated(s, old)
	if p := s.Spec.IPFamilyPolicy; p == nil || *p != corev1.IPFamilyPolicyPreferDualStack {
		t.Errorf("a service written without its policy has %v", p)
	}
}

// TestStoredTopology: the labels of endpoints were of an API that is gone.
func TestStoredTopology(t *testing.T) {
	t.Parallel()
	k := endpointSlices()
	fresh := func(topology map[string]string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, DeprecatedTopology: topology}}}
	}
	host := map[string]string{corev1.LabelHostname: "n"}
	s := fresh(host)
	k.onCreate(t.Context(), s)
	if e := s.Endpoints[0]; e.DeprecatedTopology != nil || e.NodeName != nil {
		t.Errorf("made: %+v", e)
	}
	s = fresh(host)
	k.onUpdate(t.Context(), s, fresh(host))
	if s.Endpoints[0].DeprecatedTopology == nil {
		t.Error("an update of other parts took the topology")
	}
	s.Endpoints[0].Addresses[0] = "10.0.0.2"
	k.onUpdate(t.Context(), s, fresh(host))
	if e := s.Endpoints[0]; e.DeprecatedTopology != nil || e.NodeName == nil || *e.NodeName != "n" {
		t.Errorf("updated: %+v", e)
	}
}

// TestStoredSources: what a claim is filled from is told in two fields, of which clients know one.
func TestStoredSources(t *testing.T) {
	t.Parallel()
	const snapshots = "snapshot.storage.k8s.io"
	claim := func(of *corev1.TypedLocalObjectReference, ref *corev1.TypedObjectReference) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{DataSource: of, DataSourceRef: ref}}
	}
	volume := &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "c"}
	snapshot := &corev1.TypedLocalObjectReference{APIGroup: ptr(snapshots), Kind: "VolumeSnapshot", Name: "s"}
	backup := &corev1.TypedObjectReference{APIGroup: ptr("a.b"), Kind: "Backup", Name: "b"}
	for name, c := range map[string]struct {
		in, out *corev1.PersistentVolumeClaim
	}{
		"of a claim":      {claim(volume, nil), claim(volume, &corev1.TypedObjectReference{Kind: volume.Kind, Name: "c"})},
		"of a snapshot":   {claim(snapshot, nil), claim(snapshot, &corev1.TypedObjectReference{APIGroup: ptr(snapshots), Kind: snapshot.Kind, Name: "s"})},
		"of what is none": {claim(&corev1.TypedLocalObjectReference{Kind: "Pod", Name: "p"}, nil), claim(nil, nil)},
		"of another kind": {claim(nil, backup), claim(&corev1.TypedLocalObjectReference{APIGroup: ptr("a.b"), Kind: "Backup", Name: "b"}, backup)},
		"from elsewhere":  {claim(nil, &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "c", Namespace: ptr("x")}), claim(nil, nil)},
		"of nothing":      {claim(nil, nil), claim(nil, nil)},
	} {
		k, made, want := persistentVolumeClaims(), c.in.DeepCopy(), c.out.DeepCopy()
		k.onCreate(t.Context(), made)
		if !equal(made.Spec, want.Spec) {
			t.Errorf("%s: made %s, want %s", name, toJSON(t, made.Spec), toJSON(t, want.Spec))
		}
		// Stored when only one of the fields was.
		again, old := made.DeepCopy(), c.in.DeepCopy()
		k.onUpdate(t.Context(), again, old)
		errs := validatePersistentVolumeClaimUpdate(again, old)
		for _, e := range errs {
			if e.Field == "spec" && name != "of what is none" && name != "from elsewhere" {
				t.Errorf("%s: %v", name, e)
			}
		}
	}
	differ := defaulted[corev1.PersistentVolumeClaim](t, `{spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}},
		dataSource: {kind: PersistentVolumeClaim, name: a}, dataSourceRef: {kind: PersistentVolumeClaim, name: b}}}`)
	check(t, validatePersistentVolumeClaim(differ), `spec: Invalid value: "spec.dataSource": must match dataSourceRef`)
}
