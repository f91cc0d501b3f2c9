package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node"
)

func parse(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	return parseBare(t, append([]string{"--server", "https://hub.example"}, args...)...)
}

// parseBare is parse without a server.
func parseBare(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	var o options
	f := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	o.addFlags(f)
	dir := t.TempDir()
	base := []string{"--data-dir", filepath.Join(dir, "data")}
	if err := f.Parse(append(base, args...)); err != nil {
		t.Fatal(err)
	}
	err := o.check(f)
	if left, rerr := os.ReadDir(dir); rerr != nil || len(left) > 0 {
		t.Errorf("a check made %v, %v", left, rerr)
	}
	return &o, err
}

func TestDocumented(t *testing.T) { clitest.Documented(t, "hawser-agent", newRoot) }

// TestCompleteValues: each value that a shell is offered is one that the agent takes.
func TestCompleteValues(t *testing.T) {
	if len(flagValues) == 0 {
		t.Error("no flag completes to values")
	}
	for flag, values := range flagValues {
		var out strings.Builder
		cmd := newRoot()
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"__complete", "--" + flag, ""})
		if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != strings.Join(values, "\n")+"\n:4\n" {
			t.Errorf("--%s offers %q, %v", flag, &out, err)
		}
		for _, v := range values {
			if v == setup.SSH { // takes other flags as well
				continue
			}
			if _, err := parse(t, "--"+flag, v); err != nil {
				t.Errorf("--%s %s: %v", flag, v, err)
			}
		}
	}
}

func TestManPages(t *testing.T) { clitest.ManPages(t, newRoot) }

// A token comes from a flag, a file or the environment, which has none afterwards.
func TestTokenSources(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		env  string
		args []string
		from string
		bad  string
	}{
		"flag":          {args: []string{"--token", token}, from: "--token"},
		"flag and env":  {env: "fedcba.0123456789abcdef", args: []string{"--token", token}, from: "--token"},
		"file":          {args: []string{"--token-file", file}, from: "--token-file"},
		"file and env":  {env: "fedcba.0123456789abcdef", args: []string{"--token-file", file}, from: "--token-file"},
		"env":           {env: token, from: tokenEnv},
		"flag and file": {args: []string{"--token", token, "--token-file", file}, bad: "give one of them"},
		"bad env":       {env: "nonsense", bad: tokenEnv + ": join token must be ID.SECRET"},
		"no file":       {args: []string{"--token-file", file + ".none"}, bad: file + ".none"},
		"bad file":      {args: []string{"--token-file", "/dev/zero"}, bad: "/dev/zero is not a regular file"},
		"nothing":       {bad: "a join token is needed (--token-file, HAWSER_TOKEN or --token)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tokenEnv, tt.env)
			o, err := parse(t, append(tt.args, "--discovery-token-ca-cert-hash", "sha256:"+strings.Repeat("00", 32))...)
			if err == nil {
				_, err = joinConfig(o, slog.New(slog.DiscardHandler))
			}
			switch {
			case tt.bad != "":
				if err == nil || !strings.Contains(err.Error(), tt.bad) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v, want %s", err, tt.bad)
				}
			case err != nil || o.tokenFrom != tt.from:
				t.Errorf("from %q, %v", o.tokenFrom, err)
			}
			if left, ok := os.LookupEnv(tokenEnv); ok {
				t.Errorf("the environment still has %q", left)
			}
		})
	}
}

// --print-config prints no token, wherever that is from.
func TestPrintConfigHasNoToken(t *testing.T) {
	const secret = "0123456789abcdef"
	for name, args := range map[string][]string{"environment": nil, "flag": {"--token", "abcdef." + secret}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tokenEnv, "abcdef."+secret)
			var out strings.Builder
			root := newRoot()
			root.SetOut(&out)
			root.SetArgs(append([]string{"--print-config", "--server", "https://127.0.0.1:1", "--node-name", "n"}, args...))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "token was given, and is not printed") || strings.Contains(out.String(), secret) {
				t.Errorf("printed:\n%s", &out)
			}
		})
	}
}

