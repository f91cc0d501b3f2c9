package kubeauth

// Kubernetes' cases of Secrets that volumes are mounted with.

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// mounting is a pod on node that mounts a claim.
func mounting(namespace, name, node, claim string) *corev1.Pod {
	p := simplePod(namespace, name, node, name)
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return p
}

// volumeWith is a volume of a claim that is mounted with a Secret.
func volumeWith(name, namespace, claim string, secret corev1.SecretReference) *corev1.PersistentVolume {
	v := volumeOf(name, namespace, claim)
	v.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{SecretRef: &secret}
	return v
}

// TestSecretsOfVolumes: a node reads the Secrets that the volumes of its own pods' claims are
// mounted with, and no others.
func TestSecretsOfVolumes(t *testing.T) {
	ref := func(namespace, name string) corev1.SecretReference {
		return corev1.SecretReference{Namespace: namespace, Name: name}
	}
	prebound := volumeWith("pv-prebound", "ns", "another", ref("", "prebound"))
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "stolen"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: prebound.Name},
	}
	ephemeral := simplePod("ns", "p5", "node-1", "p5")
	ephemeral.Spec.Volumes = []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	free := volumeWith("pv-free", "ns", "data", ref("ns", "free"))
	free.Spec.ClaimRef = nil
	o, client := objects(t,
		mounting("ns", "p0", "node-1", "data"), mounting("ns", "p1", "node-2", "data-2"),
		mounting("ns", "p2", "node-1", "shared"), mounting("ns", "p3", "node-2", "shared"),
		mounting("ns", "p4", "node-1", "stolen"), ephemeral, mounting("ns", "waiting", "", "unscheduled"),
		mirrorOf(mounting("ns", "mirror", "node-1", "mirrored")),
		volumeWith("pv-0", "ns", "data", ref("", "of-node-1")), volumeWith("pv-1", "ns", "data-2", ref("", "of-node-2")),
		volumeWith("pv-2", "ns", "shared", ref("drivers", "of-both")), volumeWith("pv-5", "ns", "p5-e", ref("", "ephemeral")),
		volumeWith("pv-6", "other", "data", ref("ns", "elsewhere")), volumeWith("pv-7", "ns", "mirrored", ref("", "mirrored")),
		volumeWith("pv-8", "ns", "unscheduled", ref("", "unscheduled")), volumeWith("pv-9", "ns", "data", ref(nodekeys.Namespace, "node-2")),
		free, claim, prebound,
	)
	client.ClearActions()
	z := NewAuthorizer(o)
	for _, tc := range []struct{ secret, nodes string }{
		{"ns/of-node-1", "node-1"},
		{"ns/of-node-2", "node-2"},
		{"drivers/of-both", "node-1 node-2"},
		{"ns/of-both", ""},
		{"other/of-node-1", ""},
		{"ns/ephemeral", "node-1"},
		{"ns/elsewhere", ""},
		{"ns/mirrored", ""},
		{"ns/unscheduled", ""},
		{"ns/free", ""},
		{"ns/prebound", ""}, // the claim that names the volume does not have it
		{nodekeys.Namespace + "/node-2", ""},
	} {
		for _, node := range []string{"node-1", "node-2", "new-node"} {
			want := strings.Contains(tc.nodes, node)
			for _, verb := range read {
				d, reason, err := z.Authorize(t.Context(), attributes(t, users[node], verb, "secrets", tc.secret, "-"))
				if err != nil || (d == authorizer.DecisionAllow) != want {
					t.Errorf("%s %s %s: %v (%s), %v; want %v", node, verb, tc.secret, d, reason, err, want)
				}
			}
			for what, target := range map[string]string{"secrets update": tc.secret, "configmaps get": tc.secret, "secrets list": strings.Split(tc.secret, "/")[0] + "/"} {
				kind, verb, _ := strings.Cut(what, " ")
				if d, _, err := z.Authorize(t.Context(), attributes(t, users[node], verb, kind, target, "-")); err != nil || d == authorizer.DecisionAllow {
					t.Errorf("%s %s %s: %v, %v", node, what, target, d, err)
				}
			}
		}
	}
}

// TestSecretsOfVolumesCostNoReads: what the caches answer is not counted against a node.
func TestSecretsOfVolumesCostNoReads(t *testing.T) {
	o, client := objects(t, mounting("ns", "p", "node-1", "data"), volumeWith("pv", "ns", "data", corev1.SecretReference{Namespace: "drivers", Name: "s"}))
	client.ClearActions()
	z := NewAuthorizer(o)
	for range liveBurst * 2 {
		if d, _, err := z.Authorize(t.Context(), attributes(t, users["node-1"], "get", "secrets", "drivers/s", "-")); d != authorizer.DecisionAllow || err != nil {
			t.Fatal(d, err)
		}
	}
	if n := len(client.Actions()); n > 0 {
		t.Errorf("%d requests to the API server", n)
	}
}

