// Package lab makes small networks on one machine: nodes in network namespaces,
// each behind a NAT of its own.
//
// The picture, for a lab with two nodes:
//
//	host ── bridge 198.18.X.1/24
//	           ├── nat-1  198.18.X.11   masquerades, forwards nothing inwards
//	           │     └── node-1  192.168.101.2
//	           └── nat-2  198.18.X.12
//	                 └── node-2  192.168.102.2
//
// A node reaches the host at 198.18.X.1 (Lab.HostIP) and nothing else; the host
// has no route to a node, and the NAT drops whatever the node did not begin. The
// addresses are those set aside for tests (RFC 2544) and private ones (RFC 1918).
//
// It needs root and the commands ip, nft and nsenter. It is not a simulation: the
// kernel's own forwarding, connection tracking and masquerading are at work.
//
// Each node's link can be made to fail: Cut, Loss, Rate, Reset, Rebind and Move are
// the kernel's doing, Shape (delay, jitter, reordering, loss from a seed) that of a
// link emulator in this process. A Script says what fails when, and Run does it.
package lab

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxNodes keeps the last octet of a NAT's outer addresses within its network.
	maxNodes = 120
	// commandTimeout bounds each call of ip and nft.
	commandTimeout = 20 * time.Second
)

// A Lab is a network made by New. Close takes it down. Making nodes and closing are
// for one goroutine at a time; the methods of nodes are safe for concurrent use.
type Lab struct {
	// Seed decides the chances of the links that are shaped from now on.
	Seed uint64

	id     string // short, in the names of all that is made
	subnet int    // third octet of the outer network
	opened bool   // by Open: not ours to take down
	nodes  []*Node
}

// A Node is a network namespace behind a NAT.
type Node struct {
	Name string

	// immutable
	lab    *Lab
	number int    // from 1, in the order in which nodes were made
	ns     string // its namespace
	nat    string // its NAT's namespace
	outs   string // host's end of the cable to the NAT

	mu      sync.Mutex // held while a fault is put in place; guards the following
	faults  faults
	moved   bool // by Move
	shaping *shaping
}

// Check returns nil if labs can be made here, or an error that says what is
// missing and how to get it.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run as root")
	}
	for cmd, pkg := range map[string]string{"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux"} {
		if _, err := exec.LookPath(cmd); err != nil {
			return fmt.Errorf("network namespaces need the command %s: install the package %s", cmd, pkg)
		}
	}
	return nil
}

// CheckFaults returns nil if links can be made to fail here as well, or an error
// that says what is missing and how to get it.
func CheckFaults() error {
	if err := Check(); err != nil {
		return err
	}
	if _, err := exec.LookPath("tc"); err != nil {
		return errors.New("slow links need the command tc: install the package iproute2")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("delayed links need the kernel's tun driver (modprobe tun): %w", err)
	}
	return nil
}

// New makes an empty lab. Labs with the same name are the same lab: what an
// earlier process of that name left behind is removed first.
func New(ctx context.Context, name string) (*Lab, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	l := &Lab{id: idOf(name)}
	if err := l.sweep(ctx); err != nil {
		return nil, err
	}
	if err := l.addBridge(ctx); err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// addBridge makes the outer network. Other processes may be about to do the same:
// one at a time chooses a subnet.
func (l *Lab) addBridge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	unlock, err := lock(ctx, "/run")
	if err != nil {
		return err
	}
	defer unlock()
	if l.subnet, err = freeSubnet(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"ip", "link", "add", l.bridge(), "type", "bridge"},
		{"ip", "address", "add", l.HostIP() + "/24", "dev", l.bridge()},
		{"ip", "link", "set", l.bridge(), "up"},
	} {
		if err := run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func idOf(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("hw%06x", h.Sum32()&0xffffff)
}

// HostIP is the address at which the nodes reach the host.
func (l *Lab) HostIP() string { return fmt.Sprintf("198.18.%d.1", l.subnet) }

func (l *Lab) bridge() string { return l.id + "-br" }

// Nodes returns the nodes in the order in which they were made.
func (l *Lab) Nodes() []*Node { return slices.Clone(l.nodes) }

// Node returns the node of a name; the error names those there are.
func (l *Lab) Node(name string) (*Node, error) {
	var names []string
	for _, n := range l.nodes {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return nil, fmt.Errorf("there is no node %q: there are %s", name, strings.Join(names, ", "))
}

// newNode names what belongs to the node of a number.
func (l *Lab) newNode(name string, i int) *Node {
	return &Node{
		Name: name, lab: l, number: i,
		ns: fmt.Sprintf("%s-n%d", l.id, i), nat: fmt.Sprintf("%s-g%d", l.id, i), outs: fmt.Sprintf("%s-h%d", l.id, i),
	}
}

// IP is the node's own address, which the host cannot reach.
func (n *Node) IP() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.innerLocked()
}

// NATIP is the address from which the node's packets seem to come.
func (n *Node) NATIP() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.outerLocked()
}

func (n *Node) innerLocked() string {
	if n.moved {
		return fmt.Sprintf("192.168.%d.3", 100+n.number)
	}
	return fmt.Sprintf("192.168.%d.2", 100+n.number)
}