// What is wrong with the token or the CA's hash is found before anything is made.
func TestBadTokenMakesNothing(t *testing.T) {
	for want, args := range map[string][]string{
		"--token and --token-file: ":       {"--token", "abcdef.0123456789abcdef", "--token-file", "x"},
		"--token: ":                        {"--token", "x"},
		"--discovery-token-ca-cert-hash: ": {"--token", "abcdef.0123456789abcdef", "--discovery-token-ca-cert-hash", "md5:1"},
	} {
		o, err := parse(t, args...)
		if err == nil {
			err = run(t.Context(), o, slog.New(slog.DiscardHandler))
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := os.Stat(o.dataDir); err == nil {
			t.Errorf("%s: %s was made", want, o.dataDir)
		}
	}
}

func TestOptions(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"bad hash":          {[]string{"--token", "abcdef.0123456789abcdef", "--discovery-token-ca-cert-hash", "md5:1"}, "--discovery-token-ca-cert-hash: "},
		"defaults":          {nil, ""},
		"plain http":        {[]string{"--server", "http://hub.example"}, `--server "http://hub.example"`},
		"path":              {[]string{"--server", "https://hub.example/x"}, `--server "https://hub.example/x"`},
		"name":              {[]string{"--node-name", "Node_1"}, "--node-name"},
		"override":          {[]string{"--hostname-override", "a..b"}, "--hostname-override"},
		"address":           {[]string{"--node-ip", "10.0.0.300"}, "--node-ip"},
		"loopback address":  {[]string{"--node-ip", "127.0.0.2"}, "--node-ip: 127.0.0.2 is a loopback address"},
		"two of one family": {[]string{"--node-ip", "10.0.0.1,10.0.0.2"}, "--node-ip"},
		"label":             {[]string{"--node-labels", "node-role.kubernetes.io/master="}, "--node-labels"},
		"taint":             {[]string{"--register-with-taints", "a=b:Never"}, "--register-with-taints"},
		"cloud":             {[]string{"--cloud-provider", "external", "--provider-id", "x://1", "--register-schedulable=false"}, ""},
		"cloud of old":      {[]string{"--cloud-provider", "aws"}, `--cloud-provider "aws": want external`},
		"target":            {[]string{"--allow-target", "10.0.0.0/99"}, "--allow-target"},
		"targets":           {[]string{"--allow-target", "10.0.0.0/8,127.0.0.1:*"}, ""},
		"reserved":          {[]string{"--kube-reserved", "cpu=lots"}, "--kube-reserved"},
		"pods":              {[]string{"--max-pods", "0"}, "--max-pods 0"},
		"images":            {[]string{"--node-status-max-images", "-2"}, "--node-status-max-images -2"},
		"all images":        {[]string{"--node-status-max-images", "-1"}, ""},
		"dead young":        {[]string{"--minimum-container-ttl-duration", "-1s"}, "--minimum-container-ttl-duration -1s: want 0 or more"},
		"dead":              {[]string{"--minimum-container-ttl-duration", "1h", "--maximum-dead-containers-per-container", "-1", "--maximum-dead-containers", "0"}, ""},
		"period":            {[]string{"--node-status-update-frequency", "1ms"}, "--node-status-update-frequency 1ms"},
		"shutdown":          {[]string{"--shutdown-grace-period", "30s", "--shutdown-grace-period-critical-pods", "10s"}, ""},
		"short shutdown":    {[]string{"--shutdown-grace-period", "999ms"}, "--shutdown-grace-period 999ms: want 0, or 1s or more"},
		"negative shutdown": {[]string{"--shutdown-grace-period", "-1s"}, "--shutdown-grace-period -1s"},
		"short critical":    {[]string{"--shutdown-grace-period", "30s", "--shutdown-grace-period-critical-pods", "1ms"}, "--shutdown-grace-period-critical-pods 1ms"},
		"long critical":     {[]string{"--shutdown-grace-period", "30s", "--shutdown-grace-period-critical-pods", "40s"}, "--shutdown-grace-period-critical-pods 40s: want no more than --shutdown-grace-period, which is 30s"},
		"phases":            {[]string{"--shutdown-grace-period-by-pod-priority", "100000=10s,0=180s,10000=2m"}, ""},
		"phases and total":  {[]string{"--shutdown-grace-period-by-pod-priority", "0=10s", "--shutdown-grace-period", "30s"}, "--shutdown-grace-period-by-pod-priority: give it without"},
		"phase":             {[]string{"--shutdown-grace-period-by-pod-priority", "0=10s,x=3s"}, `"x=3s": want PRIORITY=DURATION`},
		"short phase":       {[]string{"--shutdown-grace-period-by-pod-priority", "0=10ms"}, `"0=10ms": want a duration`},
		"endless phases":    {[]string{"--shutdown-grace-period-by-pod-priority", "0=2000000h,1=2000000h"}, `"1=2000000h": want a duration`},
		"phase twice":       {[]string{"--shutdown-grace-period-by-pod-priority", "7=10s,7=1s"}, "priority 7 is there twice"},
		"gates":             {[]string{"--feature-gates", "GracefulNodeShutdown=true,GracefulNodeShutdownBasedOnPodPriority=false"}, ""},
		"foreign gate":      {[]string{"--feature-gates", "CPUManager=true"}, `--feature-gates: there is no gate "CPUManager": the agent has GracefulNodeShutdown and GracefulNodeShutdownBasedOnPodPriority`},
		"no value":          {[]string{"--feature-gates", "GracefulNodeShutdown"}, `--feature-gates: "GracefulNodeShutdown": want GracefulNodeShutdown=true or GracefulNodeShutdown=false`},
		"gate and phases":   {[]string{"--feature-gates", "GracefulNodeShutdown=false", "--shutdown-grace-period", "1ms"}, "--shutdown-grace-period 1ms"},
		"empty phases":      {[]string{"--shutdown-grace-period-by-pod-priority", "7=0"}, "no priority has any time"},
		"manifests":         {[]string{"--pod-manifest-path", "/etc/hawser/manifests/", "--file-check-frequency", "1s"}, ""},
		"manifests nowhere": {[]string{"--pod-manifest-path", "manifests"}, `--pod-manifest-path "manifests": want an absolute path`},
		"root's manifests":  {[]string{"--pod-manifest-path", "/x/.."}, `--pod-manifest-path "/x/.."`},
		"busy files":        {[]string{"--file-check-frequency", "1ms"}, "--file-check-frequency 1ms: want 100ms or more"},
		"lease":             {[]string{"--node-lease-duration-seconds", "0"}, "--node-lease-duration-seconds 0"},
		"transport":         {[]string{"--transport", "pigeon"}, `--transport "pigeon"`},
		"window":            {[]string{"--detach-window", "-1s"}, "--detach-window -1s"},
		"no window":         {[]string{"--detach-window", "0"}, ""},
		"keepalive":         {[]string{"--link-keepalive", "1h"}, "--link-keepalive 1h"},
		"congestion":        {[]string{"--tcp-congestion", "Fast!"}, `--tcp-congestion "Fast!"`},
		"runtime":           {[]string{"--runtime", "docker"}, `--runtime "docker"`},
		"signal":            {[]string{"--eviction-hard", "disk.free<10%"}, `--eviction-hard: signal "disk.free" is unknown, want memory.available, nodefs.available`},
		"threshold":         {[]string{"--eviction-hard", "nodefs.available<ten"}, "--eviction-hard"},
		"no thresholds":     {[]string{"--eviction-hard", ""}, ""},
		"transition":        {[]string{"--eviction-pressure-transition-period", "-1s"}, "--eviction-pressure-transition-period -1s"},
		"patience":          {[]string{"--offline-patience", "-1s"}, "--offline-patience -1s"},
		"processes":         {[]string{"--pod-max-pids", "-2"}, "--pod-max-pids -2"},
		"hidden root":       {[]string{"--hide-path", "/etc/.."}, `--hide-path "/etc/.."`},
		"hidden somewhere":  {[]string{"--hide-path", "etc"}, `--hide-path "etc"`},
		"log files":         {[]string{"--container-log-max-files", "1"}, "--container-log-max-files 1"},
		"data dir":          {[]string{"--data-dir", "/proc/version/x"}, "--data-dir: stat /proc/version/x: not a directory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tt.args...)
			clitest.Refused(t, err, tt.want)
		})
	}
}

