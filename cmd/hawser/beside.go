// hawser server --kubeconfig: the controllers alone, for a cluster whose API server
// is another process's.

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane"
)

const (
	// besidePort is where a controller manager answers, by custom.
	besidePort = 10257
	// signer is the controller that needs the cluster's key.
	signer = "certificatesigningrequest-signing-controller"
	// askPatience is how long the API server may take to show its certificate, and
	// askAgain is the pause before it is asked again.
	askPatience, askAgain = 10 * time.Second, 2 * time.Second
)

// besideOptions are the flags that make sense beside another API server only.
type besideOptions struct {
	kubeconfig              string
	signingCert, signingKey string
	servingCert, servingKey string // of kubelets; none means the same
	withoutSigner           bool   // set by check
	flags                   *pflag.FlagSet
}

// onlyEmbedded are flags of what does not run beside another API server. A value
// that turns it off may be said there as well.
var onlyEmbedded = []string{
	"advertise-address", "connect-port", "connect-uds",
	"etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile",
	"encryption-provider-config", "encryption-provider-config-automatic-reload",
	"audit-policy-file", "audit-log-path", "audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize", "audit-log-format", "audit-log-mode",
	"tracing-config-file", "tunnel-audit-log-path", "tunnel-audit-log-maxage", "tunnel-audit-log-maxbackup", "tunnel-audit-log-maxsize",
	"default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds",
	"service-account-issuer", "api-audiences", "service-account-max-token-expiration", "authentication-config", "requestheader-client-ca-file",
	"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
	"enable-admission-plugins", "disable-admission-plugins",
	"cause-aware-eviction", "site-autonomy-duration", "max-autonomy-duration", "keep-attached-nodes", "tunnel-probe-period",
}

var off = map[string]string{"connect-port": "0", "cause-aware-eviction": "false", "keep-attached-nodes": "false"}

func (o *besideOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "run the controllers alone, for the cluster of this kubeconfig; neither an API server nor the tunnel")
	f.StringVar(&o.signingCert, "cluster-signing-cert-file", "", "with --kubeconfig: authority that signs certificates")
	f.StringVar(&o.signingKey, "cluster-signing-key-file", "", "with --kubeconfig: key of --cluster-signing-cert-file")
	f.StringVar(&o.servingCert, "cluster-signing-kubelet-serving-cert-file", "", "with --kubeconfig: authority that signs kubelets' serving certificates (default --cluster-signing-cert-file)")
	f.StringVar(&o.servingKey, "cluster-signing-kubelet-serving-key-file", "", "with --kubeconfig: key of --cluster-signing-kubelet-serving-cert-file")
	o.flags = f
}

