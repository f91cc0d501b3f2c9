package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/auth/hostkeys/hostkeystest"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/server/sshnodes"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

func TestSSHFlags(t *testing.T) {
	key := filepath.Join(t.TempDir(), "id")
	newSSHServer(t, key)
	for name, tt := range map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"off":          {nil, ""},
		"on":           {[]string{"--ssh-user", "u", "--ssh-keyfile", key, "--ssh-port", "2222"}, ""},
		"user alone":   {[]string{"--ssh-user", "u"}, "--ssh-user and --ssh-keyfile"},
		"key alone":    {[]string{"--ssh-keyfile", "f"}, "--ssh-user and --ssh-keyfile"},
		"no such port": {[]string{"--ssh-port", "0"}, "--ssh-port 0"},
		"other file":   {[]string{"--ssh-known-hosts", "/etc/hosts_of_mine"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var o sshOptions
			f := pflag.NewFlagSet("server", pflag.ContinueOnError)
			o.addFlags(f)
			if err := f.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			err := o.check("/data")
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err == nil && o.knownHosts != "/data/ssh_known_hosts" && !f.Changed("ssh-known-hosts") {
				t.Errorf("host keys in %s", o.knownHosts)
			}
		})
	}
}

// What is wrong with the files is said before anything is opened.
func TestSSHFiles(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("@revoked junk\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	_, err := newSSHNodes(&sshOptions{user: "u", keyFile: junk, knownHosts: junk, port: 22}, nil, prometheus.NewRegistry(), log)
	if err == nil || !strings.Contains(err.Error(), "--ssh-known-hosts: host keys "+junk+": line 1") {
		t.Errorf("host keys that are none: %v", err)
	}
	_, err = newSSHNodes(&sshOptions{user: "u", keyFile: junk, knownHosts: filepath.Join(dir, "none"), port: 22}, nil, prometheus.NewRegistry(), log)
	if err == nil || !strings.Contains(err.Error(), "--ssh-keyfile: ssh key "+junk) {
		t.Errorf("a key that is none: %v", err)
	}
}

func sshNodeObject(mode string, addresses ...corev1.NodeAddress) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{Addresses: addresses}}
	if mode != "" {
		n.Annotations = map[string]string{setup.TransportAnnotation: mode}
	}
	return n
}

// Only nodes that say so are reached beyond the tunnel, and what is missing is said.
func TestSSHNodes(t *testing.T) {
	ip := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}
	name := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "host"}
	dir := t.TempDir()
	host := newSSHServer(t, filepath.Join(dir, "id"))
	keyless, err := newSSHNodes(&sshOptions{port: 22}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := hostkeys.Open(filepath.Join(dir, sshKnownHosts), nil)
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := sshnodes.New(sshnodes.Config{SSH: overssh.Config{User: "u", KeyFile: filepath.Join(dir, "id"), HostKeys: keys}})
	if err != nil {
		t.Fatal(err)
	}
	with := &sshNodes{fleet: fleet, port: host.port, known: map[string]sshNode{}}
	for what, tt := range map[string]struct {
		nodes *sshNodes
		node  *corev1.Node
		want  string // of a dial's error; empty means that the node is not reached so
	}{
		"a tunnel":    {with, sshNodeObject("", ip), ""},
		"other ways":  {with, sshNodeObject("pigeon", ip), ""},
		"no key":      {keyless, sshNodeObject(setup.SSH, ip), "--ssh-user and --ssh-keyfile"},
		"no address":  {with, sshNodeObject(setup.SSH, name), "no InternalIP"},
		"not pinned":  {with, sshNodeObject(setup.SSH, name, ip), "hawser ssh pin node-1"},
		"no more ssh": {with, sshNodeObject("", ip), ""},
	} {
		t.Run(what, func(t *testing.T) {
			tt.nodes.set(tt.node)
			dial, ok := tt.nodes.beyond("node-1")
			if ok != (tt.want != "") {
				t.Fatalf("beyond: %v", ok)
			}
			if !ok {
				return
			}
			_, err := dial(t.Context(), tunnel.Dial{Network: "tcp", Addr: "node-1:10250"})
			var de *tunnel.DialError
			if !errors.As(err, &de) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("dial: %v", err)
			}
			tt.nodes.remove("node-1")
			if _, ok := tt.nodes.beyond("node-1"); ok {
				t.Error("it is there after it was removed")
			}
		})
	}
}

func TestSSHTarget(t *testing.T) {
	n := sshNode{ips: []string{"10.0.0.1", "fd00::1"}, kubelet: "10251"}
	for addr, want := range map[string]string{
		"node-1:10251":    "node-1:10251",
		"10.0.0.1:10251":  "node-1:10251",
		"[fd00::1]:10251": "node-1:10251",
		"10.0.0.1:80":     "10.0.0.1:80", // a pod on the node's network
		"10.0.0.2:10251":  "10.0.0.2:10251",
		"nonsense":        "nonsense",
	} {
		if got := n.target("node-1", addr); got != want {
			t.Errorf("%s leads to %s, want %s", addr, got, want)
		}
	}
}

// An sshServer shows its host key to whoever asks.
type sshServer struct {
	addr        string
	port        int
	fingerprint string
}

// newSSHServer starts one, and writes a private key to keyFile.
func newSSHServer(t *testing.T, keyFile string) sshServer {
	t.Helper()
	key := hostkeystest.WriteKey(t, keyFile)
	addr, _ := hostkeystest.Serve(t, key)
	return sshServer{addr, int(netip.MustParseAddrPort(addr).Port()), ssh.FingerprintSHA256(key.PublicKey())}
}