func TestServersGetThePortOfTheAPI(t *testing.T) {
	o, err := parse(t, "--server", "https://other.example:7443/,https://[::1]")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"hub.example:6443", "other.example:7443", "[::1]:6443"}; !slices.Equal(o.addrs, want) {
		t.Errorf("got %v, want %v", o.addrs, want)
	}
}

// TestNameOfTheNode: --hostname-override takes the host's place, not that of --node-name.
func TestNameOfTheNode(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		strings.ToLower(host): nil,
		"foo":                 {"--hostname-override", " Foo "},
		"bar":                 {"--hostname-override", "Foo", "--node-name", "Bar"},
	} {
		o, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if o.nodeName != want {
			t.Errorf("%q: %s, want %s", args, o.nodeName, want)
		}
	}
}

// TestReportFollowsUpdate is the kubelet's rule: who sets only the update
// frequency wants reports as often.
func TestReportFollowsUpdate(t *testing.T) {
	for want, args := range map[time.Duration][]string{
		5 * time.Minute: nil,
		time.Second:     {"--node-status-update-frequency", "1s"},
		time.Minute:     {"--node-status-update-frequency", "1s", "--node-status-report-frequency", "1m"},
	} {
		o, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if o.statusReport != want {
			t.Errorf("%v: report every %s, want %s", args, o.statusReport, want)
		}
	}
}