// check refuses what cannot work, naming the flag.
func (o *besideOptions) check(enabled []string) error {
	if (o.signingCert == "") != (o.signingKey == "") {
		return errors.New("--cluster-signing-cert-file and --cluster-signing-key-file go together")
	}
	if (o.servingCert == "") != (o.servingKey == "") {
		return errors.New("--cluster-signing-kubelet-serving-cert-file and --cluster-signing-kubelet-serving-key-file go together")
	}
	if o.servingCert != "" && o.signingCert == "" {
		return errors.New("--cluster-signing-kubelet-serving-cert-file needs --cluster-signing-cert-file, which signs for clients")
	}
	if o.kubeconfig == "" {
		if o.signingCert != "" {
			return errors.New("--cluster-signing-cert-file needs --kubeconfig: the embedded API server has an authority of its own")
		}
		return nil
	}
	for _, name := range onlyEmbedded {
		if f := o.flags.Lookup(name); f.Changed && f.Value.String() != off[name] {
			return fmt.Errorf("--%s does not go with --kubeconfig: the API server is another process's", name)
		}
	}
	o.withoutSigner = o.signingCert == "" && !slices.Contains(enabled, "-"+signer)
	if o.withoutSigner && slices.Contains(enabled, signer) {
		return fmt.Errorf("--controllers %s needs --cluster-signing-cert-file and --cluster-signing-key-file beside another API server", signer)
	}
	_, err := o.certificates(&auth.Files{})
	return err
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

// runBeside runs controllers until ctx is done.
func runBeside(ctx context.Context, o *serverOptions, metrics prometheus.Registerer, log *slog.Logger) error {
	client, err := clientcmd.BuildConfigFromFlags("", o.beside.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	unlock, err := setup.TakeDataDir(o.dataDir, "server.lock")
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	defer unlock()
	files := &auth.Files{Log: log}
	c, err := o.besideConfig(client, log)
	if err != nil {
		return err
	}
	c.Files, c.Metrics, c.Log = files, metrics, log
	controllers, err := controlplane.New(c)
	if err != nil {
		return err
	}
	reviews, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	front, err := newHealth(ctx, o, reviews, controllers.Ready(), log)
	if err != nil {
		return err
	}
	signs, err := o.beside.certificates(files)
	if err != nil {
		return err
	}
	ends := watchEnds(signs, metrics, log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ends.Run(ctx) })
	group.Go(func() error { return front.run(ctx) })
	group.Go(func() error { return files.Run(ctx) })
	group.Go(func() error {
		if err := learnNames(ctx, client, c.ServerNames, log); err != nil {
			return err
		}
		return controllers.Run(ctx)
	})
	group.Go(func() error { return keepBeside(ctx, reviews, log) })
	group.Go(func() error {
		select {
		case <-controllers.Ready():
			log.Info("ready", "address", "https://"+front.listener.Addr().String(), "cluster", client.Host, "version", apiVersion)
		case <-ctx.Done():
		}
		return nil
	})
	return group.Wait()
}

// besideConfig is what the controllers are made from, without what they share with the
// rest of the process.
func (o *serverOptions) besideConfig(client *clientrest.Config, log *slog.Logger) (controlplane.Config, error) {
	c, err := o.controllers.config(o.dataDir)
	if err != nil {
		return c, err
	}
	c.Client, c.SigningCertFile, c.SigningKeyFile = client, o.beside.signingCert, o.beside.signingKey
	c.ServingSigningCertFile, c.ServingSigningKeyFile = o.beside.servingCert, o.beside.servingKey
	if o.beside.withoutSigner && len(c.Enabled) > 0 {
		c.Enabled = append(slices.Clone(c.Enabled), "-"+signer)
		log.Info("no certificates are signed here", "reason", "no --cluster-signing-cert-file")
	}
	c.ServerNames, err = o.namesBeside(client)
	return c, err
}

// namesBeside are the names of the cluster's API server as far as they are known before
// it is asked: where it is reached, and what --tls-san says.
func (o *serverOptions) namesBeside(client *clientrest.Config) (*auth.ServerNames, error) {
	url, _, err := clientrest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return auth.NewServerNames(append([]string{url.Hostname(), client.ServerName}, o.tlsSANs...)...), nil
}

// learnNames adds those in the certificate that the API server shows. Until it does,
// nothing can be asked of it either, and learnNames waits.
func learnNames(ctx context.Context, client *clientrest.Config, names *auth.ServerNames, log *slog.Logger) error {
	transport, err := clientrest.TransportFor(client)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	url, _, err := clientrest.DefaultServerUrlFor(client)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	for try := 1; ; try++ {
		cert, err := shownBy(ctx, transport, url.String())
		if err == nil {
			if cert != nil {
				names.Add(cert.DNSNames...)
				for _, ip := range cert.IPAddresses {
					names.Add(ip.String())
				}
			}
			return nil
		}
		if try == 1 && ctx.Err() == nil {
			log.Warn("the API server does not answer; controllers start when it does", "cluster", client.Host, "error", err)
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// shownBy returns the certificate of a server, whatever it answers; nil if it has none.
func shownBy(ctx context.Context, transport http.RoundTripper, url string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.TLS == nil {
		return nil, nil
	}
	return resp.TLS.PeerCertificates[0], nil
}
