// Nodes whose certificates are refused because their authority had been replaced before.

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// supersede puts an authority of clients first that was made then.
func (k *keyring) supersede(t *testing.T, made time.Time) *pkitest.Authority {
	t.Helper()
	old := pkitest.Load(t, k.pki("client-ca.crt"), k.pki("client-ca.key"))
	another := authorityOf(t, old, made)
	k.write(t, k.pki("client-ca.key"), pkitest.KeyPEM(t, another.Key))
	k.write(t, k.pki("client-ca.crt"), another.PEM(), old.PEM())
	return another
}

// comesBack waits until a node has a certificate of an authority, with the key of before, and is
// Ready.
func (k *keyring) comesBack(t *testing.T, name string, a *pkitest.Authority, before any) {
	t.Helper()
	began := time.Now()
	file := filepath.Join("nodes", name, "pki/kubelet-client-current.pem")
	eventually(t, name+" has another certificate", func() error { return k.keyPair(t, file, file).Leaf.CheckSignatureFrom(a.Cert) })
	if now := k.keyPair(t, file, file).Leaf.PublicKey; fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("%s has another key", name)
	}
	t.Logf("%s has another certificate %v later", name, time.Since(began).Round(time.Second))
	renewed := time.Now()
	eventually(t, name+" is Ready again", func() error {
		lease, err := k.admin(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !lease.Spec.RenewTime.After(renewed) {
			return errors.New("no heartbeat")
		}
		n, err := k.admin(t).CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return k.healthOf(t, name)
			}
		}
		return fmt.Errorf("conditions: %v", n.Status.Conditions)
	})
}

// TestSupersededNodes: all certificates of nodes are refused, as their authority had been replaced
// before they were signed. Nodes with a join token get others for the keys that hold their names,
// also one that is started anew.
func TestSupersededNodes(t *testing.T) {
	t.Parallel()
	k := &keyring{cluster: startOver(t, everyTransport, "--agent-arg=--authorities-refresh-period=1s")}
	// The cluster's own authority is too young for another one between it and the nodes' certificates.
	first := k.supersede(t, time.Now().Add(-10*time.Minute))
	made := time.Now()
	keys, marks := make([]any, len(everyTransport)), make([]*logMark, len(everyTransport))
	for i := range everyTransport {
		file := filepath.Join("nodes", nodeAt(i), "pki/kubelet-client-current.pem")
		signedBy(t, first, filepath.Join(k.dir, file))
		leaf := k.keyPair(t, file, file).Leaf
		keys[i], marks[i] = leaf.PublicKey, k.mark(t, nodeAt(i))
		if before := leaf.NotBefore.Add(-time.Second); before.Before(made) {
			made = before // refused are certificates that are younger than a later authority
		}
	}
	another := k.supersede(t, made)
	for i := range everyTransport {
		marks[i].until(t, patience, "level=WARN", "the API refuses this node's certificate")
		k.comesBack(t, nodeAt(i), another, keys[i])
	}
	args := k.kill(t, nodeAt(0))
	file := filepath.Join("nodes", nodeAt(0), "pki/kubelet-client-current.pem")
	another = k.supersede(t, k.keyPair(t, file, file).Leaf.NotBefore.Add(-time.Second))
	run(t, args, filepath.Join(k.dir, "nodes", nodeAt(0), "agent"))
	k.comesBack(t, nodeAt(0), another, keys[0])
}
