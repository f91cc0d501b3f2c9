// Machines with containerd and a kubelet of Kubernetes, under agents.

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/e2e/await"
)

// A machine has namespaces of processes and mounts, where containerd is the first process:
// what it and kubelets leave ends with it. Its network is the host's.
type machine struct {
	dir string
	pid int
}

// machineScript keeps from the host what containerd and kubelets write at fixed places.
const machineScript = `set -e
mount --make-rprivate /
for d in /run /var/lib /var/log; do mount -t tmpfs tmpfs $d; done
mount --make-rshared /
mount -t proc proc /proc
mkdir /run/sysctl
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=/run/sysctl/$(echo $f | tr / .)
	cat /proc/sys/$f >$copy
	mount --bind $copy /proc/sys/$f
done
for d in /sys/fs/cgroup/*/; do
	[ ! -e $d/cgroup.procs ] || mkdir -p $d/$1
done
exec containerd --config $2`

// containerdConfig names the directory of the CNI configuration.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:latest"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = %q
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
`

// podNetwork gives pods addresses that the host reaches.
const podNetwork = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.77.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]}`

// startMachine runs a machine until the test ends. Its images are named none, which tests
// of other runtimes give, and pause.
func startMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: shortTempDir(t)}
	file := func(name, text string) string {
		path := filepath.Join(m.dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	network := filepath.Dir(file("cni/10-pods.conflist", podNetwork))
	log, err := os.Create(filepath.Join(m.dir, "containerd.log"))
	must(t, err)
	cmd := exec.Command("sh", "-c", machineScript, "sh", m.cgroup(), file("containerd.toml", fmt.Sprintf(containerdConfig, network)))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	m.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		eventually(t, "the machine's cgroups are empty", m.removeCgroups)
		if b, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("--- containerd\n%s", b[max(0, len(b)-3000):])
		}
	})
	for image, command := range map[string][]string{"none": {"/bin/sh"}, "pause": {"/bin/sleep", "2147483647"}} {
		tarball := file(image+".tar", string(imageOf(t, image, command)))
		eventually(t, "containerd has the image "+image, func() error {
			args := m.inside("ctr", "-n", "k8s.io", "images", "import", "--snapshotter", "native", tarball)
			if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	return m
}

func (m *machine) cgroup() string { return "hawser-" + filepath.Base(m.dir) }

// removeCgroups removes what containerd and kubelets have left, from the leaves on.
func (m *machine) removeCgroups() error {
	dirs, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", m.cgroup()))
	for _, dir := range dirs {
		if out, fault := exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").CombinedOutput(); len(out) > 0 {
			err = fmt.Errorf("%s: %w", out, fault)
		}
	}
	return err
}

// inside is how a program is run in the machine.
func (m *machine) inside(args ...string) []string {
	return append([]string{"nsenter", "-t", strconv.Itoa(m.pid), "-p", "-m", "--"}, args...)
}

// imageOf makes an image of busybox, as docker save does.
func imageOf(t *testing.T, name string, command []string) []byte {
	t.Helper()
	path, err := exec.LookPath("busybox")
	must(t, err)
	busybox, err := os.ReadFile(path)
	must(t, err)
	archive := func(files ...*tar.Header) func(contents ...[]byte) []byte {
		return func(contents ...[]byte) []byte {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for i, h := range files {
				var content []byte
				if h.Typeflag == tar.TypeReg && i < len(contents) {
					content = contents[i]
				}
				h.Size = int64(len(content))
				must(t, w.WriteHeader(h))
				_, err := w.Write(content)
				must(t, err)
			}
			must(t, w.Close())
			return b.Bytes()
		}
	}
	files := []*tar.Header{{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}}
	for _, applet := range []string{"sh", "sleep", "cat", "echo", "nc"} {
		files = append(files, &tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"})
	}
	layer := archive(files...)(busybox)
	sum := func(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }
	text := func(v any) []byte {
		b, err := json.Marshal(v)
		must(t, err)
		return b
	}
	config := text(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": command, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}},
	})
	manifest := text([]map[string]any{{"Config": sum(config) + ".json", "RepoTags": []string{name + ":latest"}, "Layers": []string{"layer.tar"}}})
	plain := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	return archive(plain(sum(config)+".json"), plain("layer.tar"), plain("manifest.json"))(config, layer, manifest)
}

// kubeletConfig names a port, the authority of clients, and a cgroup.
const kubeletConfig = `{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": "127.0.0.1", "port": %d, "healthzPort": 0,
 "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": %q}}, "authorization": {"mode": "Webhook"},
 "serverTLSBootstrap": true, "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "cgroupRoot": "/%s", "cgroupDriver": "cgroupfs",
 "failCgroupV1": false, "failSwapOn": false, "makeIPTablesUtilChains": false, "evictionHard": {"memory.available": "0%%"}, "imageGCHighThresholdPercent": 100,
 "nodeStatusUpdateFrequency": "2s", "volumePluginDir": "/var/lib/kubelet/volume-plugins", "clusterDNS": ["10.96.0.10"], "resolvConf": ""}`

// joinKubelet runs a kubelet in the machine, and an agent that is told how to join. The
// kubelet has the agent's identity, and a kubeconfig as the help topic kubelets has it.
func (c *cluster) joinKubelet(t *testing.T, m *machine, name string, join ...string) {
	t.Helper()
	port, conf := c.leadsToKubelet(t, name, join...)
	c.runKubelet(t, m, name, port, conf)
}

// leadsToKubelet runs an agent whose node's kubelet is another process, which listens on the
// port, has the agent's identity, and reaches the API server by the tunnel.
func (c *cluster) leadsToKubelet(t *testing.T, name string, join ...string) (port int, conf clientcmdapi.Config) {
	t.Helper()
	under, _ := bin(t)
	dir := filepath.Join(c.dir, "nodes", name)
	must(t, os.MkdirAll(dir, 0o700))
	port, api := await.FreePort(t), "127.0.0.1:"+strconv.Itoa(await.FreePort(t))
	run(t, append([]string{
		filepath.Join(under, "hawser-agent"), "--node-name", name, "--data-dir", dir, "--kubelet", "https://127.0.0.1:" + strconv.Itoa(port), "--apiserver-listen", api,
	}, join...), filepath.Join(dir, "agent"))
	key := func(file string) string { return filepath.Join(dir, "pki", file) }
	eventually(t, "the agent has a certificate", func() error {
		_, err := os.Stat(key("kubelet-client-current.pem"))
		return err
	})
	pair := key("kubelet-client-current.pem")
	return port, kubeconfigOf(clientcmdapi.Cluster{Server: "https://" + api, TLSServerName: "kubernetes", CertificateAuthority: key("ca.crt")}, pair, pair)
}

// usersOfKubelets writes the authority of those who use kubelets to a file.
func (c *cluster) usersOfKubelets(t *testing.T, file string) {
	t.Helper()
	clients, err := c.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	must(t, err)
	must(t, os.WriteFile(file, []byte(clients.Data["client-ca-file"]), 0o600))
}

// runKubelet runs a kubelet in the machine, with a kubeconfig.
func (c *cluster) runKubelet(t *testing.T, m *machine, name string, port int, conf clientcmdapi.Config) {
	t.Helper()
	dir := filepath.Join(c.dir, "kubelets", name)
	must(t, os.MkdirAll(dir, 0o700))
	file := func(name string) string { return filepath.Join(dir, name) }
	must(t, clientcmd.WriteToFile(conf, file("kubelet.kubeconfig")))
	c.usersOfKubelets(t, file("clients.crt"))
	must(t, os.WriteFile(file("kubelet.json"), fmt.Appendf(nil, kubeletConfig, port, file("clients.crt"), m.cgroup()), 0o600))
	kubelet := m.inside(filepath.Join(*kubernetesDir, "kubelet"), "--config", file("kubelet.json"), "--kubeconfig", file("kubelet.kubeconfig"), "--hostname-override", name)
	t.Cleanup(func() { // nsenter has ended by then, and the kubelet has not
		for pid := range processesOf(file("kubelet.json")) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if b, err := os.ReadFile(file("kubelet.log")); err == nil && t.Failed() {
			t.Logf("--- kubelet\n%s", b[max(0, len(b)-8000):])
		}
	})
	run(t, kubelet, file("kubelet"))
}