func (n *Node) outerLocked() string {
	if n.moved {
		return fmt.Sprintf("198.18.%d.%d", n.lab.subnet, 10+maxNodes+n.number)
	}
	return fmt.Sprintf("198.18.%d.%d", n.lab.subnet, 10+n.number)
}

func (n *Node) gateway() string { return fmt.Sprintf("192.168.%d.1", 100+n.number) }

// inNAT is a command line that runs where the node's NAT is.
func (n *Node) inNAT(args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + n.nat}, args...)
}

// inNode is a command line that runs where the node is.
func (n *Node) inNode(args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + n.ns}, args...)
}

// AddNode makes a namespace behind a NAT.
func (l *Lab) AddNode(ctx context.Context, name string) (*Node, error) {
	if len(l.nodes) >= maxNodes {
		return nil, fmt.Errorf("a lab has at most %d nodes", maxNodes)
	}
	n := l.newNode(name, len(l.nodes)+1)
	l.nodes = append(l.nodes, n)
	for _, args := range [][]string{
		{"ip", "netns", "add", n.nat},
		{"ip", "netns", "add", n.ns},
		{"ip", "link", "add", n.outs, "type", "veth", "peer", "name", "wan0", "netns", n.nat},
		{"ip", "link", "set", n.outs, "alias", name},
		{"ip", "link", "set", n.outs, "master", l.bridge(), "up"},
		n.inNAT("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "eth0", "netns", n.ns),
		n.inNAT("ip", "address", "add", n.NATIP()+"/24", "dev", "wan0"),
		n.inNAT("ip", "address", "add", n.gateway()+"/24", "dev", "lan0"),
		n.inNAT("ip", "link", "set", "lo", "up"),
		n.inNAT("ip", "link", "set", "wan0", "up"),
		n.inNAT("ip", "link", "set", "lan0", "up"),
		n.inNAT("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
		n.inNode("ip", "address", "add", n.IP()+"/24", "dev", "eth0"),
		n.inNode("ip", "link", "set", "lo", "up"),
		n.inNode("ip", "link", "set", "eth0", "up"),
		n.inNode("ip", "route", "add", "default", "via", n.gateway()),
	} {
		if err := run(ctx, args...); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	if err := runInput(ctx, natRules, n.inNAT("nft", "-f", "-")...); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	return n, nil
}

// natRules lets out what the node begins, and in what answers it. Everything
// else that comes from outside is dropped. The tun devices are those of shape.go.
const natRules = `
table ip hawser {
	chain forward {
		type filter hook forward priority filter; policy drop;
		iifname "lan0" oifname "wan0" accept
		iifname "wan0" oifname "lan0" ct state established,related accept
		iifname "lan0" oifname "tun-node" accept
		iifname "tun-node" oifname "lan0" accept
		iifname "tun-world" oifname "wan0" accept
		iifname "wan0" oifname "tun-world" ct state established,related accept
	}
	chain input {
		type filter hook input priority filter; policy drop;
		iifname "lo" accept
		ct state established,related accept
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "wan0" masquerade
	}
}
`

// Command is exec.CommandContext for a process that lives on the node: it sees the
// node's network and nothing of the host's. Only the network differs; files,
// processes and cgroups are the host's. The process id is the command's own.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	all := append(n.inNode(name), args...)
	return exec.CommandContext(ctx, all[0], all[1:]...)
}

// Close takes down everything and returns after the emulators have ended. Processes
// that still run on a node keep running without a network. A lab from Open stays, with
// its links healed.
func (l *Lab) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	var errs []error
	if l.opened {
		for _, n := range l.nodes {
			errs = append(errs, n.Clear(ctx))
		}
		return errors.Join(errs...)
	}
	for _, n := range l.nodes {
		n.mu.Lock()
		n.endEmulator()
		errs = append(errs, n.shapingErr())
		n.mu.Unlock()
	}
	return errors.Join(append(errs, l.sweep(ctx))...)
}

// sweep removes all that carries the lab's id, whoever made it.
func (l *Lab) sweep(ctx context.Context) error {
	var errs []error
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// A namespace lives on while a process is in it, and so do its cables: they
	// are taken away one by one.
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, link := range links {
		if strings.HasPrefix(link.Name, l.id+"-") {
			errs = append(errs, run(ctx, "ip", "link", "del", link.Name))
		}
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.id+"-") {
			errs = append(errs, run(ctx, "ip", "netns", "del", e.Name()))
		}
	}
	return errors.Join(errs...)
}

// freeSubnet finds an outer network that no interface of this machine is in.
func freeSubnet() (int, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return 0, err
	}
	used := map[int]bool{}
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok {
			if v4 := p.IP.To4(); v4 != nil && v4[0] == 198 && v4[1] == 18 {
				used[int(v4[2])] = true
			}
		}
	}
	for i := range 256 {
		if !used[i] {
			return i, nil
		}
	}
	return 0, errors.New("all of 198.18.0.0/16 is in use on this machine: stop other labs first")
}

func run(ctx context.Context, args ...string) error { return runInput(ctx, "", args...) }

func runInput(ctx context.Context, stdin string, args ...string) error {
	_, err := command(ctx, stdin, args...)
	return err
}

// output returns what a command has said.
func output(ctx context.Context, args ...string) (string, error) { return command(ctx, "", args...) }

func command(ctx context.Context, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said)
	}
	return said, nil
}
