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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// notOurs is what makes a server somebody else's: it knows nothing of tunnels.
var notOurs = []string{"--nodes=0", "--server-arg=--controllers=*,-hawser-tunnel-health-controller", "--server-arg=--cause-aware-eviction=false"}

// hubHost is where the hub is, which the API server's certificate does not name.
const hubHost = "127.0.0.2"

// hubAccount is the user that hubs are to the API server.
const hubAccount = "system:serviceaccount:hawser-system:hawser-hub"

// A besideHub is a hub beside a cluster, whose nodes come by it alone.
type besideHub struct {
	*front                           // of the hub
	data                      string // its directory
	port, health, connectPort int
	kube                      string // kubeconfig of its service account
	audit                     string // the API server's log
	// starting are the times in which the API server was not ready, and had read no roles:
	// it refuses everybody then.
	starting [][2]time.Time
}

// auditAll has each request of the API server written down, without its content.
const auditAll = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\nomitStages: [RequestReceived]\n"

// startBeside starts a cluster, and makes what a hub beside it needs: the roles that the
// program prints, and a kubeconfig with their service account's token.
func startBeside(t *testing.T) *besideHub {
	t.Helper()
	flags, log := auditFlags(t)
	args := slices.Clone(notOurs)
	for _, f := range flags {
		args = append(args, "--server-arg="+f)
	}
	h := newBeside(t, startUp(t, args...), log)
	h.grant(t)
	return h
}

// auditFlags have an API server write down each request, in log.
func auditFlags(t *testing.T) (flags []string, log string) {
	t.Helper()
	dir := shortTempDir(t)
	policy, log := filepath.Join(dir, "policy"), filepath.Join(dir, "log")
	must(t, os.WriteFile(policy, []byte(auditAll), 0o600))
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, log
}

// newBeside is a hub that is not started, beside a cluster with such a log.
func newBeside(t *testing.T, c *cluster, log string) *besideHub {
	t.Helper()
	return &besideHub{
		front: &front{c, filepath.Join(c.dir, "hub.sock")}, data: filepath.Join(c.dir, "hub"), port: await.FreePort(t), health: await.FreePort(t), connectPort: await.FreePort(t),
		audit: log, kube: filepath.Join(c.dir, "hub.kubeconfig"),
	}
}

// args are how the hub is started, with its data in a directory.
func (h *besideHub) args(t *testing.T, data string, more ...string) []string {
	under, _ := bin(t)
	return append([]string{
		filepath.Join(under, "hawser"), "server", "--kubeconfig", h.kube, "--data-dir", data,
		"--bind-address", hubHost, "--secure-port", strconv.Itoa(h.port), "--health-port", strconv.Itoa(h.health),
		"--connect-port", strconv.Itoa(h.connectPort), "--tunnel-probe-period", "1s",
	}, more...)
}

// start starts the hub, whose certificate is of an authority of its own.
func (h *besideHub) start(t *testing.T, more ...string) {
	t.Helper()
	run(t, h.args(t, h.data, append(more, "--connect-uds", h.socket)...), h.data)
	h.isReady(t)
}

// isReady waits until the hub says so.
func (h *besideHub) isReady(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	eventually(t, "the hub is ready", func() error {
		resp, err := client.Get(fmt.Sprintf("https://%s:%d/readyz", hubHost, h.health))
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

// metricsAreNotForAll: the cluster says who may read them, flags and profiles.
func (h *besideHub) metricsAreNotForAll(t *testing.T) {
	t.Helper()
	conf, err := clientcmd.BuildConfigFromFlags("", h.kube)
	must(t, err)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for _, path := range []string{"/metrics", "/configz", "/debug/pprof/heap"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://%s:%d%s", hubHost, h.health, path), http.NoBody)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+conf.BearerToken)
		resp, err := client.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("a service account without that right gets %s: %s", path, resp.Status)
		}
	}
}

// killHub ends the hub without a word.
func (h *besideHub) killHub(t *testing.T) {
	t.Helper()
	h.signalHub(t, syscall.SIGKILL)
}

// signalHub ends the hub by a signal.
func (h *besideHub) signalHub(t *testing.T, s syscall.Signal) {
	t.Helper()
	b, err := os.ReadFile(h.data + ".pid")
	must(t, err)
	pid, err := strconv.Atoi(string(b))
	must(t, err)
	must(t, syscall.Kill(pid, s))
	eventually(t, "the hub is gone", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return errors.New("still there")
		}
		return nil
	})
}

