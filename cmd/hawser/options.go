// The flags of hawser server, and what makes them wrong.

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/server/egressselector"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// serverOptions are the flags of hawser server. Names, defaults and meanings are
// Kubernetes' own where it has the flag.
type serverOptions struct {
	dataDir          string
	bindAddress      string
	securePort       int
	advertiseAddress string
	tlsSANs          []string

	fronts    frontOptions
	balancers loadBalancerOptions
	egress    egressOptions
	links     setup.LinkFlags
	takeBack  time.Duration
	through   throughOptions
	ssh       sshOptions
	accounts  accountOptions
	store     storeOptions

	encryption apiserver.Encryption

	serviceRange       string
	notReadyToleration int64
	unreachToleration  int64
	maxInFlight        int
	maxMutating        int
	gates              featuregate.MutableFeatureGate

	access      accessOptions
	audit       auditOptions
	streams     rotatedFile // of the tunnel
	tracing     tracingOptions
	controllers controllerOptions
	beside      besideOptions
	peer        peerOptions
	shutdown    shutdownOptions

	verbosity int
	logFormat string

	// set by check
	link            tunnel.LinkOptions
	bind, advertise net.IP
	services        netip.Prefix
}

// addFlags adds the flags by section. A text stands by itself: flags are found by search.
func (o *serverOptions) addFlags(f *pflag.FlagSet) {
	o.beside.flags = f
	sets := o.flagSets()
	for _, heading := range sets.Order {
		setup.Section(f, heading, func(own *pflag.FlagSet) { own.AddFlagSet(sets.FlagSets[heading]) })
	}
}

// flagSets are the flags by what they are about.
func (o *serverOptions) flagSets() *cliflag.NamedFlagSets {
	sets := new(cliflag.NamedFlagSets)
	add := func(heading string, adders ...func(*pflag.FlagSet)) {
		set := sets.FlagSet(heading)
		set.SortFlags = false
		for _, a := range adders {
			a(set)
		}
	}
	add("Where it listens, and what it keeps", o.addPlaceFlags)
	add("The tunnel", o.links.Add, o.addTunnelFlags, o.through.addFlags)
	add("Ways in for others: front ends and load balancers", o.fronts.addFlags, addAliases, o.balancers.addFlags)
	add("Several servers", o.peer.addFlags, o.store.addFlags, o.controllers.addLeaderFlags)
	add("Beside a cluster that has an API server", o.beside.addFlags)
	add("The API", o.addAPIFlags, o.egress.addFlags)
	add("Who may do what", o.accounts.addFlags, o.access.addFlags)
	add("Audit and tracing", o.audit.addFlags, o.addStreamsFlags, o.tracing.addFlags)
	add("Nodes: health, eviction, addresses of pods", o.controllers.addLifecycleFlags, o.controllers.addTunnelFlags, o.controllers.IPAM.AddFlags)
	add("Controllers", o.controllers.addFlags, o.controllers.addWorkloadFlags)
	add("The end of the server", o.shutdown.addFlags)
	add("Nodes that are reached by SSH (deprecated)", o.ssh.addFlags)
	add("The log", o.addLogFlags)
	return sets
}

func (o *serverOptions) addPlaceFlags(f *pflag.FlagSet) {
	f.StringVar(&o.dataDir, "data-dir", setup.ServerDir, "directory of keys, store and "+adminKubeconfig+"; made if missing")
	f.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "address to listen on")
	f.IntVar(&o.securePort, "secure-port", 6443, fmt.Sprintf("port of the API and of the tunnel; with --kubeconfig %d by default", besidePort))
	f.StringVar(&o.advertiseAddress, "advertise-address", "", "address at which nodes reach this server (default the bind address, or that of the default route)")
	f.StringSliceVar(&o.tlsSANs, "tls-san", nil, "further names and addresses for the serving certificate, which no node may be called; with --kubeconfig, of the hub, and those of the cluster's API server that its certificate does not have")
}

func (o *serverOptions) addTunnelFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.takeBack, "take-back-after", server.DefaultTakeBack, "how long an agent is refused whose node another agent has taken over, from the end of that one's session; a minute at most if that one was stopped")
}

