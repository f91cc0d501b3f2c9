// Who the node is: by a join token, or by files that another program renews.

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/bootstrap"
)

// identityOptions are the flags about the node's certificate and the API server's.
type identityOptions struct {
	apiName    string
	kubeconfig string
	files      bootstrap.GivenFiles

	// set by check
	from             bootstrap.GivenFiles // what has the certificate; empty without such files
	kubeconfigServer string               // empty without --kubeconfig
}

func (o *identityOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.apiName, "apiserver-name", "", "name that the API server's certificate carries, where the server is beside a cluster that was there before (default what --kubeconfig says, or what that cluster publishes in ConfigMap kube-public/cluster-info)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig with the node's client certificate, as a kubelet has one, in place of a join token; without --server its server is used; it and the files that it names are followed when they are replaced")
	f.StringVar(&o.files.Cert, "client-certificate", "", "file with the node's client certificate, in place of a join token; followed when it is replaced, as by a kubelet")
	f.StringVar(&o.files.Key, "client-key", "", "file with the key of --client-certificate; may be the same file")
	f.StringVar(&o.files.CA, "certificate-authority", "", "file with the authorities by which the API server is known; goes with --client-certificate")
}

// given says whether the certificate is from files.
func (o *identityOptions) given() bool { return o.from != bootstrap.GivenFiles{} }

// givenBy are the flags that name the files.
func (o *identityOptions) givenBy() string {
	if o.kubeconfig != "" {
		return "--kubeconfig"
	}
	return "--client-certificate, --client-key and --certificate-authority"
}

// shared matches the directories that are no program's own: the root directory, and those
// that the Filesystem Hierarchy Standard names. Pods have to see them.
var shared = regexp.MustCompile(`^/(|bin|boot|dev(/shm)?|etc|etc/(pki|ssl)(/certs)?|home|lib\w*|media|mnt|opt|proc|root|run(/lock)?|sbin|srv|sys|tmp|` +
	`usr|usr/local|usr/(local/)?(bin|etc|games|include|lib\w*|sbin|share|src)|var|var/(cache|crash|lib|local|lock|log|mail|opt|run|spool|tmp))$`)

// keyFile is the file with the node's key; empty without one.
func (o *identityOptions) keyFile() string { return cmp.Or(o.from.Key, o.from.Kubeconfig) }

// certificateFile is the file with the node's certificate; empty without one.
func (o *identityOptions) certificateFile() string { return cmp.Or(o.from.Cert, o.from.Kubeconfig) }

// secretFiles returns a file as it is named and as symbolic links lead to it. There is no
// secret in a device, say.
func secretFiles(file string) []string {
	info, err := os.Stat(file)
	if file == "" || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	files := []string{file}
	if resolved, err := filepath.EvalSymlinks(file); err == nil {
		files = append(files, resolved)
	}
	for i, file := range files {
		if absolute, err := filepath.Abs(file); err == nil {
			files[i] = absolute
		}
	}
	return files
}

// hiddenSecrets are what containers do not see of the node's key and join token: the directory,
// in which a new one may appear, or of a token in a directory that pods have to see the file. A
// container that runs while such a token is replaced sees the next one.
func (o *options) hiddenSecrets() []string {
	var hidden []string
	for _, file := range secretFiles(o.keyFile()) {
		hidden = append(hidden, filepath.Dir(file))
	}
	for _, file := range secretFiles(o.tokenFile) {
		if dir := filepath.Dir(file); !shared.MatchString(dir) {
			file = dir
		}
		hidden = append(hidden, file)
	}
	return hidden
}

// checkKey refuses a key in a directory that pods have to see: they would see the next key.
func (o *identityOptions) checkKey() error {
	for _, file := range secretFiles(o.keyFile()) {
		if dir := filepath.Dir(file); shared.MatchString(dir) {
			return fmt.Errorf("%s: pods see %s, and would see what replaces the key %s: move it to a directory of its own, such as %s",
				o.givenBy(), dir, o.keyFile(), filepath.Join(dir, "hawser"))
		}
	}
	return nil
}

