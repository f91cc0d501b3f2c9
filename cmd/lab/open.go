// Joining a lab that another process has made, to make its links fail.

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Open returns the lab that another process has made by New with the same name, so
// that its links can be made to fail from here: `hawser up --netns` names its lab
// after its --dir, as an absolute path. Close then ends the faults and leaves the
// network as it was.
//
// One process at a time should do so: the last to put a fault in place wins.
func Open(ctx context.Context, name string) (*Lab, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	l := &Lab{id: idOf(name), opened: true}
	bridge, err := net.InterfaceByName(l.bridge())
	if err != nil {
		return nil, fmt.Errorf("there is no lab %q on this machine: %w", name, err)
	}
	if l.subnet, err = subnetOf(bridge); err != nil {
		return nil, fmt.Errorf("lab %q: %w", name, err)
	}
	for i := 1; i <= maxNodes; i++ {
		n := l.newNode("", i)
		alias, err := os.ReadFile("/sys/class/net/" + n.outs + "/ifalias")
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("lab %q: %w", name, err)
		}
		n.Name = strings.TrimSpace(string(alias))
		if err := n.recall(ctx); err != nil {
			return nil, fmt.Errorf("lab %q: node %s: %w", name, n.Name, err)
		}
		l.nodes = append(l.nodes, n)
	}
	return l, nil
}

// subnetOf returns the third octet of a lab's outer network.
func subnetOf(bridge *net.Interface) (int, error) {
	addrs, err := bridge.Addrs()
	if err != nil {
		return 0, err
	}
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok {
			if v4 := p.IP.To4(); v4 != nil && v4[0] == 198 && v4[1] == 18 {
				return int(v4[2]), nil
			}
		}
	}
	return 0, fmt.Errorf("%s has no address in 198.18.0.0/16", bridge.Name)
}

var boundPorts = regexp.MustCompile(`masquerade to :(\d+)-`)

// recall learns what is not a fault that Clear ends: where the node has moved to and
// to which ports its NAT is bound.
func (n *Node) recall(ctx context.Context) error {
	addrs, err := output(ctx, n.inNode("ip", "-o", "-4", "address", "show", "dev", "eth0")...)
	if err != nil {
		return err
	}
	rules, err := output(ctx, n.inNAT("nft", "list", "ruleset")...)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !strings.Contains(addrs, n.innerLocked()+"/") {
		n.moved = true
	}
	if m := boundPorts.FindStringSubmatch(rules); m != nil {
		port, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		// The first binding is 1, so that 0 can mean none.
		n.faults.binding = (port-firstBinding)/bindingPorts + bindings
	}
	return nil
}
