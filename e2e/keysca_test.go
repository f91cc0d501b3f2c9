// How the authorities of a cluster are replaced: of kubelets, of clients, of the server.

package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// signedBy waits until the certificate in a file is an authority's.
func signedBy(t *testing.T, a *pkitest.Authority, files ...string) {
	t.Helper()
	for _, file := range files {
		eventually(t, file+" is renewed", func() error {
			pair, err := tls.LoadX509KeyPair(file, strings.Replace(file, ".crt", ".key", 1))
			if err != nil {
				return err
			}
			return pair.Leaf.CheckSignatureFrom(a.Cert)
		})
	}
}

// replaceCA puts another authority behind the old one, as with several servers, and then before
// it, waits until files are renewed, and takes the old one out.
func (k *keyring) replaceCA(t *testing.T, name string, meanwhile func(old, another *pkitest.Authority), files ...string) *pkitest.Authority {
	t.Helper()
	old := pkitest.Load(t, k.pki(name+".crt"), k.pki(name+".key"))
	another := authority(t, old)
	k.write(t, k.pki(name+".crt"), old.PEM(), another.PEM())
	eventually(t, "the coming authority of "+name+" is read", func() error {
		log, err := os.ReadFile(filepath.Join(k.dir, "server.log"))
		if err == nil && !bytes.Contains(log, []byte(k.pki(name+".crt"))) {
			err = errors.New("it is not")
		}
		return err
	})
	k.write(t, k.pki(name+".key"), pkitest.KeyPEM(t, another.Key))
	k.write(t, k.pki(name+".crt"), another.PEM(), old.PEM())
	signedBy(t, another, files...)
	meanwhile(old, another)
	k.write(t, k.pki(name+".crt"), another.PEM())
	return another
}

func (k *keyring) ofNodes(file string) []string {
	return []string{filepath.Join(k.dir, "nodes", "node-1", file), filepath.Join(k.dir, "nodes", "node-2", file)}
}

// newNode joins a node by the command that hawser prints now.
func (k *keyring) newNode(t *testing.T, name string, flags ...string) {
	t.Helper()
	under, client := bin(t)
	args := append([]string{filepath.Join(under, "hawser-agent")}, k.joinCommand(t, filepath.Join(client, "hawser"))[1:]...)
	args = append(args, "--node-name", name, "--data-dir", filepath.Join(k.dir, "nodes", name), "--eviction-hard=")
	run(t, append(args, flags...), filepath.Join(k.dir, name))
	eventually(t, name+" is there", func() error { return k.healthOf(t, name) })
}

// straggler is a node that learns of no other authorities: it keeps what the old ones signed.
const straggler = "straggler"

// healthOf asks a node's kubelet API through the API server.
func (k *keyring) healthOf(t *testing.T, node string) error {
	answer := k.admin(t).CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node, "proxy/healthz").Do(t.Context())
	if err := answer.Error(); err != nil { // with the Status that was sent, which DoRaw leaves out
		return err
	}
	if text, err := answer.Raw(); err != nil || string(text) != "ok" {
		return fmt.Errorf("%q: %w", text, err)
	}
	return nil
}