// TestMountedWith has each field of a volume that names a Secret.
func TestMountedWith(t *testing.T) {
	for field, where := range map[string]string{
		"AzureFile.SecretName":           "near",
		"CephFS.SecretRef":               "near",
		"Cinder.SecretRef":               "named",
		"FlexVolume.SecretRef":           "near",
		"RBD.SecretRef":                  "near",
		"ScaleIO.SecretRef":              "near",
		"ISCSI.SecretRef":                "near",
		"StorageOS.SecretRef":            "named",
		"CSI.NodePublishSecretRef":       "named",
		"CSI.NodeStageSecretRef":         "named",
		"CSI.NodeExpandSecretRef":        "named",
		"CSI.ControllerPublishSecretRef": "never",
		"CSI.ControllerExpandSecretRef":  "never",
	} {
		bare, full := volumeOf("bare", "claim", "data"), volumeOf("full", "claim", "data")
		setSecret(t, bare, field, "")
		setSecret(t, full, field, "drivers")
		for _, tc := range []struct {
			v         *corev1.PersistentVolume
			namespace string
			want      bool
		}{
			{bare, "claim", where == "near"},
			{bare, "drivers", false},
			{full, "drivers", where != "never"},
			{full, "claim", false},
		} {
			if got := mountedWith(tc.v, tc.namespace, "s"); got != tc.want {
				t.Errorf("%s of %s in %s: %v", field, tc.v.Name, tc.namespace, got)
			}
			if mountedWith(tc.v, tc.namespace, "another") {
				t.Errorf("%s of %s: another Secret", field, tc.v.Name)
			}
		}
	}
	if got := secretFields(); got != 13 {
		t.Errorf("volumes name Secrets in %d fields, the table has 13", got)
	}
	if mountedWith(volumeOf("plain", "ns", "data"), "ns", "") {
		t.Error("a volume without a Secret")
	}
}

// setSecret has field, such as CSI.NodeStageSecretRef, of v name Secret s in namespace.
func setSecret(t *testing.T, v *corev1.PersistentVolume, field, namespace string) {
	t.Helper()
	source, name, _ := strings.Cut(field, ".")
	at := reflect.ValueOf(&v.Spec.PersistentVolumeSource).Elem().FieldByName(source)
	at.Set(reflect.New(at.Type().Elem()))
	f := at.Elem().FieldByName(name)
	switch f.Interface().(type) {
	case string:
		f.SetString("s")
		if namespace != "" {
			at.Elem().FieldByName("SecretNamespace").Set(reflect.ValueOf(ptr.To(namespace)))
		}
	case *corev1.SecretReference:
		f.Set(reflect.ValueOf(&corev1.SecretReference{Namespace: namespace, Name: "s"}))
	case *corev1.ObjectReference:
		f.Set(reflect.ValueOf(&corev1.ObjectReference{Namespace: namespace, Name: "s"}))
	default:
		t.Fatalf("%s is a %s", field, f.Type())
	}
}

// secretFields counts the fields of volumes that name Secrets.
func secretFields() int {
	n := 0
	sources := reflect.TypeFor[corev1.PersistentVolumeSource]()
	for i := range sources.NumField() {
		source := sources.Field(i).Type.Elem()
		for j := range source.NumField() {
			if name := source.Field(j).Name; strings.Contains(name, "SecretRef") || name == "SecretName" {
				n++
			}
		}
	}
	return n
}

// TestVolumesNotListed: until the server has read the volumes a node with claims is asked to come back,
// if no pod names the Secret itself.
func TestVolumesNotListed(t *testing.T) {
	naming := mounting("ns", "p0", "node-1", "data")
	naming.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}}
	o, _ := objects(t, naming, simplePod("ns", "p1", "node-2", "p1"), volumeWith("pv-0", "ns", "data", corev1.SecretReference{Name: "of-node-1"}))
	s := *o.src.Load()
	s.listed = func() bool { return false }
	o.src.Store(&s)
	z := NewAuthorizer(o)
	for _, tc := range []struct {
		node, secret string
		want         authorizer.Decision
		err          error
	}{
		{"node-1", "ns/own", authorizer.DecisionAllow, nil},
		{"node-1", "ns/of-node-1", authorizer.DecisionNoOpinion, errNotReady},
		{"node-2", "ns/of-node-1", authorizer.DecisionNoOpinion, nil},
	} {
		d, _, err := z.Authorize(t.Context(), attributes(t, users[tc.node], "get", "secrets", tc.secret, "-"))
		if d != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s %s: %v, %v", tc.node, tc.secret, d, err)
		}
	}
}
