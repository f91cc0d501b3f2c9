// The packages, installed, used, upgraded and removed in a Debian that has been booted: systemd
// runs the units.

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pod runs until it is killed, with a volume that the agent has mounted.
const pod = `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {
containers: [{name: c, image: none, command: [sleep, "86413"], volumeMounts: [{name: v, mountPath: /v}]}],
volumes: [{name: v, emptyDir: {medium: Memory}}]}}`

func testPackages(t *testing.T, dir string) {
	for _, tool := range []string{"mmdebstrap", "systemd-nspawn", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Skipf("SKIPPED: it needs root and the packages mmdebstrap, systemd-container and util-linux (%s: %v)", tool, err)
		}
	}
	m := bootDebian(t)
	for _, p := range programs {
		m.copyIn(t, one(t, dir, p.name+"_*.deb"), p.name+".deb")
	}
	m.run(t, "dpkg -i /root/hawser.deb /root/hawser-agent.deb /root/hawser-ccm.deb")
	// Nothing starts, now or with the machine, before it has been configured.
	for _, p := range programs {
		m.fails(t, "systemctl is-enabled "+p.unit)
		m.fails(t, "systemctl is-active "+p.unit)
		m.run(t, "zcat /usr/share/man/man1/"+p.unit+".1.gz | grep -q 'SH OPTIONS' && /usr/bin/"+p.name+" --version")
	}
	m.use(t)
	m.upgrade(t, dir)
	m.remove(t)
}

// use makes the machine a cluster of one node, which runs a pod.
func (m *machine) use(t *testing.T) {
	m.run(t, `sed -i 's/^FLAGS=.*/FLAGS="--advertise-address=127.0.0.1"/' /etc/hawser/server.env && systemctl enable --now hawser-server`)
	m.until(t, "hawser kubectl get --raw /readyz")
	m.run(t, `join=$(hawser token create --print-join-command) && systemctl enable hawser-agent &&
echo "FLAGS=\"${join#hawser-agent} --node-name=edge --node-ip=192.0.2.1 --eviction-hard=memory.available<100Mi\"" >/etc/hawser/agent.env && systemctl start hawser-agent`)
	m.until(t, "hawser kubectl get node edge | grep ' Ready'")
	m.run(t, "echo '"+pod+"' | hawser kubectl apply -f -")
	m.until(t, "hawser kubectl get pod p | grep ' Running'")
	// The cloud-controller-manager, which has no right to read its kubeconfig itself.
	m.run(t, "cp /var/lib/hawser/admin.kubeconfig /etc/hawser/ccm.kubeconfig && systemctl enable --now hawser-ccm")
	m.until(t, "hawser kubectl -n kube-system get lease cloud-controller-manager")
}