func TestServerIsRequired(t *testing.T) {
	var o options
	f := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	o.addFlags(f)
	if err := o.check(f); err == nil || !strings.Contains(err.Error(), "--server is missing") {
		t.Errorf("got %v", err)
	}
}

// TestThresholdsReplaceTheDefaults is the kubelet's rule: who sets one threshold has
// set them all.
func TestThresholdsReplaceTheDefaults(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "[]node.Threshold(nil)"}, // the node's own
		{[]string{"--eviction-hard", ""}, "[]node.Threshold{}"},
		{[]string{"--eviction-hard", "nodefs.available<1%"}, `[]node.Threshold{node.Threshold{Signal:"nodefs.available", Amount:0, Percent:1}}`},
	} {
		o, err := parse(t, tt.args...)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%#v", o.thresholds.Hard); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.args, got, tt.want)
		}
	}
}

// Without a server an agent has static pods alone, if it has any.
func TestStandaloneOptions(t *testing.T) {
	manifests := []string{"--pod-manifest-path", "/etc/hawser/manifests"}
	for name, tt := range map[string]struct {
		args []string
		err  string // in the error; empty means none
	}{
		"static pods":         {manifests, ""},
		"nothing to run":      {nil, "--server is missing"},
		"another's kubelet":   {append(manifests, "--kubelet", "none"), "--server is missing"},
		"a token":             {append(manifests, "--token-file", "/x/token"), "--server is missing"},
		"a hash":              {append(manifests, "--discovery-token-ca-cert-hash", "sha256:"+strings.Repeat("00", 32)), "--server is missing"},
		"a certificate":       {append(manifests, "--client-certificate", "/x/c", "--client-key", "/x/c", "--certificate-authority", "/x/ca"), "--server is missing"},
		"the API server port": {append(manifests, "--apiserver-listen", "127.0.0.1:6443"), "--apiserver-listen needs --server"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parseBare(t, tt.args...)
			clitest.Refused(t, err, tt.err)
			if err == nil && !o.standalone {
				t.Error("it is not standalone")
			}
		})
	}
}

// A machine that has joined does not leave its cluster because a flag is missing.
func TestStandaloneIsNotJoined(t *testing.T) {
	o, err := parseBare(t, "--pod-manifest-path", "/etc/hawser/manifests")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(o.dataDir, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.dataDir, "pki", "kubelet-client-current.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Refused(t, run(t.Context(), o, slog.New(slog.DiscardHandler)), "--server is missing: the machine has joined a cluster")
}

// A kubeconfig takes the place of server and token.
func TestKubeconfigOptions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	authorities, err := pki.Ensure(pki.Config{Dir: dir, Names: []string{"hub.example"}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "admin.kubeconfig")
	if err := authorities.WriteKubeconfig(file, "https://hub.example:7443", pki.Admin); err != nil {
		t.Fatal(err)
	}
	files := []string{"--client-certificate", "/x/client.pem", "--client-key", "/x/client.pem", "--certificate-authority", "/x/ca.crt"}
	for name, tt := range map[string]struct {
		args []string
		addr string // of the server
		name string // of the API server
		err  string // in the error; empty means none
	}{
		"alone":          {nil, "hub.example:7443", "hub.example", ""},
		"another server": {[]string{"--server", "https://hub-2.example"}, "hub-2.example:6443", "hub.example", ""},
		"another name":   {[]string{"--apiserver-name", "kubernetes"}, "hub.example:7443", "kubernetes", ""},
		"a token":        {[]string{"--token", "abcdef.0123456789abcdef"}, "", "", "--token has no effect with --kubeconfig"},
		"a token file":   {[]string{"--token-file", "/x/token"}, "", "", "--token-file has no effect with --kubeconfig"},
		"files":          {files, "", "", "--kubeconfig and --client-certificate: give one of them"},
		"no file":        {[]string{"--kubeconfig", "/x/none"}, "", "", "--kubeconfig: kubeconfig /x/none: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parseBare(t, append([]string{"--kubeconfig", file}, tt.args...)...)
			clitest.Refused(t, err, tt.err)
			if err == nil && (!slices.Equal(o.addrs, []string{tt.addr}) || o.apiName != tt.name) {
				t.Errorf("servers %v, API server %s", o.addrs, o.apiName)
			}
		})
	}
	o, err := parseBare(t, "--kubeconfig", file, "--node-name", "node-1")
	if err != nil {
		t.Fatal(err)
	}
	clitest.Refused(t, run(t.Context(), o, slog.New(slog.DiscardHandler)), `--kubeconfig: the client certificate is not the node's: `)
}

