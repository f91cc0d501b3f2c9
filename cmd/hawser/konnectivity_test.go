package main

import (
	"strings"
	"testing"
)

func TestFlagsOfKonnectivity(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"no counterpart":     {[]string{"--server-count=1"}, "--server-count of konnectivity-server has no counterpart here, leave it out"},
		"without a value":    {[]string{"--delete-existing-uds-file", "--mode", "grpc"}, "--delete-existing-uds-file of konnectivity-server"},
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
