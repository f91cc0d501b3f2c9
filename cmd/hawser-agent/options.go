// The flags of hawser-agent, and what makes them wrong.

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/pods"
)

// options are the flags. Names, defaults and meanings are the kubelet's where it
// has the flag.
type options struct {
	transportOptions
	kubeletOptions
	identityOptions
	shutdownOptions
	staticOptions

	servers     []string
	serverCount int
	token       string
	tokenFile   string
	caHashes    []string
	pins        []bootstrap.Pin // of caHashes, set by check
	dataDir     string
	name        string
	override    string
	nodeIP      string
	runtime     string
	apiListen   string
	apiNets     string // directory

	kubeletPort int // with transport ssh

	register         bool
	schedulable      bool
	cloud            string
	providerID       string
	servingAddresses bool
	taints, labels   string
	allowTargets     []string
	maxPods          int
	podMaxPIDs       int64
	seccompDefault   bool
	hidePaths        []string
	maxImages        int
	retention        pods.Retention
	kubeReserved     string
	systemReserved   string
	statusUpdate     time.Duration
	trustRefresh     time.Duration
	statusReport     time.Duration
	leaseSeconds     int32
	volumeRefresh    time.Duration
	evictionHard     string
	pressureOver     time.Duration
	offlinePatience  time.Duration
	containerLogSize int64
	containerLogs    int

	verbosity int
	logFormat string

	// set by check
	tokenFrom  string   // the flag or variable that the token is from
	addrs      []string // HOST:PORT of the servers
	standalone bool     // no server: static pods alone
	nodeName   string
	ips        []netip.Addr
	nodeLabels map[string]string
	nodeTaints []corev1.Taint
	reserved   corev1.ResourceList
	thresholds node.Thresholds
	targets    agent.Targets
}

// externalCloud is the only value of --cloud-provider that Kubernetes has left.
const externalCloud = "external"

// addFlags adds the flags by section. A text stands by itself: flags are found by search.
func (o *options) addFlags(f *pflag.FlagSet) {
	setup.Section(f, "The server, and how the node joins", o.addServerFlags, o.identityOptions.addFlags)
	setup.Section(f, "The tunnel", o.transportOptions.addFlags, o.addTargetFlags)
	setup.Section(f, "The node", o.addNodeFlags, o.addStatusFlags)
	setup.Section(f, "Pods", o.addPodFlags, o.staticOptions.addFlags)
	setup.Section(f, "What is kept for others, and when there is too little", o.addPressureFlags)
	setup.Section(f, "A kubelet, and others of this machine", o.kubeletOptions.addFlags, o.addLocalFlags)
	setup.Section(f, "Shutdown of the machine", o.shutdownOptions.addFlags)
	setup.Section(f, "The log", o.addLogFlags)
}

func (o *options) addServerFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.servers, "server", nil, "URL of the server, https://HOST:PORT; of several, --server-count are used at a time, and others tried in turn (required, unless --kubeconfig has it or the agent runs static pods alone)")
	f.IntVar(&o.serverCount, "server-count", 2, "how many of the servers there are sessions with at a time")
	f.StringVar(&o.token, "token", "", "join token, ID.SECRET; everybody who can list processes sees it here (default $"+tokenEnv+"); needed only until the node has its certificate")
	setup.Secret(f, "token")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the join token; read each time one is needed, so that a node whose certificate has expired, or that was no longer admitted when it was started, can join again")
	f.StringSliceVar(&o.caHashes, "discovery-token-ca-cert-hash", nil, "hash of the server's CA, sha256:HEX; needed with a join token")
	f.StringVar(&o.dataDir, "data-dir", "/var/lib/hawser-agent", "directory of keys, pods and logs; made if missing")
	f.DurationVar(&o.trustRefresh, "authorities-refresh-period", bootstrap.DefaultFollow, "how often the node looks whether the authorities of the cluster are others, give or take a quarter")
}

func (o *options) addTargetFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.allowTargets, "allow-target", nil, "what the server may reach beside this node's kubelet API and the ports that its running pods declare: CIDR or HOST:PORT, port * for any")
}

