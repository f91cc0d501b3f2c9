// The kubelet that the tunnel leads to, --kubelet: this process, another one of this
// machine, or none.

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// The values of --kubelet beside a URL.
const (
	builtinKubelet = "builtin"
	noKubelet      = "none"
)

// nodeFlags are about what only the built-in kubelet does.
var nodeFlags = []string{
	"kubelet-port", "runtime", "register-node", "register-with-taints", "node-labels", "register-schedulable", "cloud-provider", "provider-id", "serving-certificate-addresses",
	"max-pods", "pod-max-pids", "seccomp-default", "hide-path", "node-status-max-images", "kube-reserved", "system-reserved",
	"node-status-update-frequency", "node-status-report-frequency", "node-lease-duration-seconds", "eviction-hard", "eviction-pressure-transition-period",
	"offline-patience", "sync-frequency", "container-log-max-size", "container-log-max-files",
	gracePeriod, criticalGracePeriod, gracePeriods, manifestPath, manifestPeriod,
	"minimum-container-ttl-duration", "maximum-dead-containers-per-container", "maximum-dead-containers",
}

// kubeletOptions are the flags about whose kubelet it is.
type kubeletOptions struct {
	kubelet string

	kubeletAddr netip.AddrPort // set by check; not valid without a URL
}

func (o *kubeletOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubelet, "kubelet", builtinKubelet, "whose kubelet the tunnel leads to: builtin, this program's; https://127.0.0.1:10250, one of this machine, which registers the node and runs its pods by itself; none")
}

// builtin says whether this process is the node's kubelet.
func (o *kubeletOptions) builtin() bool { return o.kubelet == builtinKubelet }

// check refuses what cannot work, naming the flag.
func (o *kubeletOptions) check(transport string, f *pflag.FlagSet) error {
	if o.builtin() {
		return nil
	}
	if transport == setup.SSH {
		return fmt.Errorf("--kubelet %s does not go with --transport ssh: there is no tunnel to lead anywhere", o.kubelet)
	}
	for _, name := range nodeFlags {
		if f.Changed(name) {
			return fmt.Errorf("--%s has no effect with --kubelet %s: it is for the built-in kubelet, give the other one its own", name, o.kubelet)
		}
	}
	if o.kubelet == noKubelet {
		return nil
	}
	var err error
	if o.kubeletAddr, err = parseKubelet(o.kubelet); err != nil {
		return fmt.Errorf("--kubelet %q: %w", o.kubelet, err)
	}
	return nil
}

// parseKubelet reads https://ADDRESS:PORT. A name could lead to another machine, except
// localhost.
func parseKubelet(text string) (netip.AddrPort, error) {
	want := errors.New("want builtin, none, or https://ADDRESS:PORT such as https://127.0.0.1:10250")
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return netip.AddrPort{}, want
	}
	host, port := u.Hostname(), u.Port()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = fmt.Sprint(agent.KubeletPort)
	}
	addr, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified() {
		return netip.AddrPort{}, want
	}
	return addr, nil
}

// machineAddresses are those at which others know this machine: its interfaces', and
// what --node-ip says.
func machineAddresses(said []netip.Addr) []netip.Addr {
	all := append([]netip.Addr(nil), said...)
	found, _ := net.InterfaceAddrs() // without them there is the node's name
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}
