// Egress: how the API server dials what is not itself, by the EgressSelectorConfiguration
// that kube-apiserver takes.

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

// egressOptions is the flag, by kube-apiserver's name.
type egressOptions struct {
	file     string
	selector *egressselector.EgressSelector // set by check; nil means that nothing is selected
}

func (o *egressOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "egress-selector-config-file", "", "EgressSelectorConfiguration (apiserver.k8s.io/v1beta1), read at the start: how nodes, pods and services (cluster), webhooks with a URL (controlplane) and --etcd-servers (etcd) are dialed; what it does not name is dialed as without it, the cluster by the tunnels of this process")
}

// check reads the file, and the certificates that it names.
func (o *egressOptions) check() error {
	if o.file == "" {
		return nil
	}
	contents, err := os.ReadFile(o.file)
	if err == nil {
		o.selector, err = readEgress(o.file)
	}
	if err != nil {
		return fmt.Errorf("--egress-selector-config-file %s: %w", o.file, place.Of(contents, err))
	}
	return nil
}

// readEgress does what the library's options do.
func readEgress(file string) (*egressselector.EgressSelector, error) {
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return nil, err
	}
	if err := egressselector.ValidateEgressSelectorConfiguration(config).ToAggregate(); err != nil {
		return nil, err
	}
	return egressselector.NewEgressSelector(config)
}

// dial is what has been selected for e; nil if nothing has.
func (o *egressOptions) dial(e egressselector.EgressType) dialFunc {
	if o.selector == nil {
		return nil
	}
	dial, _ := o.selector.Lookup(e.AsNetworkContext()) // which never fails
	return dial
}

// cluster is how nodes are dialed: as selected, else by the hub, as otherwise says.
func (o *egressOptions) cluster(otherwise dialFunc) dialFunc {
	if dial := o.dial(egressselector.Cluster); dial != nil {
		return plainAddresses(dial)
	}
	return otherwise
}

// plainAddresses dials IP:PORT for IP%NODE:PORT, which other proxies do not know.
func plainAddresses(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		host, _, _ = strings.Cut(host, "%")
		return dial(ctx, network, net.JoinHostPort(host, port))
	}
}
