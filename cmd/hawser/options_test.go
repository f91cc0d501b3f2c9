package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// parse gives the flags to a new set of options and checks them.
func parse(t *testing.T, args ...string) (*serverOptions, error) {
	t.Helper()
	var o serverOptions
	f := pflag.NewFlagSet("server", pflag.ContinueOnError)
	o.addFlags(f)
	dir := t.TempDir()
	if err := f.Parse(append([]string{"--data-dir", filepath.Join(dir, "data")}, args...)); err != nil {
		t.Fatal(err)
	}
	err := o.check()
	if left, rerr := os.ReadDir(dir); rerr != nil || len(left) > 0 {
		t.Errorf("a check made %v, %v", left, rerr)
	}
	return &o, err
}

func TestServerOptions(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"defaults":                       {nil, ""},
		"ipv6":                           {[]string{"--bind-address", "::1", "--service-cluster-ip-range", "fd00::/112"}, ""},
		"address":                        {[]string{"--bind-address", "localhost"}, `--bind-address "localhost"`},
		"advertise nowhere":              {[]string{"--advertise-address", "0.0.0.0"}, `--advertise-address "0.0.0.0"`},
		"advertise to a group":           {[]string{"--advertise-address", "ff02::1"}, `--advertise-address "ff02::1" is not an IP address that nodes can dial`},
		"advertise to all":               {[]string{"--advertise-address", "255.255.255.255"}, `--advertise-address "255.255.255.255"`},
		"advertise on a link":            {[]string{"--advertise-address", "fe80::1"}, `--advertise-address "fe80::1" is link-local`},
		"advertise on a link, IPv4":      {[]string{"--advertise-address", "169.254.1.1"}, `--advertise-address "169.254.1.1" is link-local`},
		"beside, on a link":              {[]string{"--kubeconfig", "x", "--advertise-address", "169.254.1.1"}, ""},
		"names":                          {[]string{"--tls-san", "hub.example,Hub,*.example.net,10.0.0.1,fd00:75::1,stack_hub,*.my_stack,_a.B_,42,1.2.3.a4"}, ""},
		"server's name":                  {[]string{"--server-id", "A.b"}, `--server-id: server ID "A.b"`},
		"peer address":                   {[]string{"--peer-address", "10.0.0.1"}, `--peer-address "10.0.0.1" is not HOST:PORT`},
		"store on a socket":              {[]string{"--etcd-servers", "unix:///run/etcd.sock"}, ""},
		"one of several":                 {[]string{"--server-id", "a", "--peer-address", "a.example:6443"}, ""},
		"port":                           {[]string{"--secure-port", "0"}, "--secure-port 0"},
		"one port for two":               {[]string{"--connect-port", "6443"}, "--connect-port and --secure-port"},
		"konnectivity's port":            {[]string{"--konnectivity-port", "65536"}, "--konnectivity-port 65536"},
		"one port for two fronts":        {[]string{"--konnectivity-port", "8131"}, "--konnectivity-port and --connect-port"},
		"one socket for two fronts":      {[]string{"--konnectivity-uds", "/tmp/hawser-test.sock", "--connect-uds", "/tmp/hawser-test.sock"}, "--konnectivity-uds and --connect-uds"},
		"no detach window":               {[]string{"--detach-window", "0"}, ""},
		"detach window":                  {[]string{"--detach-window", "-1s"}, "--detach-window -1s"},
		"keepalive":                      {[]string{"--link-keepalive", "1h"}, "--link-keepalive 1h"},
		"congestion control":             {[]string{"--tcp-congestion", "a b"}, `--tcp-congestion "a b"`},
		"tiny service range":             {[]string{"--service-cluster-ip-range", "10.0.0.0/30"}, "--service-cluster-ip-range 10.0.0.0/30"},
		"huge service range":             {[]string{"--service-cluster-ip-range", "10.0.0.0/8"}, "--service-cluster-ip-range 10.0.0.0/8"},
		"negative toleration":            {[]string{"--default-not-ready-toleration-seconds", "-1"}, "--default-not-ready-toleration-seconds -1"},
		"no requests":                    {[]string{"--max-requests-inflight", "0"}, "--max-requests-inflight 0"},
		"no writes":                      {[]string{"--max-mutating-requests-inflight", "-1"}, "--max-mutating-requests-inflight -1"},
		"issuer":                         {[]string{"--service-account-issuer", "http://a.example"}, `--service-account-issuer: issuer "http://a.example"`},
		"two issuers":                    {[]string{"--service-account-issuer", "https://a.example,https://b.example", "--api-audiences", "api"}, ""},
		"audience":                       {[]string{"--api-audiences", "a,,b"}, "--api-audiences"},
		"short tokens":                   {[]string{"--service-account-max-token-expiration", "59m"}, "--service-account-max-token-expiration 59m0s"},
		"no nodes":                       {[]string{"--authorization-mode", "RBAC"}, `--authorization-mode "RBAC" lacks Node`},
		"unknown mode":                   {[]string{"--authorization-mode", "Node,ABAC"}, `--authorization-mode "ABAC"`},
		"mode twice":                     {[]string{"--authorization-mode", "Node,RBAC,Node"}, "--authorization-mode: Node is there twice"},
		"webhook without a file":         {[]string{"--authorization-mode", "Node,Webhook"}, "needs --authorization-webhook-config-file"},
		"file without webhook":           {[]string{"--authorization-webhook-config-file", "/dev/null"}, "is for --authorization-mode Webhook"},
		"negative memory":                {[]string{"--authorization-webhook-cache-authorized-ttl", "-1s"}, "--authorization-webhook-cache-authorized-ttl -1s"},
		"proxies without headers":        {[]string{"--requestheader-client-ca-file", "/dev/null"}, "needs --requestheader-username-headers"},
		"headers without proxies":        {[]string{"--requestheader-username-headers", "X-Remote-User"}, "need --requestheader-client-ca-file"},
		"short certificates":             {[]string{"--cluster-signing-duration", "1m"}, "--cluster-signing-duration"},
		"etcd URL":                       {[]string{"--etcd-servers", "10.0.0.1:2379"}, `--etcd-servers "10.0.0.1:2379"`},
		"etcd key alone":                 {[]string{"--etcd-servers", "https://10.0.0.1:2379", "--etcd-keyfile", "/dev/null"}, "go together"},
		"keys for embedded store":        {[]string{"--etcd-cafile", "/dev/null"}, "--etcd-cafile needs --etcd-servers"},
		"unreadable etcd CA":             {[]string{"--etcd-servers", "https://10.0.0.1:2379", "--etcd-cafile", "/nowhere"}, "--etcd-cafile: open /nowhere"},
		"controller":                     {[]string{"--controllers", "*,-nonsense"}, `--controllers: there is no "nonsense"; there are `},
		"controllers by their old names": {[]string{"--controllers", "csrapproving,-csrsigning"}, ""},
		"controllers by name":            {[]string{"--controllers", "*,-kube-scheduler"}, ""},
		"controllers, fast": {[]string{
			"--node-monitor-period=200ms", "--node-monitor-grace-period=2s", "--node-eviction-rate=10", "--pod-gc-sync-period=1s",
			"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms",
		}, ""},
		"eviction rates":          {[]string{"--secondary-node-eviction-rate", "0.2"}, "--secondary-node-eviction-rate 0.2 is above --node-eviction-rate 0.1"},
		"zone threshold":          {[]string{"--unhealthy-zone-threshold", "55"}, "--unhealthy-zone-threshold 55"},
		"grace period":            {[]string{"--node-monitor-grace-period", "1s"}, "--node-monitor-grace-period 1s"},
		"pod GC":                  {[]string{"--pod-gc-sync-period", "0"}, "--pod-gc-sync-period 0s"},
		"quarantine":              {[]string{"--pod-gc-orphan-quarantine", "-1s"}, "--pod-gc-orphan-quarantine -1s"},
		"pod CIDRs":               {[]string{"--allocate-node-cidrs", "--cluster-cidr", "10.244.0.0/16"}, ""},
		"pod CIDRs without range": {[]string{"--allocate-node-cidrs"}, "--cluster-cidr"},
		"pods and services":       {[]string{"--allocate-node-cidrs", "--cluster-cidr", "10.96.0.0/16"}, "--service-cluster-ip-range"},
		"blocks too large":        {[]string{"--allocate-node-cidrs", "--cluster-cidr", "10.244.0.0/16", "--node-cidr-mask-size", "8"}, "--node-cidr-mask-size"},
		"not cause-aware":         {[]string{"--cause-aware-eviction=false", "--site-autonomy-duration=0"}, ""},
		"autonomy, too long":      {[]string{"--site-autonomy-duration=25h"}, "--max-autonomy-duration 24h"},
		"autonomy, longer":        {[]string{"--site-autonomy-duration=25h", "--max-autonomy-duration=48h"}, ""},
		"longest autonomy":        {[]string{"--max-autonomy-duration=0"}, "--max-autonomy-duration 0s"},
		"site autonomy":           {[]string{"--site-autonomy-duration=-1s"}, "--site-autonomy-duration -1s"},
		"a flag of old":           {[]string{"--pod-eviction-timeout=5m"}, "--default-unreachable-toleration-seconds"},
		"a cloud":                 {[]string{"--cloud-provider=aws"}, "--cloud-provider aws: no cloud is in this server"},
		"a cloud elsewhere":       {[]string{"--cloud-provider=external"}, "run a cloud controller manager such as hawser-ccm"},
		"ports of Services":       {[]string{"--load-balancer-ports=80,443,30000-32767"}, ""},
		"no port of Services":     {[]string{"--load-balancer-ports=80,http"}, `--load-balancer-ports "http": want a port, or a range`},
		"probe period":            {[]string{"--tunnel-probe-period=0"}, "--tunnel-probe-period 0s"},
		"looks without a rest":    {[]string{"--node-monitor-period=1ns"}, "--node-monitor-period 1ns"},
		"probes without a rest":   {[]string{"--tunnel-probe-period=1ns"}, "--tunnel-probe-period 1ns"},
		"pods and services, said": {[]string{"--allocate-node-cidrs", "--cluster-cidr", "10.96.0.0/16"}, "--service-cluster-ip-range"},
		"quotas never counted":    {[]string{"--resource-quota-sync-period=0"}, "--resource-quota-sync-period 0s"},
		"quotas by nobody":        {[]string{"--concurrent-resource-quota-syncs=0"}, "--concurrent-resource-quota-syncs 0"},
		"plugins as in kubeadm":   {[]string{"--enable-admission-plugins=NodeRestriction,ResourceQuota"}, ""},
		"plugins left out":        {[]string{"--disable-admission-plugins=ResourceQuota,LimitRanger"}, ""},
		"no such plugin":          {[]string{"--disable-admission-plugins=Quota"}, `--disable-admission-plugins: there is no "Quota"; there are NamespaceLifecycle, `},
		"no plugin to enable":     {[]string{"--enable-admission-plugins=AlwaysPullImages"}, `--enable-admission-plugins: there is no "AlwaysPullImages"`},
		"a plugin on and off":     {[]string{"--enable-admission-plugins=Priority", "--disable-admission-plugins=Priority"}, "Priority is also in --enable-admission-plugins"},
		"unrestricted nodes":      {[]string{"--disable-admission-plugins=NodeRestriction"}, "a node could write the objects of another"},
		"beside, plugins":         {[]string{"--kubeconfig", "x", "--disable-admission-plugins=Priority"}, "--disable-admission-plugins does not go with --kubeconfig"},
		"job's backoff":           {[]string{"--job-min-backoff=10m"}, "--job-min-backoff 10m0s is above --job-max-backoff 6m0s"},
		"leader's tries":          {[]string{"--leader-elect-retry-period=0s"}, "--leader-elect-retry-period 0s"},
		"leader's name":           {[]string{"--leader-elect-resource-name", "Bad_Name"}, `--leader-elect-resource-name "Bad_Name"`},
		"leader without a name":   {[]string{"--leader-elect-resource-name", ""}, `--leader-elect-resource-name ""`},
		"leader's namespace":      {[]string{"--leader-elect-resource-namespace", "a.b"}, `--leader-elect-resource-namespace "a.b"`},
		"beside, services":        {[]string{"--kubeconfig", "x", "--allocate-node-cidrs", "--cluster-cidr", "10.96.0.0/16"}, ""},
		"beside, services, said":  {[]string{"--kubeconfig", "x", "--allocate-node-cidrs", "--cluster-cidr", "10.96.0.0/16", "--service-cluster-ip-range", "10.96.0.0/12"}, "--service-cluster-ip-range 10.96.0.0/12 leaves no block of --cluster-cidr 10.96.0.0/16"},
		"beside, not cause-aware": {[]string{"--kubeconfig", "x", "--cause-aware-eviction=false", "--connect-port=0"}, ""},
		"beside, cause-aware":     {[]string{"--kubeconfig", "x", "--cause-aware-eviction"}, "--cause-aware-eviction needs --controllers node-lifecycle-controller"},
		"beside, with lifecycle":  {[]string{"--kubeconfig", "x", "--cause-aware-eviction", "--controllers=*"}, ""},
		"beside, a front end":     {[]string{"--kubeconfig", "x", "--connect-port=8131", "--connect-uds=/tmp/hawser-no-such"}, ""},
		"beside, the other front": {[]string{"--kubeconfig", "x", "--konnectivity-uds=/tmp/hawser-no-such"}, ""},
		"beside, one port":        {[]string{"--kubeconfig", "x", "--health-port=8131"}, "--connect-port and --health-port are both 8131"},
		"beside, two authorities": {[]string{"--kubeconfig", "x", "--client-ca-file=a", "--agent-ca=b"}, "--client-ca-file and --agent-ca"},
		"beside, half a pair":     {[]string{"--kubeconfig", "x", "--tls-cert-file=a"}, "--tls-cert-file and --tls-private-key-file go together"},
		"a hub's flag alone":      {[]string{"--agent-ca", "x"}, "--agent-ca needs --kubeconfig"},
		"leader's times":          {[]string{"--leader-elect-lease-duration", "5s"}, "--leader-elect-renew-deadline 10s"},
		"beside":                  {[]string{"--kubeconfig", "x"}, ""},
		"beside, signing":         {[]string{"--kubeconfig", "x", "--controllers", "certificatesigningrequest-signing-controller"}, "needs --cluster-signing-cert-file"},
		"beside, etcd":            {[]string{"--kubeconfig", "x", "--etcd-servers", "https://10.0.0.1:2379"}, "--etcd-servers does not go with --kubeconfig"},
		"signing alone":           {[]string{"--cluster-signing-cert-file", "x", "--cluster-signing-key-file", "y"}, "needs --kubeconfig"},
		"half a serving signer":   {[]string{"--kubeconfig", "x", "--cluster-signing-kubelet-serving-key-file", "y"}, "go together"},
		"serving signer alone":    {[]string{"--kubeconfig", "x", "--cluster-signing-kubelet-serving-cert-file", "y", "--cluster-signing-kubelet-serving-key-file", "z"}, "needs --cluster-signing-cert-file"},
		"half a signer":           {[]string{"--kubeconfig", "x", "--cluster-signing-key-file", "y"}, "go together"},
		"taking back":             {[]string{"--take-back-after", "0"}, "--take-back-after 0s"},
		"no such encryption":      {[]string{"--encryption-provider-config", "/nowhere/keys.yaml"}, "--encryption-provider-config /nowhere/keys.yaml: "},
		"broken encryption":       {[]string{"--encryption-provider-config", "/proc/version"}, "--encryption-provider-config /proc/version: "},
		"reload of nothing":       {[]string{"--encryption-provider-config-automatic-reload"}, "needs --encryption-provider-config"},
		"audit without a policy":  {[]string{"--audit-log-path", "-"}, "--audit-policy-file"},
		"no such audit policy":    {[]string{"--audit-log-path", "-", "--audit-policy-file", "/nowhere/policy.yaml"}, "--audit-policy-file /nowhere/policy.yaml: no such file"},
		"a broken audit policy":   {[]string{"--audit-policy-file", "/proc/version"}, "--audit-policy-file /proc/version: "},
		"audit format":            {[]string{"--audit-log-format", "xml"}, `--audit-log-format "xml"`},
		"audit mode":              {[]string{"--audit-log-mode", "lax"}, `--audit-log-mode "lax"`},
		"audit files":             {[]string{"--audit-log-maxbackup", "-1"}, "--audit-log-maxbackup -1 is negative"},
		"beside, audit":           {[]string{"--kubeconfig", "x", "--audit-log-mode", "batch"}, "--audit-log-mode does not go with --kubeconfig"},
		"log format":              {[]string{"--log-format", "xml"}, `--log-format "xml"`},
		"data dir":                {[]string{"--data-dir", "/proc/version/x"}, "--data-dir: stat /proc/version/x: not a directory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tt.args...)
			clitest.Refused(t, err, tt.want)
		})
	}
}

