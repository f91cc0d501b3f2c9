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
package lab

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	// maxNodes keeps the last octet of a NAT's outer address within its network.
	maxNodes = 200
	// commandTimeout bounds each call of ip and nft.
	commandTimeout = 20 * time.Second
)

// A Lab is a network made by New. Close takes it down.
type Lab struct {
	id     string // short, in the names of all that is made
	subnet int    // third octet of the outer network
	nodes  []*Node
}

// A Node is a network namespace behind a NAT.
type Node struct {
	Name string
	IP   string // its own address, which the host cannot reach
	lab  *Lab
	ns   string
	nat  string
	outs string // host's end of the cable to the NAT
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

// New makes an empty lab. Labs with the same name are the same lab: what an
// earlier process of that name left behind is removed first.
func New(ctx context.Context, name string) (*Lab, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	l := &Lab{id: fmt.Sprintf("hw%06x", h.Sum32()&0xffffff)}
	if err := l.sweep(ctx); err != nil {
		return nil, err
	}
	subnet, err := freeSubnet()
	if err != nil {
		return nil, err
	}
	l.subnet = subnet
	for _, args := range [][]string{
		{"ip", "link", "add", l.bridge(), "type", "bridge"},
		{"ip", "address", "add", l.HostIP() + "/24", "dev", l.bridge()},
		{"ip", "link", "set", l.bridge(), "up"},
	} {
		if err := run(ctx, args...); err != nil {
			return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
		}
	}
	return l, nil
}

// HostIP is the address at which the nodes reach the host.
func (l *Lab) HostIP() string { return fmt.Sprintf("198.18.%d.1", l.subnet) }

func (l *Lab) bridge() string { return l.id + "-br" }

// AddNode makes a namespace behind a NAT.
func (l *Lab) AddNode(ctx context.Context, name string) (*Node, error) {
	i := len(l.nodes) + 1
	if i > maxNodes {
		return nil, fmt.Errorf("a lab has at most %d nodes", maxNodes)
	}
	n := &Node{
		Name: name, lab: l, IP: fmt.Sprintf("192.168.%d.2", (100+i)%256),
		ns: fmt.Sprintf("%s-n%d", l.id, i), nat: fmt.Sprintf("%s-g%d", l.id, i), outs: fmt.Sprintf("%s-h%d", l.id, i),
	}
	l.nodes = append(l.nodes, n)
	outer := fmt.Sprintf("198.18.%d.%d", l.subnet, 10+i)
	gateway := fmt.Sprintf("192.168.%d.1", (100+i)%256)
	inNAT := func(args ...string) []string {
		return append([]string{"nsenter", "--net=/run/netns/" + n.nat}, args...)
	}
	inNode := func(args ...string) []string { return append([]string{"nsenter", "--net=/run/netns/" + n.ns}, args...) }
	for _, args := range [][]string{
		{"ip", "netns", "add", n.nat},
		{"ip", "netns", "add", n.ns},
		{"ip", "link", "add", n.outs, "type", "veth", "peer", "name", "wan0", "netns", n.nat},
		{"ip", "link", "set", n.outs, "master", l.bridge(), "up"},
		inNAT("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "eth0", "netns", n.ns),
		inNAT("ip", "address", "add", outer+"/24", "dev", "wan0"),
		inNAT("ip", "address", "add", gateway+"/24", "dev", "lan0"),
		inNAT("ip", "link", "set", "lo", "up"),
		inNAT("ip", "link", "set", "wan0", "up"),
		inNAT("ip", "link", "set", "lan0", "up"),
		inNAT("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
		inNode("ip", "address", "add", n.IP+"/24", "dev", "eth0"),
		inNode("ip", "link", "set", "lo", "up"),
		inNode("ip", "link", "set", "eth0", "up"),
		inNode("ip", "route", "add", "default", "via", gateway),
	} {
		if err := run(ctx, args...); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	if err := runInput(ctx, natRules, inNAT("nft", "-f", "-")...); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	return n, nil
}

// natRules lets out what the node begins, and in what answers it. Everything
// else that comes from outside is dropped.
const natRules = `
table ip hawser {
	chain forward {
		type filter hook forward priority filter; policy drop;
		iifname "lan0" oifname "wan0" accept
		iifname "wan0" oifname "lan0" ct state established,related accept
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
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + n.ns, name}, args...)...)
}

// Close takes down everything. Processes that still run on a node keep running
// without a network.
func (l *Lab) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	return l.sweep(ctx)
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
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
