// Nodes without a tunnel, which the server reaches through their sshd: the flags,
// and which nodes they are.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	"github.com/hawser-project/hawser/server/sshnodes"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// sshKnownHosts is the file of pinned host keys in the data directory.
const sshKnownHosts = "ssh_known_hosts"

// sshOptions are the flags that have to do with nodes without a tunnel.
type sshOptions struct {
	user       string
	keyFile    string
	port       int
	knownHosts string // set by check if it is not given
}

func (o *sshOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.user, "ssh-user", "", "user by which nodes with --transport ssh are reached (deprecated mode)")
	f.StringVar(&o.keyFile, "ssh-keyfile", "", "private key of --ssh-user")
	o.addHostFlags(f)
}

// addHostFlags adds those that hawser ssh has too.
func (o *sshOptions) addHostFlags(f *pflag.FlagSet) {
	f.IntVar(&o.port, "ssh-port", 22, "port of the nodes' sshd")
	f.StringVar(&o.knownHosts, "ssh-known-hosts", "", "host keys of the nodes, as hawser ssh pin keeps them (default "+sshKnownHosts+" in --data-dir)")
}

func (o *sshOptions) check(dataDir string) error {
	if (o.user == "") != (o.keyFile == "") {
		return errors.New("--ssh-user and --ssh-keyfile go together")
	}
	if o.port < 1 || o.port > 65535 {
		return fmt.Errorf("--ssh-port %d: want 1 to 65535", o.port)
	}
	if o.knownHosts == "" {
		o.knownHosts = filepath.Join(dataDir, sshKnownHosts)
	}
	if o.user == "" {
		return nil
	}
	if err := overssh.CheckKey(o.keyFile); err != nil {
		return fmt.Errorf("--ssh-keyfile: %w", err)
	}
	if _, err := hostkeys.Open(o.knownHosts, nil); err != nil {
		return fmt.Errorf("--ssh-known-hosts: %w", err)
	}
	return nil
}

// sshNodes are the nodes whose Node object says that they keep no tunnel. They are
// reached through the connections of a fleet.
type sshNodes struct {
	fleet *sshnodes.Fleet // nil if the server has no key for them
	port  int

	mu    sync.Mutex // guards the following
	known map[string]sshNode
}

// An sshNode is what a Node object says about reaching it.
type sshNode struct {
	ips     []string // its own
	kubelet string   // port of the kubelet API on its loopback
}

// newSSHNodes makes them of the flags. Nodes that admit refuses are not dialed.
func newSSHNodes(o *sshOptions, admit func(node string) error, to prometheus.Registerer, log *slog.Logger) (*sshNodes, error) {
	s := &sshNodes{port: o.port, known: make(map[string]sshNode)}
	if o.user == "" {
		return s, nil
	}
	keys, err := hostkeys.Open(o.knownHosts, log)
	if err != nil {
		return nil, fmt.Errorf("--ssh-known-hosts: %w", err)
	}
	s.fleet, err = sshnodes.New(sshnodes.Config{
		SSH:   overssh.Config{User: o.user, KeyFile: o.keyFile, HostKeys: keys},
		Admit: admit, Metrics: to, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("--ssh-user and --ssh-keyfile: %w", err)
	}
	return s, nil
}

// run keeps the connections until ctx is done.
func (s *sshNodes) run(ctx context.Context) error {
	if s.fleet == nil {
		return nil
	}
	return s.fleet.Run(ctx)
}

// set takes note of what n says now.
func (s *sshNodes) set(n *corev1.Node) {
	if n.Annotations[setup.TransportAnnotation] != setup.SSH {
		s.remove(n.Name)
		return
	}
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubelet.DefaultPort
	}
	now := sshNode{ips: internalIPs(n), kubelet: strconv.Itoa(port)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[n.Name] = now
	switch {
	case s.fleet == nil:
	case len(now.ips) == 0:
		s.fleet.Remove(n.Name)
	default:
		s.fleet.Set(n.Name, net.JoinHostPort(now.ips[0], strconv.Itoa(s.port)), net.JoinHostPort(n.Name, now.kubelet))
	}
}

// remove forgets the node of a name.
func (s *sshNodes) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, name)
	if s.fleet != nil {
		s.fleet.Remove(name)
	}
}

// look has the connections end of nodes that are not admitted any more.
func (s *sshNodes) look() {
	if s.fleet != nil {
		s.fleet.Look()
	}
}

// internalIPs are the addresses by which other machines reach n, primary first.
func internalIPs(n *corev1.Node) []string {
	var ips []string
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// beyond is the hub's way to the nodes that keep no tunnel.
func (s *sshNodes) beyond(name string) (func(context.Context, tunnel.Dial) (net.Conn, error), bool) {
	s.mu.Lock()
	node, ok := s.known[name]
	s.mu.Unlock()
	if !ok {
		return nil, false
	}
	return func(ctx context.Context, d tunnel.Dial) (net.Conn, error) {
		switch {
		case s.fleet == nil:
			return nil, &tunnel.DialError{Addr: d.Addr, Code: tunnel.NoNode, Text: "node " + name + " keeps no tunnel (--transport ssh): start the server with --ssh-user and --ssh-keyfile to reach it"}
		case len(node.ips) == 0:
			return nil, &tunnel.DialError{Addr: d.Addr, Code: tunnel.NoNode, Text: "node " + name + " has no InternalIP at which to reach its sshd"}
		}
		d.Addr = node.target(name, d.Addr)
		return s.fleet.Dial(ctx, name, d)
	}, true
}

// target is what the node's sshd is to dial for addr: a kubelet that is dialed by
// an address of the node listens on its loopback, which its name stands for.
func (n sshNode) target(name, addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err == nil && port == n.kubelet && slices.Contains(n.ips, host) {
		return net.JoinHostPort(name, port)
	}
	return addr
}