// TestNamesOfACertificate: what no certificate can name is refused, not written into one.
func TestNamesOfACertificate(t *testing.T) {
	for _, san := range []string{"[fd00:75::1]", "https://foo:6443", "10.0.0.1:6443", "a b", "10.0.0.0/8", "fe80::1%eth0", "*", "a.*.b", "foo.", "-a", "a_*", "*_.b", "_-.b", "10.0.0.256", "*.1", "a.b.3"} {
		_, err := parse(t, "--tls-san", "hub.example,"+san)
		clitest.Refused(t, err, fmt.Sprintf("--tls-san %q: want an IP address, a DNS name or *.DOMAIN", san))
		cmd := newManifest()
		cmd.SetArgs([]string{"server", "--image", "x", "--address", san})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		clitest.Refused(t, cmd.ExecuteContext(t.Context()), fmt.Sprintf("--address %q: want", san))
	}
}

// TestPodsStayOnALostNode: by default those without tolerations of their own do for 300 s.
func TestPodsStayOnALostNode(t *testing.T) {
	o, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if o.notReadyToleration != 300 || o.unreachToleration != 300 {
		t.Errorf("not-ready %d s, unreachable %d s", o.notReadyToleration, o.unreachToleration)
	}
}

func TestServingCertificateNamesWhatIsAdvertised(t *testing.T) {
	o, err := parse(t, "--bind-address", "127.0.0.2", "--advertise-address", "203.0.113.7", "--tls-san", "hawser.example,203.0.113.8")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	have = append(have, o.servingNames()...)
	for _, ip := range o.servingIPs() {
		have = append(have, ip.String())
	}
	for _, want := range []string{"localhost", "kubernetes.default.svc", "hawser.example", "127.0.0.1", "127.0.0.2", "203.0.113.7", "203.0.113.8", "10.96.0.1"} {
		if !slices.Contains(have, want) {
			t.Errorf("%s is missing from %v", want, have)
		}
	}
	if o.localURL() != "https://127.0.0.2:6443" {
		t.Errorf("local URL %s", o.localURL())
	}
}