// joins starts an agent that knows no address but the hub's, and those of others.
func (h *besideHub) joins(t *testing.T, name string, others ...*besideHub) {
	t.Helper()
	under, client := bin(t)
	words := h.joinCommand(t, filepath.Join(client, "hawser"))
	words[0] = filepath.Join(under, "hawser-agent")
	for i := range words {
		if strings.HasPrefix(words[i], "https://") {
			words[i] = fmt.Sprintf("https://%s:%d", hubHost, h.port)
			for _, o := range others {
				words[i] += fmt.Sprintf(",https://%s:%d", hubHost, o.port)
			}
		}
	}
	dir := filepath.Join(h.dir, "nodes", name)
	must(t, os.MkdirAll(dir, 0o700))
	run(t, append(words, "--apiserver-name", "kubernetes", "--node-name", name, "--data-dir", dir, "--eviction-hard="), filepath.Join(dir, "agent"))
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
	return h.answersBy(ctx, name, func(_ context.Context, _, addr string) (net.Conn, error) { return h.connectTo(addr) })
}

// answersBy asks a kubelet through what dials, and verifies it.
func (h *besideHub) answersBy(ctx context.Context, name string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) error {
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
		DialContext:     dial,
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

// connectsByTLS goes by the port of the front end, with the certificate that the hub made
// for those who may.
func (h *besideHub) connectsByTLS(t *testing.T, name string) error {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(h.data, "pki", "connect-client.crt"), filepath.Join(h.data, "pki", "connect-client.key"))
	must(t, err)
	ca, err := os.ReadFile(filepath.Join(h.data, "pki", "ca.crt"))
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	c := tls.Client(mustDial(t, fmt.Sprintf("%s:%d", hubHost, h.connectPort)), &tls.Config{RootCAs: pool, ServerName: hubHost, Certificates: []tls.Certificate{pair}})
	defer c.Close()
	if _, err := fmt.Fprintf(c, "CONNECT %s:10250 HTTP/1.1\r\nHost: %[1]s\r\n\r\n", name); err != nil {
		return err
	}
	return answered(c)
}

// TestBeside: agents that know the hub alone join the cluster through it, heartbeats and
// kubelets included; the hub's status page is for those who may see it; a hub that is killed and comes back loses nobody; a node that is
// revoked is out, also after its Node was deleted; a hub that may not do what it needs says so.
func TestBeside(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	h := startBeside(t)
	h.publishes(t)
	h.signalHub(t, syscall.SIGTERM)
	h.start(t)
	h.metricsAreNotForAll(t)
	names := []string{"node-1", "node-2", "node-3"}
	before := map[string]string{}
	uids := map[string]string{}
	for _, name := range names {
		h.joins(t, name)
	}
	for _, name := range names {
		h.waitNode(t, name)
		before[name] = h.tunnelOf(t, name, "")
		must(t, h.kubeletAnswers(t.Context(), name))
		must(t, h.connectsByTLS(t, name))
		n, err := h.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		uids[name] = string(n.UID)
	}
	h.statusPageIsForViewers(t, "node-1")
	h.diagHas(t, map[string]string{
		"hub/config.json": `"hawser-server":`, "hub/heap.pb.gz": "\x1f\x8b", "hub/trace.out": "go 1.",
		"hub/metrics.txt": "hawser_hub_sessions", "hub/sessions.ndjson": `"node":"node-1"`, "server/metrics.txt": "apiserver_",
	}, "--hub", fmt.Sprintf("https://%s:%d", hubHost, h.health))
	args := h.copied(t)
	oneLine(t, exec.CommandContext(t.Context(), args[0], args[1:]...), "another server runs with a copy of this one's data directory", "--data-dir")

	h.killHub(t)
	h.mustKubectl(t, "", "delete", "node", "node-3")
	h.start(t)
	for _, name := range names[:2] {
		h.tunnelOf(t, name, before[name])
		// What was said of the tunnel may be the killed hub's last word.
		eventually(t, name+" is in reach again", func() error { return h.kubeletAnswers(t.Context(), name) })
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
	h.usedItsRoles(t, rare)
	h.signalHub(t, syscall.SIGTERM)
	h.tellsWhatIsMissing(t, "node-2")
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
	for flag, port := range map[string]int{"--secure-port": await.FreePort(t), "--health-port": await.FreePort(t), "--connect-port": await.FreePort(t)} {
		for i := range args {
			if args[i] == flag {
				args[i+1] = strconv.Itoa(port)
			}
		}
	}
	return args
}

// publishes checks a hub without a certificate: it makes an authority, and publishes it
// where agents find it; what is not the tunnel's on its port is the API server's.
func (h *besideHub) publishes(t *testing.T) {
	t.Helper()
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
	addr := fmt.Sprintf("%s:%d", hubHost, h.port)
	// The hub shows its certificate before it asks for one.
	shown := false
	c := tls.Client(mustDial(t, addr), &tls.Config{RootCAs: pool, ServerName: hubHost, NextProtos: []string{qmux.ALPN}, VerifyConnection: func(tls.ConnectionState) error {
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
	api := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "kubernetes"}, DisableKeepAlives: true}}
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
