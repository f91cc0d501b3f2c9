// Command hawser-ccm is the cloud-controller-manager: Kubernetes' own controllers of nodes,
// routes and Services, with the provider "hawser". Its flags are Kubernetes'.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	baseconfig "k8s.io/component-base/config"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"  // requests and the election, by their usual names
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // depth and latency of the controllers' queues, likewise
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/cloud"
)

func main() {
	setup.NoCores()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cloud.Register(log)
	command, err := newCommand()
	if err != nil {
		log.Error("the flags cannot be made", "err", err)
		os.Exit(1)
	}
	os.Exit(cli.Run(command))
}

// newCommand is the library's command, which ends the process by itself.
func newCommand() (*cobra.Command, error) {
	o, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		return nil, err
	}
	o.KubeCloudShared.CloudProvider.Name = cloud.Name
	elect(&o.Generic.LeaderElection)
	var config setup.Config
	var own cliflag.NamedFlagSets
	config.Add(own.FlagSet("configuration file"))
	command := app.NewCloudControllerManagerCommand(o, provider, app.DefaultInitFuncConstructors, names.CCMControllerAliases(), own, wait.NeverStop)
	config.Use(command, func() error {
		return o.Validate(app.ControllerNames(app.DefaultInitFuncConstructors), app.ControllersDisabledByDefault.List(), names.CCMControllerAliases(), app.AllWebhooks, app.DisabledByDefaultWebhooks)
	})
	command.Use = "hawser-ccm" // the library's name is that of Kubernetes' own program
	return command, nil
}

// elect sets the defaults of the election: another replica leads within 15 s of the leader's
// end. A replica looks at the lease each RetryPeriod, or up to 1+leaderelection.JitterFactor
// times as late. It may look so late at the last renewal, and again when the lease is over. With
// the library's defaults (15 s, 10 s, 2 s) that makes 24 s.
func elect(l *baseconfig.LeaderElectionConfiguration) {
	l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration = 10*time.Second, 7*time.Second, time.Second
}

// provider is that of --cloud-provider.
func provider(c *config.CompletedConfig) cloudprovider.Interface {
	shared := &c.ComponentConfig.KubeCloudShared
	flags := shared.CloudProvider
	p, err := cloudprovider.InitCloudProvider(flags.Name, flags.CloudConfigFile)
	switch {
	case err != nil:
		fail("--cloud-provider %s, --cloud-config %q: %v", flags.Name, flags.CloudConfigFile, err)
	case p == nil:
		fail("--cloud-provider %q: name a provider, such as %s", flags.Name, cloud.Name)
	}
	pods, err := clusterCIDRs(shared.ClusterCIDR)
	if err != nil {
		fail("--cluster-cidr %q: %v", shared.ClusterCIDR, err)
	}
	if len(pods) == 0 {
		shared.ConfigureCloudRoutes = false // the library would not start
	}
	if shared.AllocateNodeCIDRs {
		klog.Warning("--allocate-node-cidrs: nothing here does; give it to hawser server, or to kube-controller-manager, and to one alone")
	}
	if own, ok := p.(*cloud.Cloud); ok {
		own.SetClusterCIDRs(pods)
	}
	return p
}

// clusterCIDRs reads a flag.
func clusterCIDRs(text string) ([]netip.Prefix, error) {
	if text == "" {
		return nil, nil
	}
	var out []netip.Prefix
	for s := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, errors.New("want a range, such as 10.244.0.0/16, or one of each family")
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// fail says one line and ends the process, as the library does.
func fail(format string, args ...any) {
	klog.Flush()
	_, _ = os.Stderr.WriteString("hawser-ccm: " + fmt.Sprintf(format, args...) + "\n")
	os.Exit(1)
}