// check refuses what cannot work, naming the flag.
func (o *identityOptions) check(f *pflag.FlagSet) error {
	if _, err := netip.ParseAddr(o.apiName); o.apiName != "" && err != nil && auth.CheckNodeName(o.apiName) != nil {
		return fmt.Errorf("--apiserver-name %q: want a DNS name or an address, without a port", o.apiName)
	}
	set := 0
	for _, file := range []string{o.files.Cert, o.files.Key, o.files.CA} {
		if file != "" {
			set++
		}
	}
	if set != 0 && set != 3 {
		return errors.New("--client-certificate, --client-key and --certificate-authority go together")
	}
	for _, name := range []string{"token", "token-file", "discovery-token-ca-cert-hash"} {
		if (set != 0 || o.kubeconfig != "") && f.Changed(name) {
			return fmt.Errorf("--%s has no effect with %s: nothing is asked for", name, o.givenBy())
		}
	}
	if o.kubeconfig == "" {
		o.from = o.files
		return nil
	}
	if set != 0 {
		return errors.New("--kubeconfig and --client-certificate: give one of them")
	}
	k, err := bootstrap.ReadKubeconfig(o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	o.from, o.kubeconfigServer, o.apiName = k.Files, k.Server, cmp.Or(o.apiName, k.APIServerName)
	return nil
}

// tunnelAsk is how much of an attempt to connect may go into asking.
const tunnelAsk = 10 * time.Second

// tunnelTLS is how the server's end of the tunnel is believed. The cluster is asked
// whether hubs have authorities of their own when that is not known, and when what is
// known did not do for one of them: once before each attempt to connect.
func (p *parts) tunnelTLS(ctx context.Context, id *bootstrap.Identity, log *slog.Logger) *tls.Config {
	if !id.TunnelKnown() || p.link.Untrusted() {
		ask, cancel := context.WithTimeout(ctx, tunnelAsk)
		defer cancel()
		if err := id.RefreshTunnel(ask); err != nil {
			log.Debug("going on with the authorities known", "err", err)
		}
	}
	return id.TunnelTLS()
}

// tokenPatience is how long an API server that has just started may take to read its tokens.
const tokenPatience = 5 * time.Second

// joinConfig is what join needs. There is so little to say that its packets can be
// small from the first.
func joinConfig(o *options, log *slog.Logger) (bootstrap.Config, error) {
	c := bootstrap.Config{
		NodeName: o.nodeName, Dir: o.dataDir, TokenFile: o.tokenFile, APIServerName: o.apiName, Log: log,
		Dial: agent.NewDial(proxyFor, true), TokenPatience: tokenPatience,
	}
	for _, addr := range o.addrs {
		c.Servers = append(c.Servers, "https://"+addr)
	}
	if o.given() || o.standalone {
		return c, nil // no token is needed, whatever the environment has
	}
	var err error
	if o.token != "" {
		if c.Token, err = bootstrap.ParseToken(o.token); err != nil {
			return c, fmt.Errorf("%s: %w", o.tokenFrom, err)
		}
	}
	c.Pins = o.pins
	if info, err := os.Stat(o.tokenFile); err == nil && info.Mode().Perm()&0o044 != 0 {
		log.Warn("the join token can be read by other users: chmod 600", "file", o.tokenFile)
	}
	return c, c.Check()
}

// join returns the node's identity, asking for one with the token if there is
// none yet.
func join(ctx context.Context, o *options, c bootstrap.Config) (*bootstrap.Identity, error) {
	if o.given() {
		id, err := bootstrap.Given(c, o.from)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.givenBy(), err)
		}
		return id, nil
	}
	id, err := bootstrap.Join(ctx, c)
	var pin *bootstrap.PinError
	switch {
	case errors.As(err, &pin):
		return nil, fmt.Errorf("--discovery-token-ca-cert-hash: %w", err)
	case errors.Is(err, bootstrap.ErrTokenRejected):
		return nil, fmt.Errorf("%s: %w", o.tokenFrom, err)
	}
	return id, err
}