// A key is pinned only if somebody has said so, and never another than that.
func TestSSHPin(t *testing.T) {
	dir := t.TempDir()
	host := newSSHServer(t, filepath.Join(dir, "id"))
	for name, tt := range map[string]struct {
		args  []string
		stdin string
		want  string // in the error; empty means that the key is pinned
	}{
		"yes":               {nil, "yes\n", ""},
		"the fingerprint":   {nil, host.fingerprint + "\n", ""},
		"no newline":        {nil, "yes", ""},
		"no":                {nil, "no\n", `"no" is neither`},
		"nobody there":      {nil, "", "--fingerprint"},
		"fingerprint given": {[]string{"--fingerprint", host.fingerprint}, "", ""},
		"another one":       {[]string{"--fingerprint", "SHA256:other"}, "yes\n", "no host key SHA256:other: it shows [ssh-ed25519 " + host.fingerprint + "]"},
		"no fingerprint":    {[]string{"--fingerprint", "MD5:00"}, "", "--fingerprint"},
		"bad port":          {[]string{"--ssh-port", "0"}, "", "--ssh-port"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			run := func(args ...string) (string, error) {
				var out bytes.Buffer
				cmd := newSSH()
				cmd.SilenceErrors, cmd.SilenceUsage = true, true
				cmd.SetArgs(append(args, "--data-dir", dir))
				cmd.SetIn(iotest.OneByteReader(strings.NewReader(tt.stdin)))
				cmd.SetOut(&out)
				err := cmd.ExecuteContext(context.WithoutCancel(t.Context()))
				return out.String(), err
			}
			out, err := run(append([]string{"pin", "node-1", "--address", host.addr}, tt.args...)...)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				if tt.args == nil && !strings.Contains(out, host.fingerprint) {
					t.Errorf("shown: %s", out)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, sshKnownHosts)); len(left) > 0 {
					t.Error("something was written")
				}
				return
			}
			if err != nil || !strings.Contains(out, host.fingerprint) {
				t.Fatalf("%v\n%s", err, out)
			}
			if out, err = run("list"); err != nil || !strings.Contains(out, "node-1   ssh-ed25519   "+host.fingerprint) {
				t.Errorf("list: %v\n%s", err, out)
			}
			if _, err = run("unpin", "node-1"); err != nil {
				t.Error(err)
			}
			if _, err = run("unpin", "node-1"); err == nil || !strings.Contains(err.Error(), "hawser ssh list") {
				t.Errorf("unpin twice: %v", err)
			}
		})
	}
}

// TestSSHUnreadableLine: pin, list and unpin work with a line that cannot be read, and keep it.
func TestSSHUnreadableLine(t *testing.T) {
	host := newSSHServer(t, filepath.Join(t.TempDir(), "id"))
	dir, bad := t.TempDir(), "node-2 ssh-ed25519 AAAA # mine\n"
	file := filepath.Join(dir, sshKnownHosts)
	if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"pin", "node-1", "--address", host.addr, "--fingerprint", host.fingerprint}, {"list"}, {"unpin", "node-1"},
	} {
		cmd := newSSH()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(args, "--data-dir", dir))
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("%s: %v", args[0], err)
		}
		if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), bad) {
			t.Errorf("%s: %v, and the file is\n%s", args[0], err, b)
		}
	}
}

// TestSSHPinMaxStartups: a key is pinned by its fingerprint though the sshd takes one connection at a
// time, and hangs up on another one. Without a fingerprint one connection is enough.
func TestSSHPinMaxStartups(t *testing.T) {
	key := hostkeystest.WriteKey(t, filepath.Join(t.TempDir(), "id"))
	fingerprint := ssh.FingerprintSHA256(key.PublicKey())
	for name, tt := range map[string]struct {
		args []string
		want string // in the error; empty means that the key is pinned
	}{
		"fingerprint": {[]string{"--fingerprint", fingerprint}, ""},
		"asks":        {nil, ""},
		"another one": {[]string{"--fingerprint", "SHA256:other"}, "has not shown host key SHA256:other: it shows [ssh-ed25519 " + fingerprint + "], and then: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := hostkeystest.ServeSome(t, func(n int) bool { return n == 0 }, key)
			cmd := newSSH()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(append([]string{"pin", "node-1", "--address", addr, "--data-dir", t.TempDir()}, tt.args...))
			cmd.SetIn(strings.NewReader("yes\n"))
			cmd.SetOut(io.Discard)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.want != "" { // asks until the deadline
				ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
			}
			err := cmd.ExecuteContext(ctx)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestSSHPinAsRoot: root leaves alone the file of a server that another user runs.
func TestSSHPinAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: not root")
	}
	host := newSSHServer(t, filepath.Join(t.TempDir(), "id"))
	for name, tt := range map[string]struct {
		uid  int
		want string // in the error; empty means that the key is pinned
	}{
		"nameless": {54321, "belongs to user 54321, whose server could not read what root writes there: run this as that user (sudo -u '#54321' hawser ssh …)"},
		"named":    {65534, "(sudo -u nobody hawser ssh …)"},
		"its own":  {0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chown(dir, tt.uid, -1); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"pin", "node-1", "--address", host.addr, "--fingerprint", host.fingerprint}, {"unpin", "node-1"}} {
				cmd := newSSH()
				cmd.SilenceErrors, cmd.SilenceUsage = true, true
				cmd.SetArgs(append(args, "--data-dir", dir))
				cmd.SetOut(io.Discard)
				err := cmd.ExecuteContext(context.WithoutCancel(t.Context()))
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%s: got %v, want %q", args[0], err, tt.want)
				}
			}
			if left, _ := os.ReadDir(dir); tt.want != "" && len(left) > 0 {
				t.Errorf("%s was written", left[0].Name())
			}
		})
	}
}
