// The flags of hawser server --kubeconfig: the hub beside a cluster whose API server is
// another process's.

package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane"
)

const (
	// besidePort is where agents come: that of the API server has somebody.
	besidePort = 8132
	// healthPort is where health, metrics and the status page are.
	healthPort = 8134
	// lifecycle is the controller that evicts, and that evidence is for.
	lifecycle = "node-lifecycle-controller"
	// besideLease is the Lease of the controllers' election: that of kube-controller-manager,
	// who leads all the time, is its own.
	besideLease = "hawser-controller-manager"
	// signer is the controller that needs the cluster's key.
	signer = "certificatesigningrequest-signing-controller"
)

// besideControllers are those that run unless others are named: what only who has the
// tunnels can say. A cluster has a kube-controller-manager for the rest.
var besideControllers = []string{"hawser-tunnel-health-controller", loadBalancerController}

// besideOptions are the flags that make sense beside another API server only.
type besideOptions struct {
	kubeconfig              string
	healthPort              int
	clientCA, agentCA       string
	connectCA               string // of clients of the front ends; none means the hub's own
	cert, key               string // of the tunnel; none means an authority of our own
	kubeletCA               string
	kubeletCert, kubeletKey string
	signingCert, signingKey string
	servingCert, servingKey string // of kubelets; none means the same
	flags                   *pflag.FlagSet
	told                    *atomic.Bool // what is the matter with the API server; nil if nobody asks
}

// onlyBeside are flags that say nothing without --kubeconfig.
var onlyBeside = []string{
	"health-port", "client-ca-file", "agent-ca", "connect-client-ca-file", "tls-cert-file", "tls-private-key-file",
	"kubelet-client-certificate", "kubelet-client-key",
}

// onlyEmbedded are flags of what does not run beside another API server.
var onlyEmbedded = []string{
	"egress-selector-config-file", "shutdown-send-retry-after",
	"etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile",
	"encryption-provider-config", "encryption-provider-config-automatic-reload",
	"audit-policy-file", "audit-log-path", "audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize", "audit-log-format", "audit-log-mode",
	"default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds",
	"service-account-issuer", "api-audiences", "service-account-max-token-expiration", "authentication-config", "requestheader-client-ca-file",
	"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
	"enable-admission-plugins", "disable-admission-plugins", "feature-gates",
}

// onlyLifecycle are flags of what is asked before the node lifecycle controller evicts.
var onlyLifecycle = []string{"cause-aware-eviction", "site-autonomy-duration", "max-autonomy-duration", "keep-attached-nodes"}

func (o *besideOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "run the hub beside the cluster of this kubeconfig: no API server of its own, and of the controllers only "+strings.Join(besideControllers, ", ")+" unless --controllers names others; what is not the tunnel's on --secure-port is handed on to that cluster's API server")
	f.IntVar(&o.healthPort, "health-port", healthPort, "with --kubeconfig: port of /healthz, /readyz, /metrics and the status page (HTTPS); metrics and page are for those whom the cluster allows to read them")
	f.StringVar(&o.clientCA, "client-ca-file", "", "with --kubeconfig: authorities of the nodes' certificates (default client-ca-file of ConfigMap "+clientsConfigMap+", which is followed)")
	f.StringVar(&o.agentCA, "agent-ca", "", "with --kubeconfig: an authority of agents' certificates in place of the cluster's, none of which counts then")
	f.StringVar(&o.connectCA, "connect-client-ca-file", "", "with --kubeconfig: authorities of the front ends' clients, in place of the hub's own, so that one certificate is good for several hubs; its subject is that of DATA-DIR/pki/"+pki.ConnectClient+".crt")
	f.StringVar(&o.cert, "tls-cert-file", "", "with --kubeconfig: serving certificate of the tunnel, of an authority that agents believe, such as the cluster's (default one of an authority of its own in --data-dir, published in ConfigMap "+hubConfigMap+")")
	f.StringVar(&o.key, "tls-private-key-file", "", "with --kubeconfig: key of --tls-cert-file")
	f.StringVar(&o.kubeletCA, "kubelet-certificate-authority", "", "authority of the serving certificates of kubelets (hawser-agent --kubelet) that have them from elsewhere, believed beside the cluster's; with --kubeconfig: for the health probes alone (default there they are not verified, and told nothing)")
	f.StringVar(&o.kubeletCert, "kubelet-client-certificate", "", "with --kubeconfig: client certificate for the health probes (default none: a kubelet that answers 401 or 403 is there)")
	f.StringVar(&o.kubeletKey, "kubelet-client-key", "", "with --kubeconfig: key of --kubelet-client-certificate")
	f.StringVar(&o.signingCert, "cluster-signing-cert-file", "", "with --kubeconfig: authority that signs certificates")
	f.StringVar(&o.signingKey, "cluster-signing-key-file", "", "with --kubeconfig: key of --cluster-signing-cert-file")
	f.StringVar(&o.servingCert, "cluster-signing-kubelet-serving-cert-file", "", "with --kubeconfig: authority that signs kubelets' serving certificates (default --cluster-signing-cert-file)")
	f.StringVar(&o.servingKey, "cluster-signing-kubelet-serving-key-file", "", "with --kubeconfig: key of --cluster-signing-kubelet-serving-cert-file")
}