func (o *serverOptions) addAPIFlags(f *pflag.FlagSet) {
	f.StringVar(&o.serviceRange, "service-cluster-ip-range", "10.96.0.0/12", "addresses given to services")
	f.StringVar(&o.encryption.ConfigFile, "encryption-provider-config", "", "EncryptionConfiguration (apiserver.config.k8s.io/v1): which kinds are encrypted in the store, and how; none without it")
	f.BoolVar(&o.encryption.Reload, "encryption-provider-config-automatic-reload", false, "read --encryption-provider-config again, within seconds, when it has changed")
	f.Int64Var(&o.notReadyToleration, "default-not-ready-toleration-seconds", 300, "toleration of not-ready:NoExecute added to pods that have none")
	f.Int64Var(&o.unreachToleration, "default-unreachable-toleration-seconds", 300, "toleration of unreachable:NoExecute added to pods that have none")
	f.IntVar(&o.maxInFlight, "max-requests-inflight", apiserver.DefaultMaxRequestsInFlight, "how many requests are answered at a time, together with --max-mutating-requests-inflight, which is added; priority levels share them")
	o.gates = apiserver.FeatureGates()
	o.gates.AddFlag(f)
	f.IntVar(&o.maxMutating, "max-mutating-requests-inflight", apiserver.DefaultMaxMutatingRequestsInFlight, "is added to --max-requests-inflight")
}

func (o *serverOptions) addStreamsFlags(f *pflag.FlagSet) {
	o.streams.addFlags(f, "tunnel-audit-log", "who reached which node through the tunnel: one line for each stream that ended")
}