// TestIdentity: a server is the same candidate each time it starts, and no other's.
func TestIdentity(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	first, err := identity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := identity(dir); err != nil || again != first {
		t.Errorf("%q and then %q, %v", first, again, err)
	}
	if x, err := identity(other); err != nil || x == first {
		t.Errorf("two servers are both %q, %v", x, err)
	}
	// A crash in the middle of writing it.
	if err := os.WriteFile(filepath.Join(dir, identityFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x, err := identity(dir); err != nil || strings.HasSuffix(x, "_") {
		t.Errorf("%q of an empty file, %v", x, err)
	}
	if _, err := identity(filepath.Join(dir, "missing")); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("got %v", err)
	}
}

func TestFlagsAreDescribed(t *testing.T) {
	clitest.Described(t, newServer())
	clitest.Described(t, newFleet())
}

func TestFeatureGates(t *testing.T) {
	for _, want := range []bool{false, true} {
		o, err := parse(t, fmt.Sprintf("--feature-gates=%s=%t", apiserver.TaintTolerationComparisonOperators, want))
		if err != nil || o.gates.Enabled(apiserver.TaintTolerationComparisonOperators) != want {
			t.Errorf("%t: %v", want, err)
		}
	}
	if o, err := parse(t); err != nil || o.gates.Enabled(apiserver.TaintTolerationComparisonOperators) {
		t.Errorf("by default: %v", err)
	}
}

func TestConfigRoundTrip(t *testing.T) { clitest.RoundTrip(t, new(serverOptions).addFlags) }

// TestPrintedConfig: what was taken for a flag of konnectivity-server's is printed as the
// server's own, what the check refuses is not printed, and flags of the command line count.
func TestPrintedConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.yaml")
	for text, want := range map[string]string{
		"connect-port: 8131\nserver-id: b\n": "",
		"connect-port: 7443\n":               "--connect-port and --secure-port",
		"conect-port: 8131\n":                "--config " + file + `: line 1: there is no flag "conect-port"; did you mean connect-port?`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		cmd := newServer()
		cmd.SetOut(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"--config", file, "--print-config", "--agent-port", "7443", "--server-id", "a", "--data-dir", filepath.Join(t.TempDir(), "data")})
		clitest.Refused(t, cmd.ExecuteContext(t.Context()), want)
		if shown := strings.Contains(out.String(), "\nsecure-port: 7443\n") && strings.Contains(out.String(), "\nconnect-port: 8131\n") && strings.Contains(out.String(), "\nserver-id: a\n"); shown != (want == "") {
			t.Errorf("%s prints\n%s", text, out.String())
		}
	}
}
