// The flags of a store that is run elsewhere, and what makes them wrong.

package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/hawser-project/hawser/controlplane/etcd"
)

// storeOptions are the flags, by kube-apiserver's names.
type storeOptions struct {
	servers                   []string
	caFile, certFile, keyFile string
}

func (o *storeOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.servers, "etcd-servers", nil, "URLs of an etcd cluster to use instead of the embedded one")
	f.StringVar(&o.caFile, "etcd-cafile", "", "authority of the certificates of --etcd-servers")
	f.StringVar(&o.certFile, "etcd-certfile", "", "client certificate for --etcd-servers")
	f.StringVar(&o.keyFile, "etcd-keyfile", "", "key of --etcd-certfile")
}

func (o *storeOptions) check() error {
	for _, s := range o.servers {
		u, err := url.Parse(s)
		local := err == nil && strings.HasPrefix(u.Scheme, "unix") && u.Path != "" // such as unix:///run/etcd.sock
		if err != nil || u.Host == "" && !local || !slices.Contains([]string{"http", "https", "unix", "unixs"}, u.Scheme) {
			return fmt.Errorf("--etcd-servers %q is not a URL such as https://10.0.0.1:2379", s)
		}
	}
	if (o.certFile == "") != (o.keyFile == "") {
		return errors.New("--etcd-certfile and --etcd-keyfile go together")
	}
	for flag, file := range map[string]string{"--etcd-cafile": o.caFile, "--etcd-certfile": o.certFile, "--etcd-keyfile": o.keyFile} {
		if file == "" {
			continue
		}
		if len(o.servers) == 0 {
			return fmt.Errorf("%s needs --etcd-servers: the embedded store has keys of its own", flag)
		}
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		_ = f.Close()
	}
	return nil
}

// external is the store elsewhere; it names no servers if there is none.
func (o *storeOptions) external(egress *egressOptions) etcd.External {
	return etcd.External{Servers: o.servers, CAFile: o.caFile, CertFile: o.certFile, KeyFile: o.keyFile, Dial: egress.dial(egressselector.Etcd)}
}

// explain has the error of a store that cannot be used name the flag and the remedy.
func (o *storeOptions) explain(err error) error {
	var e *etcd.DialError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Cause {
	case etcd.Untrusted:
		return fmt.Errorf("--etcd-cafile %q does not vouch for %s (%w): name the authority of etcd's --cert-file, and the members as their certificates do", o.caFile, e.Server, e.Err)
	case etcd.Refused:
		return fmt.Errorf("--etcd-certfile %q is refused by %s (%w): name a client certificate of etcd's --trusted-ca-file", o.certFile, e.Server, e.Err)
	case etcd.NoQuorum:
		return fmt.Errorf("--etcd-servers %s can be reached but do not answer (%w): start more of the members", e.Server, e.Err)
	case etcd.Unreachable:
	}
	return fmt.Errorf("--etcd-servers: none of %s can be reached (%w): start etcd, or name the URLs at which its members take clients", e.Server, e.Err)
}
