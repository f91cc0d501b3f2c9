package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/component-helpers/auth/rbac/validation"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/leader"
)

// What is printed is read by the library that kube-apiserver reads it with, strictly.
func TestManifestEgress(t *testing.T) {
	dir := t.TempDir()
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), Names: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args  []string
		proto apiserver.ProtocolType
		want  string // in the error; empty means none
	}{
		"CONNECT, socket":     {[]string{"--uds", "a"}, apiserver.ProtocolHTTPConnect, ""},
		"gRPC, socket":        {[]string{"--protocol", "grpc", "--uds", "/run/a"}, apiserver.ProtocolGRPC, ""},
		"CONNECT, mutual TLS": {[]string{"--transport", "mtls", "--data-dir", dir, "--url", "https://127.0.0.1:1"}, apiserver.ProtocolHTTPConnect, ""},
		"gRPC, mutual TLS":    {[]string{"--transport", "mtls", "--protocol", "grpc"}, "", "--protocol grpc"},
		"no TLS":              {[]string{"--transport", "mtls", "--url", "http://127.0.0.1:8131"}, "", `--url "http://127.0.0.1:8131": want https://HOST:PORT`},
		"no port":             {[]string{"--transport", "mtls", "--url", "https://hub"}, "", `--url "https://hub": want`},
		"a path":              {[]string{"--transport", "mtls", "--url", "https://[::1]:8131/x"}, "", `/x": want`},
		"no URL":              {[]string{"--transport", "mtls", "--url", "hub:8131"}, "", `--url "hub:8131": want`},
		"no socket":           {nil, "", "--uds is required"},
		"transport":           {[]string{"--transport", "x"}, "", `--transport "x"`},
		"protocol":            {[]string{"--protocol", "x"}, "", `--protocol "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := newManifest()
			cmd.SetArgs(append([]string{"egress"}, c.args...))
			cmd.SetOut(&out)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			err := cmd.Execute()
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "egress.yaml")
			if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := egressselector.ReadEgressSelectorConfiguration(file)
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if err := egressselector.ValidateEgressSelectorConfiguration(config).ToAggregate(); err != nil {
				t.Error(err)
			}
			if s := config.EgressSelections; len(s) != 1 || s[0].Name != "cluster" || s[0].Connection.ProxyProtocol != c.proto {
				t.Errorf("%s", out.String())
			}
			if tcp := config.EgressSelections[0].Connection.Transport.TCP; tcp != nil && tcp.TLSConfig.ClientKey != keys.Path(pki.ConnectClient, true) {
				t.Errorf("key %s", tcp.TLSConfig.ClientKey)
			}
		})
	}
}

// TestManifestCCM: of the ConfigMaps of its namespace whoever the provider runs as may read
// the one with the inventory, which the pods' configuration names.
func TestManifestCCM(t *testing.T) {
	for _, m := range []ccmManifest{{}, {least: true}, {accounts: true}} {
		var rules []string
		for _, o := range m.roles() {
			var all []rbacv1.PolicyRule
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				all = o.Rules
			case *rbacv1.Role:
				if o.Namespace == metav1.NamespaceSystem {
					all = o.Rules
				}
			}
			for _, r := range all {
				if slices.Contains(r.Resources, "configmaps") || slices.Contains(r.Resources, rbacv1.ResourceAll) {
					rules = append(rules, fmt.Sprintf("%T %v %v", o, r.Verbs, r.ResourceNames))
				}
			}
		}
		if want := []string{"*v1.Role [get list watch] [hawser-machines]"}; !slices.Equal(rules, want) {
			t.Errorf("%+v: %q, want %q", m, rules, want)
		}
		if config := m.pods()[0].(*corev1.ConfigMap); config.Data[ccmConfig] != "configMap: kube-system/hawser-machines\n" {
			t.Errorf("%v", config.Data)
		}
	}
}

// TestManifestCCMRole: the ClusterRole has each rule that Kubernetes documents for a cloud
// controller manager, and covers what is enough here.
func TestManifestCCMRole(t *testing.T) {
	documented := []rbacv1.PolicyRule{ // kubernetes.io, Cloud Controller Manager, Authorization
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "patch", "update", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumes"}, Verbs: []string{"get", "list", "update", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: []string{"create", "get", "list", "watch", "update"}},
	}
	printed := func(m ccmManifest, name string) []rbacv1.PolicyRule {
		t.Helper()
		for _, o := range m.roles() {
			if r, ok := o.(*rbacv1.ClusterRole); ok && r.Name == name {
				return r.Rules
			}
		}
		t.Fatalf("%+v: there is no ClusterRole %s", m, name)
		return nil
	}
	role, least := printed(ccmManifest{}, "cloud-controller-manager"), printed(ccmManifest{least: true}, ccmAccount)
	for what, rules := range map[string][]rbacv1.PolicyRule{"documented": documented, "least": least} {
		if ok, missing := validation.Covers(role, rules); !ok {
			t.Errorf("%s: %v is not granted", what, missing)
		}
	}
	if ok, _ := validation.Covers(least, documented); ok {
		t.Error("the least privilege is the documented one")
	}
	for name := range ccmAccounts() {
		if ok, extra := validation.Covers(least, printed(ccmManifest{accounts: true}, ccmAccount+":"+name)); !ok {
			t.Errorf("%s may do what hawser-ccm itself may not: %v", name, extra)
		}
	}
}

// TestManifestCCMPods: the pods of the DaemonSet run on machines of the control plane, before
// those are initialized, in their network.
func TestManifestCCMPods(t *testing.T) {
	m := ccmManifest{image: "image", daemonSet: true, accounts: true}
	set, ok := m.pods()[1].(*appsv1.DaemonSet)
	if !ok {
		t.Fatalf("%T", m.pods()[1])
	}
	spec := set.Spec.Template.Spec
	for _, key := range []string{"node.cloudprovider.kubernetes.io/uninitialized", "node-role.kubernetes.io/control-plane"} {
		taint := corev1.Taint{Key: key, Value: "true", Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taint, false) }) {
			t.Errorf("%s is not tolerated", key)
		}
	}
	if _, selected := spec.NodeSelector["node-role.kubernetes.io/control-plane"]; !spec.HostNetwork || !selected {
		t.Errorf("host network %v, nodes %v", spec.HostNetwork, spec.NodeSelector)
	}
	if !slices.Contains(spec.Containers[0].Command, "--use-service-account-credentials") {
		t.Errorf("%q", spec.Containers[0].Command)
	}
	for want, args := range map[string][]string{
		"--replicas and --daemonset need --image":   {"--daemonset"},
		"--replicas has no effect with --daemonset": {"--image", "i", "--daemonset", "--replicas", "2"},
		"--replicas 0: want 1 to":                   {"--image", "i", "--replicas", "0"},
	} {
		cmd := newManifest()
		cmd.SetArgs(append([]string{"ccm"}, args...))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// TestManifestNames: what no cluster takes is refused.
func TestManifestNames(t *testing.T) {
	const hash = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, tc := range []struct {
		want string // in the error; empty means none
		args []string
	}{
		{`--namespace "A b": a lowercase RFC 1123 label must consist of`, []string{"server", "--image", "x", "--namespace", "A b"}},
		{`--namespace "A b": a lowercase`, []string{"agent", "--image", "x", "--namespace", "A b"}},
		{`--namespace "": a lowercase`, []string{"rbac", "--namespace", ""}},
		{`--image "a b": invalid reference format: want`, []string{"server", "--image", "a b"}},
		{`--image "a b": invalid reference format: want`, []string{"agent", "--image", "a b"}},
		{`--image "a b": invalid reference format: want`, []string{"ccm", "--image", "a b"}},
		{`--replicas 3 has no effect with --static-pod`, []string{"server", "--image", "x", "--static-pod", "--replicas", "3"}},
		{"", []string{"server", "--image", "x", "--static-pod", "--replicas", "1"}},
		{"", []string{"server", "--image", "localhost/hawser:v1", "--replicas", "3"}},
		{"", []string{"agent", "--image", "r.example:5000/a/b@" + hash, "--server", "https://hub:1", "--discovery-token-ca-cert-hash", hash}},
	} {
		cmd := newManifest()
		cmd.SetArgs(tc.args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
}

// TestManifestRBAC: a hub may read Services and their endpoints only if it is to listen for
// them, write the Lease of an election only if it is to take part in one, and what a
// controller needs only if it is to run it.
func TestManifestRBAC(t *testing.T) {
	const lifecycleLease, approves, cleaner, node = "- hawser-node-lifecycle\n", "- kubernetes.io/kubelet-serving\n", "name: system:controller:token-cleaner\n", "  name: system:controller:node-controller\n"
	all := []string{"endpointslices", "- services\n", "- " + besideLease + "\n", lifecycleLease, approves, cleaner, node}
	for _, tc := range []struct {
		args, granted []string
	}{
		{nil, nil},
		{[]string{"--load-balancers"}, []string{"endpointslices", "- services\n"}},
		{[]string{"--controllers=nodelifecycle,node-ipam-controller"}, []string{"- " + besideLease + "\n", lifecycleLease, node}},
		{[]string{"--controllers=csrapproving,tokencleaner"}, []string{"- " + besideLease + "\n", approves, cleaner}},
	} {
		var out bytes.Buffer
		cmd := newManifest()
		cmd.SetArgs(append([]string{"rbac"}, tc.args...))
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		for _, text := range all {
			want := 0
			if slices.Contains(tc.granted, text) {
				want = 1
			}
			if got := strings.Count(out.String(), text); got != want {
				t.Errorf("%q: %s is there %d times, want %d\n%s", tc.args, text, got, want, out.String())
			}
		}
	}
}

// TestAgentsFollowAuthorities: nodes may read the ConfigMaps by which agents follow the
// authorities of hubs, and of the cluster's server and clients.
func TestAgentsFollowAuthorities(t *testing.T) {
	may := map[string]bool{}
	for _, o := range rbacObjects(hubSystem, permits()) {
		switch o := o.(type) {
		case *rbacv1.Role:
			for _, r := range o.Rules {
				for _, name := range r.ResourceNames {
					may[o.Namespace+" "+o.Name+" "+strings.Join(r.Verbs, ",")+" "+name] = true
				}
			}
		case *rbacv1.RoleBinding:
			if o.Subjects[0].Kind == rbacv1.GroupKind {
				may[o.Namespace+" "+o.RoleRef.Name+" to "+o.Subjects[0].Name] = true
			}
		}
	}
	for _, want := range []string{
		"kube-public hawser-tunnel-readers get hawser-tunnel", "kube-public hawser-tunnel-readers to system:nodes",
		"kube-system hawser-tunnel-readers get kube-root-ca.crt", "kube-system hawser-tunnel-readers get extension-apiserver-authentication",
		"kube-system hawser-tunnel-readers to system:nodes",
	} {
		if !may[want] {
			t.Errorf("%s is not there; there are %v", want, may)
		}
	}
}

// TestLeaseBeside: kube-controller-manager holds its Lease all the time, so that a hub that
// stood for that one would never lead.
func TestLeaseBeside(t *testing.T) {
	for want, args := range map[string][]string{
		besideLease:        {"--kubeconfig", "x"},
		"x":                {"--kubeconfig", "x", "--leader-elect-resource-name", "x"},
		leader.DefaultName: nil,
	} {
		o, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if o.controllers.leader.Name != want {
			t.Errorf("%v: Lease %s, want %s", args, o.controllers.leader.Name, want)
		}
	}
}