// adjust gives defaults that are others beside another API server.
func (o *serverOptions) adjust() {
	if o.beside.kubeconfig == "" {
		return
	}
	if !o.beside.flags.Changed("secure-port") {
		o.securePort = besidePort
	}
	if !o.beside.flags.Changed("leader-elect-resource-name") {
		o.controllers.leader.Name = besideLease
	}
	if !o.beside.flags.Changed("controllers") {
		o.controllers.Enabled = besideControllers
	}
}

// checkPorts refuses those that cannot be had at once.
func (o *serverOptions) checkPorts() error {
	for flag, p := range map[string]int{"--secure-port": o.securePort, "--health-port": o.beside.healthPort} {
		if p < 1 || p > 65535 {
			return fmt.Errorf("%s %d: want 1 to 65535", flag, p)
		}
	}
	taken := map[int]string{o.securePort: "--secure-port"}
	if p := o.beside.healthPort; o.beside.kubeconfig != "" {
		if taken[p] != "" {
			return fmt.Errorf("--health-port and --secure-port are both %d: they need a port each", p)
		}
		taken[p] = "--health-port"
	}
	return o.fronts.check(taken)
}

// check refuses what cannot work, naming the flag.
func (o *besideOptions) check(enabled []string) error {
	for _, p := range []struct{ cert, key, certFlag, keyFlag string }{
		{o.signingCert, o.signingKey, "cluster-signing-cert-file", "cluster-signing-key-file"},
		{o.servingCert, o.servingKey, "cluster-signing-kubelet-serving-cert-file", "cluster-signing-kubelet-serving-key-file"},
		{o.cert, o.key, "tls-cert-file", "tls-private-key-file"},
		{o.kubeletCert, o.kubeletKey, "kubelet-client-certificate", "kubelet-client-key"},
	} {
		if (p.cert == "") != (p.key == "") {
			return fmt.Errorf("--%s and --%s go together", p.certFlag, p.keyFlag)
		}
	}
	if o.servingCert != "" && o.signingCert == "" {
		return errors.New("--cluster-signing-kubelet-serving-cert-file needs --cluster-signing-cert-file, which signs for clients")
	}
	if o.kubeconfig == "" {
		if o.signingCert != "" {
			return errors.New("--cluster-signing-cert-file needs --kubeconfig: the embedded API server has an authority of its own")
		}
		for _, name := range onlyBeside {
			if o.flags.Changed(name) {
				return fmt.Errorf("--%s needs --kubeconfig: it is for a hub beside another API server", name)
			}
		}
		return checkAuthorities(new(auth.Files), map[string]string{"kubelet-certificate-authority": o.kubeletCA})
	}
	for _, name := range onlyEmbedded {
		if o.flags.Changed(name) {
			return fmt.Errorf("--%s does not go with --kubeconfig: the API server is another process's", name)
		}
	}
	return o.checkHub(enabled)
}

// checkHub is check beside another API server.
func (o *besideOptions) checkHub(enabled []string) error {
	for _, name := range onlyLifecycle {
		if f := o.flags.Lookup(name); f.Changed && f.Value.String() != "false" && !controlplane.Selected(enabled, lifecycle) {
			return fmt.Errorf("--%s needs --controllers %s: beside another API server that does not run unless it is asked for", name, lifecycle)
		}
	}
	if o.signingCert == "" && slices.Contains(enabled, signer) {
		return fmt.Errorf("--controllers %s needs --cluster-signing-cert-file and --cluster-signing-key-file beside another API server", signer)
	}
	if o.clientCA != "" && o.agentCA != "" {
		return errors.New("--client-ca-file and --agent-ca: agents have certificates of one of them")
	}
	var files auth.Files
	err := checkAuthorities(&files, map[string]string{
		"client-ca-file": o.clientCA, "agent-ca": o.agentCA, "connect-client-ca-file": o.connectCA, "kubelet-certificate-authority": o.kubeletCA,
	})
	if err != nil {
		return err
	}
	for flags, p := range map[string][2]string{
		"--tls-cert-file and --tls-private-key-file":            {o.cert, o.key},
		"--kubelet-client-certificate and --kubelet-client-key": {o.kubeletCert, o.kubeletKey},
	} {
		if p[0] == "" {
			continue
		}
		if _, err = files.KeyPair(p[0], p[1]); err != nil {
			return fmt.Errorf("%s: %w", flags, err)
		}
	}
	_, err = o.certificates(&files)
	return err
}