func (k *keyring) replaceKubeletCA(t *testing.T) {
	k.newNode(t, straggler, "--authorities-refresh-period=24h")
	k.replaceCA(t, "kubelet-ca", func(*pkitest.Authority, *pkitest.Authority) {
		eventually(t, "what the old authority signed is believed meanwhile", func() error { return k.healthOf(t, straggler) })
	}, k.ofNodes("pki/kubelet-server-current.pem")...)
	eventually(t, "a kubelet of the old authority is refused", func() error {
		err := k.healthOf(t, straggler)
		if err == nil || !strings.Contains(err.Error(), "unknown authority") {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	eventually(t, "new execs reach the nodes", k.execs(t))
}

func (k *keyring) replaceClientCA(t *testing.T) {
	pem := filepath.Join("nodes", straggler, "pki/kubelet-client-current.pem")
	before := k.showing(t, k.keyPair(t, pem, pem), nil)
	admin, err := tls.LoadX509KeyPair(k.pki("admin.crt"), k.pki("admin.key"))
	must(t, err)
	was := k.showing(t, &admin, nil)
	files := slices.Concat(k.ofNodes("pki/kubelet-client-current.pem"), []string{k.pki("admin.crt"), k.pki("controller-manager.crt"), k.pki("scheduler.crt")})
	another := k.replaceCA(t, "client-ca", func(*pkitest.Authority, *pkitest.Authority) {
		becomes(t, "the old administrator is believed meanwhile", "kubernetes-admin", was)
		becomes(t, "a node by the old authority is believed meanwhile", "system:node:"+straggler, before)
	}, files...)
	becomes(t, "the old administrator is refused", "", was)
	becomes(t, "a node by the old authority is refused", "", before)
	signedBy(t, another, k.pki("kubelet-client.crt"))
	becomes(t, "the new administrator is believed", "kubernetes-admin", k.admin(t))
	eventually(t, "new execs reach the nodes", k.execs(t))
}

// replaceServerCA leaves k.rest with the old authority: it is the last step.
func (k *keyring) replaceServerCA(t *testing.T) {
	later := func(ns string) {
		_, err := k.admin(t).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		must(t, err)
	}
	another := k.replaceCA(t, "ca", func(old, another *pkitest.Authority) {
		both := slices.Concat(another.PEM(), old.PEM())
		later("meanwhile")
		k.believed(t, both, "default", "meanwhile")
		must(t, k.shows(t, old)) // as long as agents may not know the new one
		k.newNode(t, "newcomer")
		eventually(t, "new execs reach the nodes", k.execs(t))
	})
	eventually(t, "a certificate of the new authority is shown", func() error { return k.shows(t, another) })
	k.ends(t, "server", "ca", another.Cert)
	k.ends(t, "node-1", "ca", another.Cert)
	later("after")
	k.believed(t, another.PEM(), "default", "meanwhile", "after")
	k.mustKubectl(t, "", "run", "pod", "-n", "after", "--image=none", `--overrides={"spec":{"nodeName":"node-1"}}`, "--command", "--", "sleep", "10000")
	eventually(t, "a pod knows the new authority", func() error {
		out, said, code := k.kubectl(t, "", "exec", "-n", "after", "pod", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
		if code != 0 || out != string(another.PEM()) {
			return fmt.Errorf("%s%s", out, said)
		}
		return nil
	})
	eventually(t, "new execs reach the nodes", k.execs(t))
}

// believed waits until whoever knows the server by the cluster's word knows it by text: the
// administrator, nodes, and pods of namespaces.
func (k *keyring) believed(t *testing.T, text []byte, namespaces ...string) {
	t.Helper()
	eventually(t, "the kubeconfig has the authorities", func() error {
		conf, err := clientcmd.BuildConfigFromFlags("", k.kubeconfig())
		if err == nil && !bytes.Equal(conf.CAData, text) {
			err = errors.New("it has others")
		}
		return err
	})
	for _, ns := range namespaces {
		eventually(t, "namespace "+ns+" has them", func() error {
			m, err := k.admin(t).CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
			if err == nil && m.Data["ca.crt"] != string(text) {
				err = errors.New("it has others")
			}
			return err
		})
	}
	for _, file := range k.ofNodes("pki/ca.crt") {
		eventually(t, file+" has them", func() error {
			have, err := os.ReadFile(file)
			if err == nil && !bytes.Equal(have, text) {
				err = errors.New("it has others")
			}
			return err
		})
	}
}

// shows wants the server's certificate to be an authority's.
func (k *keyring) shows(t *testing.T, a *pkitest.Authority) error {
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.Pool()}}
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(k.rest.Host, "https://"))
	if err != nil {
		return err
	}
	return conn.Close()
}
