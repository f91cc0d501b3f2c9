// What a fleet deletes at its end, which is its own and nobody else's.

package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// requestIn has the fleet's directory hold a key, as that of a node that joins.
func requestIn(t *testing.T, dir string) nodekeys.Key {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if err = os.MkdirAll(filepath.Join(dir, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	if err = os.WriteFile(filepath.Join(dir, "pki", "kubelet-client.key.pending"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(public)
}

// nodeHeld makes a node whose name the key holds. uid is the Node that the record names.
func nodeHeld(t *testing.T, api kubernetes.Interface, name string, by nodekeys.Key, uid string) {
	t.Helper()
	text, err := json.Marshal(nodekeys.Record{Keys: []nodekeys.Held{{Key: by, Since: metav1.Now()}}, NodeUID: uid})
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: name, UID: types.UID("of " + name), Labels: map[string]string{nodekeys.Label: "key"}}
	if _, err = api.CoreV1().ConfigMaps(nodekeys.Namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"record": string(text)}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A name that the fleet would have had does not make a node the fleet's.
func TestDeleteLeavesOthers(t *testing.T) {
	api := fake.NewClientset()
	f := &Fleet{cfg: Config{Dir: t.TempDir(), Prefix: "node-", Zones: 1}, admin: api, idle: func() {}}
	for i := range 5 {
		f.members = append(f.members, newMember(f, i, network.Addr()))
	}
	for name, of := range map[string]struct {
		key, holds bool // in the directory, and that it is the one that holds the name
		uid        string
	}{
		"node-1": {true, true, "of node-1"},
		"node-2": {true, true, ""},
		"node-3": {true, false, "of node-3"},
		"node-4": {false, false, "of node-4"},
		"node-5": {true, true, "an earlier Node"},
	} {
		by := nodekeys.Key{1}
		if of.key {
			if own := requestIn(t, f.dir(name)); of.holds {
				by = own
			}
		}
		nodeHeld(t, api, name, by, of.uid)
	}
	if n, err := f.Delete(t.Context()); err != nil || n != 3 {
		t.Fatalf("%d nodes are deleted instead of 3, %v", n, err)
	}
	nodes, err := api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	records, err := api.CoreV1().ConfigMaps(nodekeys.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left [3][]string
	for _, n := range nodes.Items {
		left[0] = append(left[0], n.Name)
	}
	for _, l := range leases.Items {
		left[1] = append(left[1], l.Name)
	}
	for _, r := range records.Items {
		left[2] = append(left[2], r.Name)
	}
	want := [3][]string{{"node-3", "node-4", "node-5"}, {"node-3", "node-4", "node-5"}, {"node-3", "node-4"}}
	if !reflect.DeepEqual(left, want) {
		t.Errorf("left are the nodes, leases and records %v, want %v", left, want)
	}
}