// upgrade installs packages of a higher version. The pod goes on, with its volume.
func (m *machine) upgrade(t *testing.T, dir string) {
	before := map[string]string{}
	for _, p := range programs {
		before[p.unit] = m.run(t, "systemctl show -P MainPID "+p.unit)
	}
	runs := m.run(t, "pgrep -f '^sleep 86413'")
	r, err := newRelease(t.Context(), filepath.Join(dir, "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(r.scratch)
	r.version += "+1"
	if err = errors.Join(os.MkdirAll(r.manDir(), 0o755), r.completions(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if err := errors.Join(r.contents(p), r.deb(p)); err != nil {
			t.Fatal(err)
		}
		m.copyIn(t, r.file(p, ".deb"), p.name+".deb")
	}
	m.run(t, "dpkg -i /root/hawser.deb /root/hawser-agent.deb /root/hawser-ccm.deb")
	for _, p := range programs {
		m.run(t, "systemctl is-active "+p.unit+" && systemctl is-enabled "+p.unit)
		if now := m.run(t, "systemctl show -P MainPID "+p.unit); now == before[p.unit] {
			t.Errorf("%s was not started again by the upgrade", p.unit)
		}
	}
	m.run(t, "grep -q node-name=edge /etc/hawser/agent.env")
	m.until(t, "hawser kubectl get --raw /readyz && hawser kubectl get node edge | grep ' Ready'")
	m.until(t, "hawser kubectl exec p -- grep ' /v tmpfs' /proc/mounts")
	if now := m.run(t, "pgrep -f '^sleep 86413'"); now != runs {
		t.Errorf("the pod was process %s, and is %s after the upgrade", runs, now)
	}
	if restarts := m.run(t, "hawser kubectl get pod p -o jsonpath='{.status.containerStatuses[0].restartCount}'"); restarts != "0" {
		t.Errorf("the upgrade restarted the pod %s times", restarts)
	}
}

// remove removes the packages, and then what they leave. Pods and state are the administrator's.
func (m *machine) remove(t *testing.T) {
	runs := m.run(t, "pgrep -f '^sleep 86413'")
	m.run(t, "dpkg -r hawser-agent hawser-ccm hawser")
	m.fails(t, "pgrep -x 'hawser|hawser-ccm'")
	m.fails(t, "systemctl is-active hawser-agent")
	m.run(t, "test -e /etc/hawser/agent.env && ! test -e /usr/bin/hawser-agent")
	if now := m.run(t, "pgrep -f '^sleep 86413'"); now != runs {
		t.Errorf("the pod was process %s, and is %s after the removal", runs, now)
	}
	m.run(t, "rm /etc/hawser/ccm.kubeconfig; dpkg -P hawser-agent hawser-ccm hawser")
	m.run(t, "! test -e /etc/hawser && test -d /var/lib/hawser && test -d /var/lib/hawser-agent")
	if left := m.run(t, "find /etc/systemd /var/lib/systemd -name '*hawser*'"); left != "" {
		t.Errorf("left after a purge:\n%s", left)
	}
}

// A machine is a Debian in a container of systemd-nspawn.
type machine struct {
	root string
	init int // process id
}

// bootDebian makes the smallest Debian that boots. It has a network of its own, without a way out.
func bootDebian(t *testing.T) *machine {
	t.Helper()
	m := &machine{root: filepath.Join(t.TempDir(), "debian")}
	if out, err := command(t, "", "mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd,dbus,procps", "bookworm", m.root).CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	log, err := os.Create(filepath.Join(filepath.Dir(m.root), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	// Pods have keyrings, and mounts of their own.
	nspawn := command(t, "", "systemd-nspawn", "--quiet", "--directory="+m.root, "--boot", "--register=no", "--keep-unit", "--console=pipe", "--private-network",
		"--capability=all", "--system-call-filter=@keyring bpf", "--machine=debian")
	nspawn.Stdout, nspawn.Stderr = log, log
	nspawn.Cancel = func() error { return nspawn.Process.Signal(syscall.SIGTERM) } // it ends the container
	nspawn.WaitDelay = time.Minute
	if err := nspawn.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.init != 0 {
			_ = syscall.Kill(m.init, syscall.SIGKILL)
		}
		_ = nspawn.Wait()
	})
	eventually(t, func() error {
		m.init = initOf(nspawn.Process.Pid)
		if m.init == 0 {
			return errors.New("systemd-nspawn has started no init: " + read(t, log.Name()))
		}
		return nil
	})
	m.until(t, "systemctl is-system-running")
	return m
}

// sh is a shell on the machine.
func (m *machine) sh(t *testing.T, script string) *exec.Cmd {
	return command(t, "", "nsenter", "--target="+strconv.Itoa(m.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root",
		"env", "-i", "-C", "/", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "KUBECONFIG=/var/lib/hawser/admin.kubeconfig", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", script)
}

// run returns what a script prints. It must succeed.
func (m *machine) run(t *testing.T, script string) string {
	t.Helper()
	out, err := m.sh(t, script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", script, err, out, m.journal(t))
	}
	return strings.TrimSpace(string(out))
}

// fails runs a script that must not succeed.
func (m *machine) fails(t *testing.T, script string) {
	t.Helper()
	if out, err := m.sh(t, script).CombinedOutput(); err == nil {
		t.Errorf("%s: %s", script, out)
	}
}

// until runs a script until it succeeds.
func (m *machine) until(t *testing.T, script string) {
	t.Helper()
	eventually(t, func() error {
		if out, err := m.sh(t, script).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s\n%s", script, err, out, m.journal(t))
		}
		return nil
	})
}

// eventually asks until there is no error, for two minutes.
func eventually(t *testing.T, ask func() error) {
	t.Helper()
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for late := time.After(2 * time.Minute); ; {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(err)
		}
	}
}

// initOf is the child of a process that is the first of a process namespace, 0 if there is none.
func initOf(parent int) int {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	for pid := range strings.FieldsSeq(string(children)) {
		status, _ := os.ReadFile("/proc/" + pid + "/status")
		if regexp.MustCompile(`(?m)^NSpid:\t\d+\t1$`).Match(status) {
			n, _ := strconv.Atoi(pid)
			return n
		}
	}
	return 0
}

func (m *machine) journal(t *testing.T) string {
	out, _ := m.sh(t, "journalctl --no-pager --lines=30").CombinedOutput()
	return string(out)
}

// copyIn copies a file to /root.
func (m *machine) copyIn(t *testing.T, file, name string) {
	t.Helper()
	if out, err := command(t, "", "cp", file, filepath.Join(m.root, "root", name)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