func (o *options) addNodeFlags(f *pflag.FlagSet) {
	f.StringVar(&o.name, "node-name", "", "name of the node (default the host name)")
	f.StringVar(&o.override, "hostname-override", "", "name of the node instead of the host name, without --node-name")
	f.StringVar(&o.nodeIP, "node-ip", "", "address of the node, or one of each family separated by a comma (default that of the default route)")
	f.BoolVar(&o.register, "register-node", true, "create the Node object if there is none")
	f.StringVar(&o.taints, "register-with-taints", "", "taints of a new Node object, KEY=VALUE:EFFECT,…")
	f.StringVar(&o.labels, "node-labels", "", "labels of a new Node object, KEY=VALUE,…")
	f.BoolVar(&o.schedulable, "register-schedulable", true, "whether a new Node object may have pods at once; if not it is cordoned")
	f.StringVar(&o.cloud, "cloud-provider", "", "external: a cloud controller manager sets the addresses of the node, and no pods come before it has")
	f.StringVar(&o.providerID, "provider-id", "", "what a cloud or an inventory calls the machine, PROVIDER://ID; written to a new Node object")
	f.BoolVar(&o.servingAddresses, "serving-certificate-addresses", false, "have the kubelet API's certificate name the addresses of the Node, too, once they are known and when they change: somebody has to approve each such request, and the certificate before serves until then")
}

func (o *options) addStatusFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.statusUpdate, "node-status-update-frequency", 10*time.Second, "how often the node's status is computed")
	f.DurationVar(&o.statusReport, "node-status-report-frequency", 5*time.Minute, "how often the node's status is written when nothing has changed; with --node-status-update-frequency alone, as often as that says")
	f.Int32Var(&o.leaseSeconds, "node-lease-duration-seconds", 40, "how long the node's lease lasts; it is renewed every quarter of it")
	f.IntVar(&o.maxImages, "node-status-max-images", node.DefaultMaxImages, "how many images the node's status lists, the largest ones; -1 for all")
}

func (o *options) addPodFlags(f *pflag.FlagSet) {
	f.StringVar(&o.runtime, "runtime", "auto", "what runs containers: auto or process")
	f.IntVar(&o.maxPods, "max-pods", 110, "how many pods the node takes")
	f.Int64Var(&o.podMaxPIDs, "pod-max-pids", -1, "how many processes a pod may have; -1 for any number")
	f.BoolVar(&o.seccompDefault, "seccomp-default", false, "filter the system calls of containers that name no seccomp profile: RuntimeDefault instead of Unconfined")
	f.StringSliceVar(&o.hidePaths, "hide-path", []string{"/root/.ssh"}, "files and directories of the machine that containers do not see, beside those of Hawser")
	f.DurationVar(&o.offlinePatience, "offline-patience", pods.DefaultPatience, "how long an agent that has started waits for the API before it starts pods that it knows from disk")
	f.DurationVar(&o.volumeRefresh, "sync-frequency", time.Minute, "how often configMaps and secrets in volumes are brought up to date")
	f.Int64Var(&o.containerLogSize, "container-log-max-size", 10<<20, "bytes at which a container's log is rotated")
	f.IntVar(&o.containerLogs, "container-log-max-files", 5, "how many files of a container's log are kept")
	f.DurationVar(&o.retention.MinAge, "minimum-container-ttl-duration", 0, "how old a container is at least when it is removed after it has ended, counted from when it was made")
	f.IntVar(&o.retention.PerContainer, "maximum-dead-containers-per-container", pods.DefaultPerContainer, "how many attempts that have ended are kept of each container, with their logs; negative for all")
	f.IntVar(&o.retention.Total, "maximum-dead-containers", pods.DefaultTotal, "how many containers that have ended are kept on the node; negative for any number")
}

func (o *options) addPressureFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeReserved, "kube-reserved", "", "resources kept for the agent, such as cpu=100m,memory=128Mi")
	f.StringVar(&o.systemReserved, "system-reserved", "", "resources kept for the system, such as cpu=100m,memory=128Mi")
	f.StringVar(&o.evictionHard, "eviction-hard", node.DefaultEvictionHard, "when the node reports pressure, SIGNAL<QUANTITY,… with signals memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available; what is not named has no threshold, and the default ones of imagefs are for a runtime with a file system of its own")
	f.DurationVar(&o.pressureOver, "eviction-pressure-transition-period", 5*time.Minute, "how long pressure is reported after it is over")
}