// Files take the place of a token, all three of them.
func TestGivenIdentity(t *testing.T) {
	all := []string{"--client-certificate", "/x/client.pem", "--client-key", "/x/client.pem", "--certificate-authority", "/x/ca.crt"}
	for name, tt := range map[string]struct {
		args []string
		err  string // in the error; empty means none
	}{
		"files":                  {all, ""},
		"files and a name":       {append(all, "--apiserver-name", "api.internal"), ""},
		"an address for a name":  {append(all, "--apiserver-name", "10.0.0.1"), ""},
		"no name":                {append(all, "--apiserver-name", "api.internal:6443"), "--apiserver-name"},
		"no key":                 {all[:2], "go together"},
		"no authority":           {all[:4], "go together"},
		"an authority alone":     {all[4:], "go together"},
		"a token that is unused": {append(all, "--token-file", "/x/token"), "--token-file has no effect with --client-certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(t, tt.args...)
			if err == nil {
				_, err = joinConfig(o, slog.New(slog.DiscardHandler))
			}
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

// TestShutdownPhases: critical pods have their part of the time, or all of it.
func TestShutdownPhases(t *testing.T) {
	for want, args := range map[string][]string{
		"[]":                         nil,
		"[{0 20s} {2000000000 10s}]": {"--shutdown-grace-period=30s", "--shutdown-grace-period-critical-pods=10s"},
		"[{0 30s} {2000000000 0s}]":  {"--shutdown-grace-period=30s"},
		"[{0 0s} {2000000000 5s}]":   {"--shutdown-grace-period=5s", "--shutdown-grace-period-critical-pods=5s"},
		"[{-7 3m0s} {10 10s}]":       {"--shutdown-grace-period-by-pod-priority=10=10s,-7=180s"},
	} {
		o, err := parse(t, args...)
		if err != nil {
			t.Errorf("%v: %v", args, err)
		} else if got := fmt.Sprint(o.phases); got != want {
			t.Errorf("%v: %s, want %s", args, got, want)
		}
	}
}

// TestShutdownGates: with a gate off the times have no effect.
func TestShutdownGates(t *testing.T) {
	total, priority := "--shutdown-grace-period=30s", "--shutdown-grace-period-by-pod-priority=0=9s"
	for _, tt := range []struct {
		gates, times string
		phases       int
	}{
		{"GracefulNodeShutdown=true", total, 2},
		{"GracefulNodeShutdown=false", total, 0},
		{"GracefulNodeShutdown=false", priority, 0},
		{"GracefulNodeShutdownBasedOnPodPriority=false", total, 2},
		{"GracefulNodeShutdownBasedOnPodPriority=false", priority, 0},
		{"GracefulNodeShutdownBasedOnPodPriority=true,GracefulNodeShutdown=true", priority, 1},
	} {
		o, err := parse(t, "--feature-gates="+tt.gates, tt.times)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.phases) != tt.phases || o.gatedOff != (tt.phases == 0) {
			t.Errorf("%s %s: phases %v, gated off: %v", tt.gates, tt.times, o.phases, o.gatedOff)
		}
	}
}

func TestFlagsAreDescribed(t *testing.T) { clitest.Described(t, newRoot()) }

func TestConfigRoundTrip(t *testing.T) { clitest.RoundTrip(t, new(options).addFlags) }

// TestErrorsNameTheServer: what goes wrong with a request is told of the server that was given, not
// of a port that nobody listens on.
func TestErrorsNameTheServer(t *testing.T) {
	o, err := parseBare(t, "--server", "https://10.77.0.1:8132", "--token", checkedToken, "--discovery-token-ca-cert-hash", "sha256:"+strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	conf := o.apiConfig(
		func() *tls.Config { return &tls.Config{ServerName: "api.internal", MinVersion: tls.VersionTLS13} },
		func(context.Context, string, string) (net.Conn, error) { return nil, errNotJoined })
	if manager, _, _ := strings.Cut(conf.UserAgent, "/"); manager != "kubelet" {
		t.Errorf("the manager of the fields that the agent writes is %q", manager)
	}
	api, conns, err := node.NewAPI(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	if _, err = api.Nodes.Get(t.Context(), "edge-1", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), `"https://10.77.0.1:8132/api/v1/nodes/edge-1`) {
		t.Errorf("got %v", err)
	}
}
