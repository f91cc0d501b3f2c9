package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// flagsOfKonnectivity are all that konnectivity-server has of its own. Source:
// cmd/server/app/options/options.go of kubernetes-sigs/apiserver-network-proxy.
const flagsOfKonnectivity = `
server-cert server-key server-ca-cert cluster-cert cluster-key cluster-ca-cert mode uds-name delete-existing-uds-file
server-port server-bind-address agent-port agent-bind-address admin-port admin-bind-address health-port
health-bind-address keepalive-time frontend-keepalive-time enable-profiling enable-contention-profiling server-id
server-count agent-namespace agent-service-account kubeconfig kubeconfig-qps kubeconfig-burst kube-api-content-type
authentication-audience proxy-strategies cipher-suites tls-min-version xfr-channel-size frontend-write-channel-size
enable-lease-controller lease-namespace lease-label graceful-shutdown-timeout backend-dial-timeout warn-on-channel-limit`

// TestAllFlagsOfKonnectivity: each is known, also those of its log, of which it is said that
// they do nothing.
func TestAllFlagsOfKonnectivity(t *testing.T) {
	known := newServer().Flags()
	for _, name := range strings.Fields(flagsOfKonnectivity) {
		if known.Lookup(name) == nil {
			t.Errorf("--%s is not known", name)
		}
	}
	var ofLog flag.FlagSet
	klog.InitFlags(&ofLog)
	ofLog.VisitAll(func(f *flag.Flag) {
		name := strings.ReplaceAll(f.Name, "_", "-") // as konnectivity-server has them
		if known.Lookup(name) == nil {
			t.Errorf("--%s of the log is not known", name)
		}
	})
	cmd := newServer()
	var said bytes.Buffer
	cmd.Flags().SetOutput(&said)
	if err := cmd.ParseFlags([]string{"--logtostderr=true"}); err != nil || !strings.Contains(said.String(), "--logtostderr") || !strings.Contains(said.String(), "no counterpart") {
		t.Errorf("%v, %q", err, said.String())
	}
}

func TestFlagsOfKonnectivity(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"no counterpart":  {[]string{"--server-count=1"}, "--server-count of konnectivity-server has no counterpart here, leave it out"},
		"without a value": {[]string{"--enable-profiling", "--mode", "grpc"}, "--enable-profiling of konnectivity-server"},
		"what is so": {[]string{
			"--delete-existing-uds-file", "--enable-profiling=false", "--enable-contention-profiling=false", "--proxy-strategies=destHost",
			"--warn-on-channel-limit", "--tls-min-version=VersionTLS13", "--enable-lease-controller=false",
		}, ""},
		"what is not so":     {[]string{"--proxy-strategies=destHost,default"}, "--proxy-strategies of konnectivity-server"},
		"its log":            {[]string{"--logtostderr=true", "--log-file=/var/log/konnectivity-server.log", "--log-file-max-size=0", "--alsologtostderr", "-v", "4", "--vmodule=server=5"}, ""},
		"both, the same":     {[]string{"--server-port", "7000", "--konnectivity-port", "7000"}, ""},
		"both, and not":      {[]string{"--server-port", "7000", "--konnectivity-port", "7001"}, "--server-port 7000 and --konnectivity-port 7001"},
		"mode":               {[]string{"--mode", "x"}, `--mode "x": want grpc or http-connect`},
		"no number":          {[]string{"--agent-port", "x"}, "--agent-port: "},
		"two bind addresses": {[]string{"--server-bind-address", "127.0.0.1", "--agent-bind-address", "127.0.0.2"}, "mean the same"},
		"beside":             {[]string{"--kubeconfig", "x", "--uds-name", "/tmp/hawser-test.sock", "--cluster-ca-cert", "ca"}, "--agent-ca: certificate authorities ca"},
		"not beside":         {[]string{"--cluster-ca-cert", "ca"}, "--agent-ca needs --kubeconfig"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tt.args...)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	common := []string{"--server-port", "7000", "--agent-port", "7001", "--uds-name", "/tmp/hawser-test.sock", "--agent-bind-address", "127.0.0.1"}
	for mode, front := range map[string]func(*serverOptions) frontOption{
		"grpc":         func(o *serverOptions) frontOption { return o.fronts.konnectivity },
		"http-connect": func(o *serverOptions) frontOption { return o.fronts.connect },
	} {
		o, err := parse(t, append(common, "--mode", mode)...)
		if err != nil {
			t.Fatal(err)
		}
		if f := front(o); f.port != 7000 || f.uds != "/tmp/hawser-test.sock" || o.securePort != 7001 || o.bindAddress != "127.0.0.1" {
			t.Errorf("%s: %+v, port %d", mode, f, o.securePort)
		}
	}
	for _, a := range aliases {
		if (a.ours == "") == (a.why == "") {
			t.Errorf("--%s has to have a counterpart, or a reason", a.name)
		}
		if a.ours != "" && !strings.Contains(newServer().Long, "--"+a.name) {
			t.Errorf("the help does not name --%s", a.name)
		}
	}
}
