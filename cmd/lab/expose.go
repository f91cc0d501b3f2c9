// A way in: for nodes that are reached from outside, as by SSH.

package lab

import (
	"context"
	"fmt"
)

// Expose has the node's NAT forward a TCP port of its outer address (Node.NATIP) to
// the same port of the node, as the owner of a router at home might. Faults work on
// what comes in that way as on all else. It lasts until the lab is taken down, or
// the node moves.
func (n *Node) Expose(ctx context.Context, port uint16) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	rules := fmt.Sprintf(`table ip hawser {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		iifname "wan0" tcp dport %d dnat to %s
	}
	chain forward {
		iifname "wan0" oifname "lan0" tcp dport %[1]d ct status dnat accept
	}
}
`, port, n.innerLocked())
	if err := runInput(ctx, rules, n.inNAT("nft", "-f", "-")...); err != nil {
		return fmt.Errorf("expose port %d of %s: %w", port, n.Name, err)
	}
	return nil
}