func (o *serverOptions) addLogFlags(f *pflag.FlagSet) {
	f.IntVarP(&o.verbosity, "v", "v", 0, "log verbosity: 0 life events, 4 and above each stream")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check refuses what cannot work, naming the flag.
func (o *serverOptions) check() error {
	err := applyAliases(o.beside.flags)
	if err != nil {
		return err
	}
	if err = o.checkAddresses(); err != nil {
		return err
	}
	if err = o.checkNumbers(); err != nil {
		return err
	}
	if err = o.accounts.check(); err != nil {
		return err
	}
	if err = o.peer.check(); err != nil {
		return err
	}
	if err = setup.CheckLogFormat(o.logFormat); err != nil {
		return fmt.Errorf("--log-format %w", err)
	}
	if err = o.store.check(); err != nil {
		return err
	}
	if err = o.egress.check(); err != nil {
		return err
	}
	o.access.webhookDial = o.egress.dial(egressselector.ControlPlane)
	if err = o.access.check(); err != nil {
		return err
	}
	if o.beside.kubeconfig == "" || o.beside.flags.Changed("service-cluster-ip-range") {
		o.controllers.IPAM.ServiceCIDR = o.services.String()
	} else {
		o.services = netip.Prefix{} // nobody has said which that cluster has
	}
	if err = o.encryption.Check(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err = o.audit.check(); err != nil {
		return err
	}
	if err = o.tracing.check(); err != nil {
		return err
	}
	if err = o.streams.check(); err != nil {
		return err
	}
	if err = o.controllers.check(); err != nil {
		return err
	}
	if err = o.beside.check(o.controllers.Enabled); err != nil {
		return err
	}
	if o.dataDir, err = setup.CheckDataDir(o.dataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return o.ssh.check(o.dataDir)
}

// checkAddresses checks what the server listens on, what it tells others of that, and the ranges.
func (o *serverOptions) checkAddresses() (err error) {
	if o.bind = net.ParseIP(o.bindAddress); o.bind == nil {
		return fmt.Errorf("--bind-address %q is not an IP address", o.bindAddress)
	}
	o.adjust()
	if err = o.balancers.check(); err != nil {
		return err
	}
	if err = o.checkPorts(); err != nil {
		return err
	}
	if o.advertise, err = o.advertised(); err != nil {
		return err
	}
	if err = checkSANs("--tls-san", o.tlsSANs); err != nil {
		return err
	}
	if o.link, err = o.links.Check(); err != nil {
		return err
	}
	if o.services, err = netip.ParsePrefix(o.serviceRange); err != nil {
		return fmt.Errorf("--service-cluster-ip-range %q is not a range such as 10.96.0.0/12", o.serviceRange)
	}
	o.services = o.services.Masked()
	if err = o.through.check(); err != nil {
		return err
	}
	if bits := o.services.Addr().BitLen() - o.services.Bits(); bits < 3 || bits > 20 {
		return fmt.Errorf("--service-cluster-ip-range %s: want between 8 and 2^20 addresses", o.serviceRange)
	}
	return nil
}

func (o *serverOptions) checkNumbers() error {
	for flag, v := range map[string]int64{"--default-not-ready-toleration-seconds": o.notReadyToleration, "--default-unreachable-toleration-seconds": o.unreachToleration} {
		if v < 0 {
			return fmt.Errorf("%s %d is negative", flag, v)
		}
	}
	for flag, v := range map[string]int{"--max-requests-inflight": o.maxInFlight, "--max-mutating-requests-inflight": o.maxMutating} {
		if v < 1 {
			return fmt.Errorf("%s %d: want at least 1", flag, v)
		}
	}
	if o.takeBack < time.Second {
		return fmt.Errorf("--take-back-after %s: want 1s or more", o.takeBack)
	}
	return o.shutdown.check()
}

// checkSANs refuses what a certificate cannot name. Upper case is the same name. Clients accept "_" in
// names, which DNS does not have.
func checkSANs(flag string, sans []string) error {
	for _, san := range sans {
		name := strings.ReplaceAll(strings.ToLower(san), "_", "x")
		known := len(validation.IsDNS1123Subdomain(name)) == 0 || len(validation.IsWildcardDNS1123Subdomain(name)) == 0
		if net.ParseIP(san) == nil && (!known || endsInNumber(name)) {
			return fmt.Errorf("%s %q: want an IP address, a DNS name or *.DOMAIN, without a scheme, brackets, a zone or a port", flag, san)
		}
	}
	return nil
}

// endsInNumber says whether a name has a last label of digits, as an IPv4 address has.
func endsInNumber(name string) bool {
	i := strings.LastIndexByte(name, '.')
	return i >= 0 && strings.Trim(name[i:], ".0123456789") == ""
}

// advertised picks the address that nodes are told.
func (o *serverOptions) advertised() (net.IP, error) {
	if o.advertiseAddress != "" {
		ip := net.ParseIP(o.advertiseAddress)
		switch {
		case ip == nil || ip.IsUnspecified() || ip.IsMulticast() || ip.Equal(net.IPv4bcast):
			return nil, fmt.Errorf("--advertise-address %q is not an IP address that nodes can dial", o.advertiseAddress)
		case ip.IsLinkLocalUnicast() && o.beside.kubeconfig == "":
			return nil, fmt.Errorf("--advertise-address %q is link-local, and Kubernetes publishes no such address: give another one, and let --tls-san name this one", o.advertiseAddress)
		}
		return ip, nil
	}
	if !o.bind.IsUnspecified() {
		return o.bind, nil
	}
	if ip := outboundIP(); ip != nil {
		return ip, nil
	}
	return net.IPv4(127, 0, 0, 1), nil
}

// outboundIP is the address that the kernel would send from by its default
// route. Connecting a datagram socket looks the route up and sends nothing.
func outboundIP() net.IP {
	c, err := (&net.Dialer{}).DialContext(context.Background(), "udp", "192.0.2.1:9") // TEST-NET-1 (RFC 5737)
	if err != nil {
		return nil
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP
}

// listenAddress is what the port listens on.
func (o *serverOptions) listenAddress(port int) string {
	return net.JoinHostPort(o.bind.String(), strconv.Itoa(port))
}

// localURL is how programs on this machine reach the API.
func (o *serverOptions) localURL() string {
	host := o.bind
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	return "https://" + net.JoinHostPort(host.String(), strconv.Itoa(o.securePort))
}
