// Tests that a server that is refused at its start has made nothing.

package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
)

// TestMakesNothing: each file that a flag names is looked at before anything is made.
func TestMakesNothing(t *testing.T) {
	if _, here := alone(t); !here { // it sets klog's logger
		return
	}
	dir := t.TempDir()
	name := func(name string) string { return filepath.Join(dir, name) }
	kubeconfig, policy, cert, key, broken, revoked := name("kubeconfig"), name("policy"), name("cert"), name("key"), name("broken"), name("revoked")
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey("x", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		cert: string(certPEM), key: string(keyPEM), broken: "a: [1,\n", revoked: "@revoked x\n",
		policy: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	c.Contexts["x"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c"}, "x"
	if err := clientcmd.WriteToFile(*c, kubeconfig); err != nil {
		t.Fatal(err)
	}
	missing, under := name("nowhere/x"), name("broken/x")
	etcd := []string{"--etcd-servers", "https://127.0.0.1:1"}
	signs := []string{"--kubeconfig", kubeconfig, "--cluster-signing-cert-file", cert, "--cluster-signing-key-file", key}
	beside := slices.Clip([]string{"--kubeconfig", kubeconfig})
	rows := map[string]struct {
		with []string // flags that it goes with
		bad  []string // what it may not name
	}{
		"etcd-cafile":                               {etcd, []string{missing}},
		"etcd-certfile":                             {append(etcd, "--etcd-keyfile", key), []string{missing}},
		"etcd-keyfile":                              {append(etcd, "--etcd-certfile", cert), []string{missing}},
		"config":                                    {nil, []string{missing, broken}},
		"encryption-provider-config":                {nil, []string{missing, broken}},
		"audit-policy-file":                         {nil, []string{missing, broken}},
		"audit-log-path":                            {[]string{"--audit-policy-file", policy}, []string{under, dir}},
		"tunnel-audit-log-path":                     {nil, []string{under, dir}},
		"tracing-config-file":                       {nil, []string{missing, broken}},
		"connect-uds":                               {nil, []string{missing, under, broken}},
		"konnectivity-uds":                          {nil, []string{missing, under, broken}},
		"egress-selector-config-file":               {nil, []string{missing, broken}},
		"delete-existing-uds-file":                  {nil, []string{missing}},
		"ssh-keyfile":                               {[]string{"--ssh-user", "u"}, []string{missing, broken}},
		"ssh-known-hosts":                           {[]string{"--ssh-user", "u", "--ssh-keyfile", key}, []string{under, revoked}},
		"authentication-config":                     {nil, []string{missing, broken}},
		"requestheader-client-ca-file":              {[]string{"--requestheader-username-headers", "X-Remote-User"}, []string{missing, broken}},
		"authorization-webhook-config-file":         {[]string{"--authorization-mode", "Node,Webhook"}, []string{missing, broken}},
		"client-ca-file":                            {beside, []string{missing, broken}},
		"agent-ca":                                  {beside, []string{missing, broken}},
		"connect-client-ca-file":                    {beside, []string{missing, broken}},
		"kubelet-certificate-authority":             {nil, []string{missing, broken}},
		"kubelet-client-certificate":                {append(beside, "--kubelet-client-key", key), []string{missing, broken}},
		"kubelet-client-key":                        {append(beside, "--kubelet-client-certificate", cert), []string{missing, broken}},
		"tls-cert-file":                             {append(beside, "--tls-private-key-file", key), []string{missing, broken}},
		"tls-private-key-file":                      {append(beside, "--tls-cert-file", cert), []string{missing, broken}},
		"kubeconfig":                                {nil, []string{missing, broken}},
		"cluster-signing-cert-file":                 {signs, []string{missing, broken}},
		"cluster-signing-key-file":                  {signs, []string{missing, broken}},
		"cluster-signing-kubelet-serving-cert-file": {append(signs, "--cluster-signing-kubelet-serving-key-file", key), []string{missing, broken}},
		"cluster-signing-kubelet-serving-key-file":  {append(signs, "--cluster-signing-kubelet-serving-cert-file", cert), []string{missing, broken}},
	}
	named := regexp.MustCompile(`(file|config|path|uds|known-hosts)$`)
	newServer().Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := rows[f.Name]; !ok && f.Deprecated == "" && f.Value.Type() != "bool" && named.MatchString(f.Name) {
			t.Errorf("no row for --%s", f.Name)
		}
	})
	for flag, row := range rows {
		for _, file := range row.bad {
			t.Run(flag+"="+filepath.Base(file), func(t *testing.T) {
				data := filepath.Join(t.TempDir(), "data")
				err := serve(t, slices.Concat([]string{"--data-dir", data, "--bind-address", "127.0.0.1"}, row.with, []string{"--" + flag + "=" + file})...)
				if err == nil || !strings.Contains(err.Error(), "--"+flag) {
					t.Errorf("got %v, want an error that names --%s", err, flag)
				}
				if _, serr := os.Lstat(data); !os.IsNotExist(serr) {
					t.Errorf("%v, and the data directory is there", err)
				}
			})
		}
	}
}

// serve runs hawser server, which is expected to be refused.
func serve(t *testing.T, args ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := newServer()
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	return cmd.ExecuteContext(ctx)
}
