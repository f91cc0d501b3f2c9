// A hub beside a cluster whose API server is another process's: nodes join, are reached,
// and are shut out through it.

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// notOurs is what makes a server somebody else's: it knows nothing of tunnels.
var notOurs = []string{"--nodes=0", "--server-arg=--controllers=*,-hawser-tunnel-health-controller", "--server-arg=--cause-aware-eviction=false"}

// A besideHub is a hub beside a cluster, whose nodes come by it alone.
type besideHub struct {
	*front              // of the hub
	data         string // its directory
	port, health int
	cert, key    string // of the cluster's authority
}

// startBeside starts a cluster and a hub beside it.
func startBeside(t *testing.T) *besideHub {
	t.Helper()
	c := startUp(t, notOurs...)
	h := &besideHub{front: &front{c, filepath.Join(c.dir, "hub.sock")}, data: filepath.Join(c.dir, "hub"), port: freePort(t), health: freePort(t)}
	ca := pkitest.Load(t, filepath.Join(c.dir, "pki", "ca.crt"), filepath.Join(c.dir, "pki", "ca.key"))
	pair := ca.Issue(t, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	})
	h.cert, h.key = filepath.Join(c.dir, "tunnel.crt"), filepath.Join(c.dir, "tunnel.key")
	must(t, os.WriteFile(h.cert, pkitest.PEM("CERTIFICATE", pair.Certificate[0]), 0o600))
	must(t, os.WriteFile(h.key, pkitest.KeyPEM(t, pair.PrivateKey), 0o600))
	return h
}

// args are how the hub is started, with its data in a directory.
func (h *besideHub) args(t *testing.T, data string, more ...string) []string {
	under, _ := bin(t)
	return append([]string{
		filepath.Join(under, "hawser"), "server", "--kubeconfig", h.kubeconfig(), "--data-dir", data,
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(h.port), "--health-port", strconv.Itoa(h.health),
		"--connect-port", "0", "--tunnel-probe-period", "1s",
	}, more...)
}

// start starts the hub with the cluster's certificate.
func (h *besideHub) start(t *testing.T) {
	t.Helper()
	run(t, h.args(t, h.data, "--connect-uds", h.socket, "--tls-cert-file", h.cert, "--tls-private-key-file", h.key), h.data)
	h.isReady(t)
}