func (o *options) addLocalFlags(f *pflag.FlagSet) {
	f.IntVar(&o.kubeletPort, "kubelet-port", node.KubeletPort, "with --transport ssh: port of the kubelet API on the loopback interface")
	f.StringVar(&o.apiListen, "apiserver-listen", "", "loopback ADDRESS:PORT that leads to the API server through the tunnel, such as 127.0.0.1:6443; for a kubelet, kube-proxy and others of this machine")
	f.StringVar(&o.apiNets, "apiserver-listen-in", "", "directory in which the runtime keeps the network namespaces of pods, such as /run/netns: --apiserver-listen is listened on in each of them as well, on the pod's loopback (needs CAP_SYS_ADMIN)")
}

func (o *options) addLogFlags(f *pflag.FlagSet) {
	f.IntVarP(&o.verbosity, "v", "v", 0, "log verbosity: 0 life events, 4 and above each stream")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check refuses what cannot work, naming the flag.
func (o *options) check(f *pflag.FlagSet) error {
	for _, part := range []func() error{o.checkToken, func() error { return o.identityOptions.check(f) }, o.checkServers, o.checkName, o.checkRegistration, o.checkResources, func() error { return o.checkPressure(f) }, o.checkPeriods, o.shutdownOptions.check, o.staticOptions.check} {
		if err := part(); err != nil {
			return err
		}
	}
	if err := o.transportOptions.check(o.addrs); err != nil {
		return err
	}
	if err := o.kubeletOptions.check(o.transport, f); err != nil {
		return err
	}
	if o.builtin() {
		if err := o.checkKey(); err != nil {
			return err
		}
	}
	if err := o.checkListen(); err != nil {
		return err
	}
	if err := o.checkSSH(f); err != nil {
		return err
	}
	if o.runtime != "auto" && o.runtime != "process" {
		return fmt.Errorf("--runtime %q: want auto or process", o.runtime)
	}
	if err := setup.CheckLogFormat(o.logFormat); err != nil {
		return fmt.Errorf("--log-format %w", err)
	}
	if f.Changed("node-status-update-frequency") && !f.Changed("node-status-report-frequency") {
		o.statusReport = o.statusUpdate
	}
	var err error
	if o.targets, err = agent.ParseTargets(o.allowTargets); err != nil {
		return fmt.Errorf("--allow-target: %w", err)
	}
	if o.dataDir, err = setup.CheckDataDir(o.dataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return nil
}

// tokenEnv is the environment variable that is a join token if no flag says of one.
const tokenEnv = "HAWSER_TOKEN"

// checkToken finds out where the token is. The environment has none afterwards, for
// programs that this one starts.
func (o *options) checkToken() error {
	env := os.Getenv(tokenEnv)
	if err := os.Unsetenv(tokenEnv); err != nil {
		return fmt.Errorf("%s: %w", tokenEnv, err)
	}
	switch {
	case o.token != "" && o.tokenFile != "":
		return errors.New("--token and --token-file: give one of them")
	case o.tokenFile != "":
		o.tokenFrom = "--token-file"
	case o.token == "" && env != "":
		o.token, o.tokenFrom = env, tokenEnv
	default:
		o.tokenFrom = "--token"
	}
	for _, h := range o.caHashes {
		pins, err := bootstrap.ParsePins(h)
		if err != nil {
			return fmt.Errorf("--discovery-token-ca-cert-hash: %w", err)
		}
		o.pins = append(o.pins, pins...)
	}
	return nil
}

func (o *options) checkServers() error {
	if len(o.servers) == 0 && o.kubeconfigServer != "" {
		o.servers = []string{o.kubeconfigServer}
	}
	o.standalone = len(o.servers) == 0 && o.manifests != "" && o.builtin() && o.token == "" && o.tokenFile == "" && len(o.caHashes) == 0 && !o.given()
	if o.standalone {
		return nil
	}
	if len(o.servers) == 0 {
		return errors.New("--server is missing: give https://HOST:PORT, as hawser token create --print-join-command prints it")
	}
	if o.serverCount < 1 {
		return fmt.Errorf("--server-count %d: want at least 1", o.serverCount)
	}
	for _, s := range o.servers {
		addr, err := setup.ServerAddress(s)
		if err != nil {
			return fmt.Errorf("--server %w", err)
		}
		o.addrs = append(o.addrs, addr)
	}
	return nil
}

func (o *options) checkName() error {
	flag, name := "--node-name", o.name
	if name == "" {
		flag, name = "--hostname-override", o.override
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name is missing, and the host has no name: %w", err)
		}
		flag, name = "--node-name (the host name)", strings.ToLower(host)
	}
	var err error
	if o.nodeName, err = node.ParseName(name); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if o.ips, err = node.ParseIPs(o.nodeIP); err != nil {
		return fmt.Errorf("--node-ip: %w", err)
	}
	return nil
}

func (o *options) checkRegistration() error {
	var err error
	if o.nodeLabels, err = node.ParseLabels(o.labels); err != nil {
		return fmt.Errorf("--node-labels: %w", err)
	}
	if o.nodeTaints, err = node.ParseTaints(o.taints); err != nil {
		return fmt.Errorf("--register-with-taints: %w", err)
	}
	if o.cloud != "" && o.cloud != externalCloud {
		return fmt.Errorf("--cloud-provider %q: want %s, or none: clouds have controller managers of their own", o.cloud, externalCloud)
	}
	return nil
}

func (o *options) checkResources() error {
	kube, err := node.ParseReserved(o.kubeReserved)
	if err != nil {
		return fmt.Errorf("--kube-reserved: %w", err)
	}
	system, err := node.ParseReserved(o.systemReserved)
	if err != nil {
		return fmt.Errorf("--system-reserved: %w", err)
	}
	o.reserved = node.AddReserved(kube, system)
	if o.maxPods < 1 {
		return fmt.Errorf("--max-pods %d: want 1 or more", o.maxPods)
	}
	if o.podMaxPIDs < -1 {
		return fmt.Errorf("--pod-max-pids %d: want -1 for any number, or more", o.podMaxPIDs)
	}
	for _, p := range o.hidePaths {
		if !filepath.IsAbs(p) || filepath.Clean(p) == "/" {
			return fmt.Errorf("--hide-path %q: want an absolute path, and not /", p)
		}
	}
	if o.maxImages < -1 {
		return fmt.Errorf("--node-status-max-images %d: want 0 or more, or -1 for all", o.maxImages)
	}
	if o.containerLogSize < 1<<10 {
		return fmt.Errorf("--container-log-max-size %d: want 1024 or more", o.containerLogSize)
	}
	if o.containerLogs < 2 {
		return fmt.Errorf("--container-log-max-files %d: want 2 or more", o.containerLogs)
	}
	return nil
}

// checkPressure leaves the default thresholds to the node: it knows which of them
// make sense.
func (o *options) checkPressure(f *pflag.FlagSet) error {
	hard, err := node.ParseThresholds(o.evictionHard)
	if err != nil {
		return fmt.Errorf("--eviction-hard: %w", err)
	}
	if f.Changed("eviction-hard") {
		o.thresholds.Hard = hard
	}
	if o.pressureOver < 0 {
		return fmt.Errorf("--eviction-pressure-transition-period %s: want 0 or more", o.pressureOver)
	}
	o.thresholds.Recovery = max(o.pressureOver, 1) // 0 would be the default
	return nil
}

func (o *options) checkPeriods() error {
	for flag, d := range map[string]time.Duration{
		"--node-status-update-frequency": o.statusUpdate,
		"--node-status-report-frequency": o.statusReport,
		"--sync-frequency":               o.volumeRefresh,
		"--authorities-refresh-period":   o.trustRefresh,
	} {
		if d < 100*time.Millisecond {
			return fmt.Errorf("%s %s: want 100ms or more", flag, d)
		}
	}
	if o.retention.MinAge < 0 {
		return fmt.Errorf("--minimum-container-ttl-duration %s: want 0 or more", o.retention.MinAge)
	}
	if o.offlinePatience < 0 {
		return fmt.Errorf("--offline-patience %s: want 0 or more", o.offlinePatience)
	}
	if o.leaseSeconds < 1 {
		return fmt.Errorf("--node-lease-duration-seconds %d: want 1 or more", o.leaseSeconds)
	}
	return nil
}
