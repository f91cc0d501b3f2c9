// Nodes without a tunnel: the server reaches them through a real OpenSSH server.

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/auth/hostkeys/hostkeystest"
	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/e2e/await"
)

// An sshd is a node's own SSH server, with host key and configuration of its own.
type sshd struct {
	dir  string
	user string
	node *lab.Node // nil where nodes are plain processes
	ip   string    // by which the server reaches it
	port int
	stop func()

	kubelet string // port of the node's kubelet API
}

// newSSHD makes the files of an sshd; it skips, loudly, where there is none to run.
func newSSHD(t *testing.T, node *lab.Node) *sshd {
	t.Helper()
	if _, err := os.Stat(sshdPath()); err != nil {
		t.Skipf("SKIPPED: no sshd here (%v): install openssh-server, this mode is for it", err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Uid == "0" {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // it wants that
			t.Fatal(err)
		}
	}
	s := &sshd{dir: shortTempDir(t), user: me.Username, node: node, port: 22, kubelet: "10250", stop: func() {}}
	if node != nil {
		s.ip = node.NATIP()
		if err := node.Expose(t.Context(), 22); err != nil {
			t.Fatal(err)
		}
	} else {
		s.ip = ownAddress(t)
		s.port, s.kubelet = await.FreePort(t), strconv.Itoa(await.FreePort(t))
	}
	hostkeystest.WriteKey(t, s.path("id"))
	hostkeystest.WriteKey(t, s.path("host"))
	config := fmt.Sprintf(`Port %d
HostKey %s
PidFile none
AuthorizedKeysFile %s
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
AllowTcpForwarding yes
MaxStartups 100
`, s.port, s.path("host"), s.path("id.pub"))
	if node == nil {
		config += "ListenAddress 127.0.0.1\n"
	}
	if err := os.WriteFile(s.path("config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop() })
	return s
}

// sshdPath is where sshd is: it wants to be called by its full name.
func sshdPath() string {
	if path, err := exec.LookPath("sshd"); err == nil {
		return path
	}
	return "/usr/sbin/sshd"
}

func (s *sshd) path(name string) string { return filepath.Join(s.dir, name) }

// start runs the sshd on the node until stop, which ends its connections too.
func (s *sshd) start(t *testing.T) {
	t.Helper()
	args := []string{"-D", "-e", "-f", s.path("config")}
	cmd := exec.Command(sshdPath(), args...)
	if s.node != nil {
		cmd = s.node.Command(context.WithoutCancel(t.Context()), sshdPath(), args...)
	}
	var log lines
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.stop = func() {
		s.stop = func() {}
		for _, pid := range descendants(cmd.Process.Pid) { // one or two a connection
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	eventually(t, "sshd listens", func() error {
		if !strings.Contains(log.String(), "Server listening") {
			return errors.New(log.String())
		}
		return nil
	})
}

// descendants are the processes that pid has started, and those that they have.
func descendants(pid int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(append(pids, child), descendants(child)...)
		}
	}
	return pids
}

// ownAddress is one of this machine by which others may know it, as a node's has to be.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Skip("SKIPPED: this machine has only loopback addresses")
	return ""
}

// sshCluster starts a server and, on a machine of its own where that can be had, a
// node in this mode; each with flags, for hawser up and for the agent.
func sshCluster(t *testing.T, up, more []string) (*cluster, *sshd, string) {
	t.Helper()
	under, client := bin(t)
	var where *lab.Node
	args := append([]string{"--nodes", "0"}, up...)
	if netnsHere(t) {
		network, err := lab.New(t.Context(), shortTempDir(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := network.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		if where, err = network.AddNode(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--server-arg=--bind-address=0.0.0.0", "--server-arg=--advertise-address="+network.HostIP())
	}
	s := newSSHD(t, where)
	uds := s.path("connect.sock")
	c := startUp(t, append(args, "--server-arg=--ssh-user="+s.user, "--server-arg=--ssh-keyfile="+s.path("id"),
		"--server-arg=--ssh-port="+strconv.Itoa(s.port), "--server-arg=--connect-uds="+uds)...)
	join := c.joinCommand(t, filepath.Join(client, "hawser"))
	agent := append([]string{filepath.Join(under, "hawser-agent")}, append(join[1:], "--node-name", "node-1", "--node-ip", s.ip,
		"--data-dir", filepath.Join(c.dir, "nodes", "node-1"), "--transport", "ssh", "--kubelet-port", s.kubelet, "--eviction-hard=")...)
	agent = append(agent, more...)
	if where != nil {
		agent = where.Command(t.Context(), agent[0], agent[1:]...).Args
	}
	run(t, agent, filepath.Join(c.dir, "node-1"))
	c.waitNode(t, "node-1")
	return c, s, uds
}

// failsWith runs kubectl, which must fail with one line that has all of want.
func (c *cluster) failsWith(args []string, want ...string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		eventually(t, strings.Join(args, " ")+" says what is wrong", func() error {
			stdout, stderr, code := c.kubectl(t, "", args...)
			if code == 0 {
				return fmt.Errorf("it worked: %s", stdout)
			}
			for _, w := range want {
				if !strings.Contains(stderr, w) || strings.Count(stderr, "\n") != 1 {
					return fmt.Errorf("%q is not one line about %q", stderr, w)
				}
			}
			t.Log(stderr)
			return nil
		})
	}
}

// pinned runs hawser ssh pin on a node's fingerprint.
func (c *cluster) pinned(t *testing.T, s *sshd, fingerprint string) *exec.Cmd {
	t.Helper()
	_, client := bin(t)
	return exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), "ssh", "pin", "node-1",
		"--data-dir", c.dir, "--ssh-port", strconv.Itoa(s.port), "--fingerprint", fingerprint)
}

// TestSSH has a node without a tunnel reached through its sshd, whose host key an
// administrator must have pinned.
func TestSSH(t *testing.T) {
	t.Parallel()
	c, s, uds := sshCluster(t, nil, nil)
	t.Cleanup(func() { // the pod outlives its agent
		_, _, _ = c.kubectl(t, "", "delete", "pod", "steady", "--now")
	})
	c.podWith(t, "steady", "", "", "sh", "-c", "echo started; exec sleep 1000")
	s.start(t)
	t.Run("not pinned", c.failsWith([]string{"logs", "steady"}, "no ssh host key is pinned for node node-1", "hawser ssh pin node-1"))
	t.Run("another fingerprint", func(t *testing.T) { oneLine(t, c.pinned(t, s, "SHA256:other"), "SHA256:other", "it shows") })
	if out, err := c.pinned(t, s, fingerprintOf(t, s.path("host.pub"))).CombinedOutput(); err != nil {
		t.Fatalf("pin: %v\n%s", err, out)
	}
	c.works(t, "steady")
	t.Run("log follow", func(t *testing.T) { testLogFollow(t, c) })
	t.Run("exec with a terminal", func(t *testing.T) { testTerminal(t, c) })
	t.Run("attach", func(t *testing.T) { testAttach(t, c) })
	t.Run("copy", func(t *testing.T) { testCopy(t, c) })
	t.Run("port-forward", func(t *testing.T) { testPortForward(t, c) })
	t.Run("closed port", func(t *testing.T) { testClosedPort(t, c) })
	t.Run("front end", func(t *testing.T) { testSSHFront(t, s, uds) })
	t.Run("metrics", func(t *testing.T) { testSSHMetrics(t, c) })

	s.stop()
	t.Run("sshd is gone", c.failsWith([]string{"logs", "steady"}, "node-1", "sshd of node-1"))
	s.start(t)
	c.works(t, "steady")
	if s.node != nil {
		t.Run("cut", func(t *testing.T) { testSSHCut(t, c, s) })
	}

	s.stop()
	now := ssh.FingerprintSHA256(hostkeystest.WriteKey(t, s.path("host")).PublicKey())
	s.start(t)
	t.Run("another host key", c.failsWith([]string{"logs", "steady"}, "ssh host key of node node-1 has changed", now, "hawser ssh pin node-1"))
	if out, err := c.pinned(t, s, now).CombinedOutput(); err != nil {
		t.Fatalf("pin: %v\n%s", err, out)
	}
	c.works(t, "steady")
}

// testSSHCut has the node vanish without a word: dials say what is wrong, and when the node is
// back so is everything. A log that is being followed goes on.
func testSSHCut(t *testing.T, c *cluster, s *sshd) {
	follow := loads{startNumbers(t, c, "node-1")}
	follow.goOn(t, "at first")
	must(t, s.node.Cut(t.Context()))
	c.failsWith([]string{"logs", "steady"}, "sshd of node-1")(t)
	must(t, s.node.Heal(t.Context()))
	c.works(t, "steady")
	follow.goOn(t, "once the node is back")
	follow.finish(t)
}

func fingerprintOf(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		t.Fatal(err)
	}
	return ssh.FingerprintSHA256(key)
}

// testSSHFront has the errors of an sshd become statuses of the CONNECT front end.
func testSSHFront(t *testing.T, s *sshd, uds string) {
	closed := strconv.Itoa(await.FreePort(t)) // on the loopback of either machine
	for target, want := range map[string]int{
		net.JoinHostPort("node-1", strconv.Itoa(s.port)): http.StatusOK,
		net.JoinHostPort("node-1", s.kubelet):            http.StatusOK,
		net.JoinHostPort(s.ip, s.kubelet):                http.StatusOK, // it listens on the loopback only
		net.JoinHostPort("node-1", closed):               http.StatusBadGateway,
		"127.0.0.1%25node-1:" + closed:                   http.StatusBadGateway,
		"224.0.0.1%25node-1:80":                          http.StatusBadGateway, // the kernel knows no way there
		"node-2:10250":                                   http.StatusServiceUnavailable,
	} {
		conn, err := net.Dial("unix", uds)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("CONNECT %s: %s (%s), want %d", target, resp.Status, resp.Header.Get("Proxy-Status"), want)
		}
		_ = conn.Close()
	}
	if s.node == nil {
		return
	}
	// Nobody on the node's network gets at the kubelet without its sshd.
	if conn, err := s.node.Dial(t.Context(), "tcp", net.JoinHostPort(s.node.IP(), s.kubelet)); err == nil {
		_ = conn.Close()
		t.Error("the kubelet API listens on more than the loopback")
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// testSSHMetrics wants both the names of old and ours.
func testSSHMetrics(t *testing.T, c *cluster) {
	text := c.mustKubectl(t, "", "get", "--raw", "/metrics")
	for _, name := range []string{"ssh_tunnel_open_count", "ssh_tunnel_open_fail_count", "hawser_ssh_sessions", `hawser_ssh_dials_total{code="ok"}`} {
		if !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("no metric %s", name)
		}
	}
}
