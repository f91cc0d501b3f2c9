// The egress selector of k8s.io/apiserver, as kube-apiserver has it: in a process of its
// own, and in ours.

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"github.com/hawser-project/hawser/e2e/await"
)

// TestEgressSelector has a kubelet's API reached through each front end, as the printed
// configuration says. The API server of the cluster goes through one of them as well.
func TestEgressSelector(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	dir := shortTempDir(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	port, grpcPort := strconv.Itoa(await.FreePort(t)), strconv.Itoa(await.FreePort(t))
	configs := map[string][]string{
		"grpc":    {"--protocol=grpc", "--uds=" + file("k")},
		"connect": {"--uds=" + file("c")},
		"mtls":    {"--transport=mtls", "--url=https://127.0.0.1:" + port},
	}
	print := func(name, dataDir string) string {
		return egressFile(t, file(name+".yaml"), append(configs[name], "--data-dir="+dataDir)...)
	}
	c := startUp(t, "--nodes=1", "--server-arg=--connect-port="+port, "--server-arg=--connect-uds="+file("c"), "--server-arg=--konnectivity-uds="+file("k"),
		"--server-arg=--konnectivity-port="+grpcPort,
		"--server-arg=--egress-selector-config-file="+print("grpc", dir))
	// The node may be ready before its kubelet API has a certificate.
	eventually(t, "the API server reaches its node", func() error {
		_, err := c.client.Discovery().RESTClient().Get().AbsPath(metricsOf("node-1")).DoRaw(t.Context())
		return err
	})
	if n := c.metrics(t)[`hawser_connect_dials_total{front="konnectivity-unix",result="ok"}`]; n == 0 {
		t.Error("it reached the node some other way")
	}
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), roleEnv+"=egress "+print(name, c.dir)+" "+filepath.Join(c.dir, "pki"))
			if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "ok" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	t.Run("grpc over mtls", func(t *testing.T) {
		dial := func(pair string) error {
			return dialKonnectivity(t.Context(), "127.0.0.1:"+grpcPort, filepath.Join(c.dir, "pki"), pair)
		}
		must(t, dial("connect-client"))
		if err := dial("kubelet-client"); err == nil || !strings.Contains(err.Error(), "may not connect to nodes: use the certificate connect-client.crt") {
			t.Errorf("with another certificate: %v", err)
		}
	})
	t.Run("metric names", func(t *testing.T) { testMetricNames(t, c) })
}

// egressFile has the program print the configuration of an egress selector to a file.
func egressFile(t *testing.T, file string, args ...string) string {
	t.Helper()
	_, client := bin(t)
	text, err := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), append([]string{"manifest", "egress"}, args...)...).Output()
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
	return file
}

// dialKonnectivity reaches node-1 by konnectivity's own client, which kube-apiserver has
// over unix sockets only.
func dialKonnectivity(ctx context.Context, front, pki, pair string) error {
	cert, err := tls.LoadX509KeyPair(filepath.Join(pki, pair+".crt"), filepath.Join(pki, pair+".key"))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	creds := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{cert}})
	tunnel, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, context.Background(), front, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	conn, err := tunnel.DialContext(ctx, "tcp", "node-1:10250")
	if err != nil {
		return err
	}
	return conn.Close()
}

// reachKubelet is what another program does: FILE is its configuration, and PKI has the
// keys of an API server.
func reachKubelet(arg string) error {
	file, pki, _ := strings.Cut(arg, " ")
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return err
	}
	if err := egressselector.ValidateEgressSelectorConfiguration(config).ToAggregate(); err != nil {
		return err
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil {
		return err
	}
	dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
	if err != nil {
		return err
	}
	kubelet, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://node-1:10250",
		Dial: dial,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: filepath.Join(pki, "kubelet-ca.crt"), CertFile: filepath.Join(pki, "kubelet-client.crt"), KeyFile: filepath.Join(pki, "kubelet-client.key"),
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	body, err := kubelet.RESTClient().Get().AbsPath("/healthz").DoRaw(ctx)
	if err != nil || string(body) != "ok" {
		return fmt.Errorf("healthz: %q, %w", body, err)
	}
	ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := dial(ctx, "tcp", "no-such-node:10250"); err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("a node that does not exist: %w", err)
	}
	fmt.Println("ok")
	return nil
}