// checkAuthorities reads files of authorities, by flag; empty ones are not given.
func checkAuthorities(files *auth.Files, given map[string]string) error {
	for flag, file := range given {
		if file == "" {
			continue
		}
		if _, err := files.Bundle(file); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// client reads the kubeconfig.
func (o *besideOptions) client() (*clientrest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	url, _, err := clientrest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if url.Scheme != "https" {
		return nil, fmt.Errorf("--kubeconfig: server %s: want https://, as whoever reaches --secure-port is handed on to it", c.Host)
	}
	if strings.Trim(url.Path, "/") != "" {
		return nil, fmt.Errorf("--kubeconfig: server %s: its URL can have no path, as agents reach it through the hub as bytes: name the API server itself, not a proxy before it", c.Host)
	}
	if c.Proxy != nil {
		return nil, errors.New("--kubeconfig: proxy-url: agents reach the API server through the hub, which does not use a proxy for them: run the hub where it reaches the API server, and remove proxy-url")
	}
	if c.QPS == 0 {
		c.QPS, c.Burst = controlplane.DefaultQPS, controlplane.DefaultBurst
	}
	return c, nil
}

// tellOpen warns of a kubeconfig that others may read, if what it says is secret and not where
// that is.
func (o *besideOptions) tellOpen(c *clientrest.Config, log *slog.Logger) {
	secret := len(c.KeyData) > 0 || c.Password != "" || c.BearerToken != "" && c.BearerTokenFile == ""
	if info, err := os.Stat(o.kubeconfig); err == nil && secret && info.Mode().Perm()&0o044 != 0 {
		log.Warn("the kubeconfig can be read by other users: chmod 600", "file", o.kubeconfig)
	}
}

// certificates are the authorities that sign, by the beginning of their flags' names.
func (o *besideOptions) certificates(files *auth.Files) ([]auth.Expiring, error) {
	var all []auth.Expiring
	for _, p := range []struct{ name, cert, key string }{
		{"cluster-signing", o.signingCert, o.signingKey}, {"cluster-signing-kubelet-serving", o.servingCert, o.servingKey},
	} {
		if p.cert == "" {
			continue
		}
		e, err := expiringPair(files, p.name, p.cert, p.key)
		if err != nil {
			return nil, fmt.Errorf("--%s-cert-file and --%s-key-file: %w", p.name, p.name, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// given are further certificates that the hub was given, by the names of their flags.
func (o *besideOptions) given(files *auth.Files, client *clientrest.Config) ([]auth.Expiring, error) {
	var all []auth.Expiring
	if o.kubeletCert != "" {
		e, err := expiringPair(files, "kubelet-client-certificate", o.kubeletCert, o.kubeletKey)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	for name, file := range map[string]string{"kubelet-certificate-authority": o.kubeletCA, "agent-ca": o.agentCA, "client-ca-file": o.clientCA, "connect-client-ca-file": o.connectCA} {
		if file == "" {
			continue
		}
		e, err := expiringAuthority(files, name, file)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	const name = "kubeconfig"
	switch {
	case len(client.CertData) > 0:
		list, err := auth.ParseCertificates(client.CertData)
		if err != nil {
			return nil, fmt.Errorf("--%s: its client certificate: %w", name, err)
		}
		all = append(all, auth.Expiring{Name: name, Now: func() *x509.Certificate { return list[0] }})
	case client.CertFile != "":
		list, err := auth.Follow(files, "client certificate of the kubeconfig", func(contents [][]byte) ([]*x509.Certificate, error) {
			return auth.ParseCertificates(contents[0])
		}, client.CertFile)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		all = append(all, auth.Expiring{Name: name, Now: func() *x509.Certificate { return list.Get()[0] }})
	}
	return all, nil
}