// isReady waits until the hub says so.
func (h *besideHub) isReady(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	eventually(t, "the hub is ready", func() error {
		resp, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/readyz", h.health))
		if err != nil {
			log, _ := os.ReadFile(h.data + ".log")
			return fmt.Errorf("%w\n%s", err, log)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// killHub ends the hub without a word.
func (h *besideHub) killHub(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(h.data + ".pid")
	must(t, err)
	pid, err := strconv.Atoi(string(b))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "the hub is gone", func() error {
		if c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", h.port), time.Second); err == nil {
			_ = c.Close()
			return errors.New("its port is open")
		}
		return nil
	})
}

// joins starts an agent that knows no address but the hub's.
func (h *besideHub) joins(t *testing.T, name string) {
	t.Helper()
	under, client := bin(t)
	words := h.joinCommand(t, filepath.Join(client, "hawser"))
	words[0] = filepath.Join(under, "hawser-agent")
	for i := range words {
		if strings.HasPrefix(words[i], "https://") {
			words[i] = fmt.Sprintf("https://127.0.0.1:%d", h.port)
		}
	}
	dir := filepath.Join(h.dir, "nodes", name)
	must(t, os.MkdirAll(dir, 0o700))
	run(t, append(words, "--node-name", name, "--data-dir", dir, "--eviction-hard="), filepath.Join(dir, "agent"))
}

// tunnelOf is what the Node says of its tunnel, once it is up and has been tried.
func (h *besideHub) tunnelOf(t *testing.T, name string, but string) string {
	t.Helper()
	var said string
	eventually(t, name+" can be reached through the hub", func() error {
		n, err := h.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		said = condition(n, tunnelConnected).Message
		if !is(tunnelConnected, corev1.ConditionTrue)(n) || !is(dataPathReady, corev1.ConditionTrue)(n) || said == but {
			return fmt.Errorf("conditions: %v", n.Status.Conditions)
		}
		return nil
	})
	return said
}

// kubeletAnswers asks a kubelet through the hub's front end, and verifies it.
func (h *besideHub) kubeletAnswers(ctx context.Context, name string) error {
	ca, err := os.ReadFile(filepath.Join(h.dir, "pki", "kubelet-ca.crt"))
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(h.dir, "pki", "kubelet-client.crt"), filepath.Join(h.dir, "pki", "kubelet-client.key"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{
		DialContext:     func(_ context.Context, _, addr string) (net.Conn, error) { return h.connectTo(addr) },
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+name+":10250/healthz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// TestBeside: agents that know the hub alone join the cluster through it, heartbeats and
// kubelets included; a hub that is killed and comes back loses nobody; a node that is
// revoked is out, also after its Node was deleted.
func TestBeside(t *testing.T) {
	t.Parallel()
	h := startBeside(t)
	h.start(t)
	names := []string{"node-1", "node-2"}
	before := map[string]string{}
	uids := map[string]string{}
	for _, name := range names {
		h.joins(t, name)
	}
	for _, name := range names {
		h.waitNode(t, name)
		before[name] = h.tunnelOf(t, name, "")
		must(t, h.kubeletAnswers(t.Context(), name))
		n, err := h.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		uids[name] = string(n.UID)
	}
	args := h.copied(t)
	oneLine(t, exec.CommandContext(t.Context(), args[0], args[1:]...), "another hub runs with the identity", "--data-dir")

	h.killHub(t)
	h.start(t)
	for _, name := range names {
		h.tunnelOf(t, name, before[name])
		must(t, h.kubeletAnswers(t.Context(), name))
		if n, err := h.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil || string(n.UID) != uids[name] {
			t.Errorf("%s is another Node now: %v", name, err)
		}
	}

	mark := h.mark(t, "node-1")
	h.hawser(t, "node", "revoke", "node-1", "--reason", "stolen")
	mark.until(t, patience, "does not admit this node any more", "hawser node allow node-1")
	if err := h.kubeletAnswers(t.Context(), "node-1"); err == nil {
		t.Error("a revoked node can be reached")
	}
	must(t, h.kubeletAnswers(t.Context(), "node-2"))
}

// copied is a hub with a copy of the identity.
func (h *besideHub) copied(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join(h.dir, "copy")
	must(t, os.MkdirAll(filepath.Join(dir, "pki"), 0o700))
	id, err := os.ReadFile(filepath.Join(h.data, "identity"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "identity"), id, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "server.lock"), nil, 0o600))
	args := h.args(t, dir)
	for flag, port := range map[string]int{"--secure-port": freePort(t), "--health-port": freePort(t)} {
		for i := range args {
			if args[i] == flag {
				args[i+1] = strconv.Itoa(port)
			}
		}
	}
	return args
}

// TestBesidePublishes: a hub without a certificate makes an authority, and publishes it
// where agents find it; what is not the tunnel's on its port is the API server's.
func TestBesidePublishes(t *testing.T) {
	t.Parallel()
	h := startBeside(t)
	run(t, h.args(t, h.data), h.data)
	h.isReady(t)
	var pool *x509.CertPool
	eventually(t, "the authority is published", func() error {
		m, err := h.client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "hawser-tunnel", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(m.Data["ca.crt"])) {
			return errors.New("there is no certificate")
		}
		return nil
	})
	addr := fmt.Sprintf("127.0.0.1:%d", h.port)
	// The hub shows its certificate before it asks for one.
	shown := false
	c := tls.Client(mustDial(t, addr), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{qmux.ALPN}, VerifyConnection: func(tls.ConnectionState) error {
		shown = true
		return nil
	}})
	_ = c.HandshakeContext(t.Context()) // without a certificate
	_ = c.Close()
	if !shown {
		t.Error("the published authority is not that of the hub's certificate")
	}
	clusterCA, err := os.ReadFile(filepath.Join(h.dir, "pki", "ca.crt"))
	must(t, err)
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(clusterCA)
	api := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
	resp, err := api.Get("https://" + addr + "/version")
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the API server through the hub's port: %s", resp.Status)
	}
}

func mustDial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	must(t, err)
	return c
}
