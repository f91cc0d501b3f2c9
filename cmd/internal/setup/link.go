// The flags about the connections below sessions, which server and agent share.

package setup

import (
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/tunnel"
)

// The bounds of the flags.
const (
	maxDetachWindow = 24 * time.Hour
	minKeepalive    = time.Second
	maxKeepalive    = 10 * time.Minute
)

// LinkFlags are the values of the flags; Check makes options of them.
type LinkFlags struct {
	window, keepalive time.Duration
	congestion        string
	connections       int
}

// Add adds the flags to f.
func (l *LinkFlags) Add(f *pflag.FlagSet) {
	f.DurationVar(&l.window, "detach-window", tunnel.DefaultDetachWindow, "how long streams outlive a lost connection, waiting for another; 0 for not at all (the shorter one of server and agent holds)")
	f.DurationVar(&l.keepalive, "link-keepalive", tunnel.DefaultKeepalive, "silence after which a keepalive is sent; quic asks earlier, within half of its idle timeout (the longer one of server and agent holds)")
	f.IntVar(&l.connections, "connections", tunnel.DefaultConnections, "how many connections a qmux session may have, so that bulk does not hold up keystrokes: those beside the first are made when needed; 1 for no more (the lesser one of server and agent holds)")
	f.StringVar(&l.congestion, "tcp-congestion", "auto", "congestion control of tunnels over TCP: auto (bbr where the kernel allows it), system, or its name")
}

// congestionName is what Linux can call a congestion control.
var congestionName = regexp.MustCompile(`^[a-z0-9_-]{1,15}$`)

// Check refuses what cannot work, naming the flag, and makes options of the rest.
func (l *LinkFlags) Check() (tunnel.LinkOptions, error) {
	switch {
	case l.window < 0 || l.window > maxDetachWindow:
		return tunnel.LinkOptions{}, fmt.Errorf("--detach-window %s: want 0 to %s", l.window, maxDetachWindow)
	case l.window > 0 && l.window < time.Second:
		return tunnel.LinkOptions{}, fmt.Errorf("--detach-window %s: want 1s or more, or 0 for none", l.window)
	case l.keepalive < minKeepalive || l.keepalive > maxKeepalive:
		return tunnel.LinkOptions{}, fmt.Errorf("--link-keepalive %s: want %s to %s", l.keepalive, minKeepalive, maxKeepalive)
	case l.connections < 1 || l.connections > tunnel.MaxConnections:
		return tunnel.LinkOptions{}, fmt.Errorf("--connections %d: want 1 to %d", l.connections, tunnel.MaxConnections)
	case !congestionName.MatchString(l.congestion):
		return tunnel.LinkOptions{}, fmt.Errorf("--tcp-congestion %q: want auto, system, or a name from /proc/sys/net/ipv4/tcp_available_congestion_control", l.congestion)
	}
	o := tunnel.LinkOptions{DetachWindow: l.window, Keepalive: l.keepalive, Congestion: l.congestion, Connections: l.connections}
	if l.window == 0 {
		o.DetachWindow = -1
	}
	return o, nil
}
