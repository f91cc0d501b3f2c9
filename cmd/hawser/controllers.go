// The flags of the controllers, which hawser server runs beside the API server or
// beside another one.

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"  // requests and the election, by their usual names
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // depth and latency of the controllers' queues, likewise

	"github.com/hawser-project/hawser/controlplane"
	"github.com/hawser-project/hawser/controlplane/endpointslice"
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/leader"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
)

// identityFile names this data directory among those that stand for election.
const identityFile = "identity"

// controllerOptions are the flags of the controllers, each of which adds its own. Names,
// defaults and meanings are Kubernetes' own where it has the flag.
type controllerOptions struct {
	controlplane.Config // what flags set of it

	// podEvictionTimeout is a flag that Kubernetes had, and that many still set.
	podEvictionTimeout time.Duration
	// cloudProvider is one that is a cloud controller manager's now.
	cloudProvider string

	elect  bool
	leader leader.Config

	causeAware bool
	judged     evidence.Config
	health     tunnelhealth.Config
}

func (o *controllerOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.Enabled, "controllers", []string{"*"}, "controllers to run: '*' for all, NAME to add, -NAME to leave out; with --kubeconfig "+strings.Join(besideControllers, ",")+" by default")
	o.Signer.AddFlags(f)
	o.PodGC.AddFlags(f)
}

func (o *controllerOptions) addLifecycleFlags(f *pflag.FlagSet) {
	o.Lifecycle.AddFlags(f)
	f.DurationVar(&o.podEvictionTimeout, "pod-eviction-timeout", 0, "")
	f.StringVar(&o.cloudProvider, "cloud-provider", "", "")
	for _, gone := range []string{"pod-eviction-timeout", "cloud-provider"} {
		_ = f.MarkHidden(gone) // it fails only if there is no such flag
	}
}

func (o *controllerOptions) addWorkloadFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.CollectGarbage, "enable-garbage-collector", true, "delete objects with their owners; the API server and the controllers must be told the same")
	for _, c := range []interface{ AddFlags(f *pflag.FlagSet) }{
		&o.Garbage, &o.Deployment, &o.ReplicaSet, &o.DaemonSet, &o.StatefulSet, &o.Job, &o.CronJob,
		&o.EndpointSlice, &o.Mirror, &o.Endpoints, &o.FinishedJob, &o.Quota,
	} {
		c.AddFlags(f)
	}
}

// addTunnelFlags adds the flags of what only a process with tunnels can do.
func (o *controllerOptions) addTunnelFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.causeAware, "cause-aware-eviction", true, "evict nobody from a node while the tunnel has another explanation for its silence than its death; false is what Kubernetes does")
	o.judged.AddFlags(f)
	o.health.AddFlags(f)
}

func (o *controllerOptions) addLeaderFlags(f *pflag.FlagSet) {
	l := &o.leader
	f.BoolVar(&o.elect, "leader-elect", true, "run controllers only while holding the lease, so that several servers can stand by")
	f.DurationVar(&l.LeaseDuration, "leader-elect-lease-duration", leader.DefaultLeaseDuration, "how long others wait for a leader that does not renew the lease")
	f.DurationVar(&l.RenewDeadline, "leader-elect-renew-deadline", leader.DefaultRenewDeadline, "how long a leader tries to renew the lease before it stops leading")
	f.DurationVar(&l.RetryPeriod, "leader-elect-retry-period", leader.DefaultRetryPeriod, "time between tries to get or renew the lease")
	f.StringVar(&l.Name, "leader-elect-resource-name", leader.DefaultName, "name of the lease (default with --kubeconfig "+besideLease+")")
	f.StringVar(&l.Namespace, "leader-elect-resource-namespace", leader.DefaultNamespace, "namespace of the lease")
}

// check refuses what cannot work, naming the flag.
func (o *controllerOptions) check() error {
	if err := controlplane.CheckEnabled(o.Enabled); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if o.Signer.Duration < time.Hour {
		return fmt.Errorf("--cluster-signing-duration %s: want an hour or more", o.Signer.Duration)
	}
	if o.podEvictionTimeout != 0 {
		return errors.New("--pod-eviction-timeout is no more, in Kubernetes since 1.27: set --default-unreachable-toleration-seconds and --default-not-ready-toleration-seconds, or tolerations of pods")
	}
	if o.cloudProvider != "" {
		return fmt.Errorf("--cloud-provider %s: no cloud is in this server, as in kube-controller-manager since 1.31: leave it out, run a cloud controller manager such as hawser-ccm, and agents with --cloud-provider external", o.cloudProvider)
	}
	if o.judged.SiteAutonomy < 0 {
		return fmt.Errorf("--site-autonomy-duration %s is negative: want a duration such as 1h, or 0 for none", o.judged.SiteAutonomy)
	}
	if o.judged.MaxAutonomy < time.Second {
		return fmt.Errorf("--max-autonomy-duration %s: want a duration such as 24h, not below 1s", o.judged.MaxAutonomy)
	}
	if o.judged.SiteAutonomy > o.judged.MaxAutonomy {
		return fmt.Errorf("--site-autonomy-duration %s is longer than --max-autonomy-duration %s: raise the latter or lower the former", o.judged.SiteAutonomy, o.judged.MaxAutonomy)
	}
	if err := o.checkNumbers(); err != nil {
		return err
	}
	if err := o.Lifecycle.Check(); err != nil {
		return err
	}
	if err := o.IPAM.Check(); err != nil {
		return err
	}
	if msgs := validation.IsDNS1123Subdomain(o.leader.Name); len(msgs) > 0 {
		return fmt.Errorf("--leader-elect-resource-name %q: %s", o.leader.Name, msgs[0])
	}
	if msgs := validation.IsDNS1123Label(o.leader.Namespace); len(msgs) > 0 {
		return fmt.Errorf("--leader-elect-resource-namespace %q: %s", o.leader.Namespace, msgs[0])
	}
	return o.leader.Check()
}

// minPeriod is less than anybody needs, and keeps a slip of the keyboard from
// making a loop that never rests.
const minPeriod = 10 * time.Millisecond

// checkNumbers refuses periods and counts that are none.
func (o *controllerOptions) checkNumbers() error {
	for flag, d := range map[string]time.Duration{
		"--pod-gc-sync-period": o.PodGC.Period, "--pod-gc-orphan-quarantine": o.PodGC.Quarantine, "--tunnel-probe-period": o.health.ProbePeriod,
		"--node-monitor-period":        o.Lifecycle.MonitorPeriod,
		"--resource-quota-sync-period": o.Quota.Period,
		"--job-min-backoff":            o.Job.MinBackoff, "--job-max-backoff": o.Job.MaxBackoff,
		"--leader-elect-lease-duration": o.leader.LeaseDuration, "--leader-elect-renew-deadline": o.leader.RenewDeadline, "--leader-elect-retry-period": o.leader.RetryPeriod,
	} {
		if d < minPeriod {
			return fmt.Errorf("%s %s: want a duration such as 20s, not below %s", flag, d, minPeriod)
		}
	}
	if o.Job.MinBackoff > o.Job.MaxBackoff {
		return fmt.Errorf("--job-min-backoff %s is above --job-max-backoff %s", o.Job.MinBackoff, o.Job.MaxBackoff)
	}
	for flag, n := range map[string]int{
		"--concurrent-gc-syncs": o.Garbage.Workers, "--concurrent-deployment-syncs": o.Deployment.Workers, "--concurrent-replicaset-syncs": o.ReplicaSet.Workers,
		"--concurrent-daemonset-syncs": o.DaemonSet.Workers, "--concurrent-statefulset-syncs": o.StatefulSet.Workers,
		"--concurrent-job-syncs": o.Job.Workers, "--concurrent-cron-job-syncs": o.CronJob.Workers, "--concurrent-ttl-after-finished-syncs": o.FinishedJob.Workers,
		"--concurrent-resource-quota-syncs": o.Quota.Workers, "--concurrent-service-endpoint-syncs": o.EndpointSlice.Workers,
		"--concurrent-endpoint-syncs": o.Endpoints.Workers, "--mirroring-concurrent-service-endpoint-syncs": o.Mirror.Workers, "--mirroring-max-endpoints-per-subset": o.Mirror.MaxEndpoints, "--max-endpoints-per-slice": o.EndpointSlice.MaxEndpoints,
	} {
		if n <= 0 {
			return fmt.Errorf("%s %d: want one or more", flag, n)
		}
	}
	if n := o.EndpointSlice.MaxEndpoints; n > endpointslice.MaxEndpoints {
		return fmt.Errorf("--max-endpoints-per-slice %d: want %d or less", n, endpointslice.MaxEndpoints)
	}
	if n := o.Mirror.MaxEndpoints; n > endpointslice.MaxEndpoints {
		return fmt.Errorf("--mirroring-max-endpoints-per-subset %d: want %d or less", n, endpointslice.MaxEndpoints)
	}
	return nil
}

// config is what the controllers are made from, without what only the caller has.
// The identity under which they stand for election is kept in dir, so that a server
// that was killed need not wait for its own lease to expire.
func (o *controllerOptions) config(dir string) (controlplane.Config, error) {
	c := o.Config
	if o.elect {
		identity, err := identity(dir)
		if err != nil {
			return c, err
		}
		l := o.leader
		l.Identity = identity
		c.Leader = &l
	}
	return c, nil
}

// judge is how silence is judged; nil means that it is not.
func (o *controllerOptions) judge() *evidence.Config {
	if !o.causeAware {
		return nil
	}
	c := o.judged
	if c.SiteAutonomy == 0 {
		c.SiteAutonomy = -1 // none, where zero means the default
	}
	c.Silence, c.StartupGrace = o.Lifecycle.MonitorGracePeriod/2, o.Lifecycle.StartupGracePeriod
	return &c
}

// identity is the name of the host and one that dir keeps. The lock on dir makes it
// no other process's.
func identity(dir string) (string, error) {
	kept, err := keptIdentity(dir)
	if err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return host + "_" + kept, nil
}

// keptIdentity is the name that dir keeps, which is made the first time.
func keptIdentity(dir string) (string, error) {
	name := filepath.Join(dir, identityFile)
	kept, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(strings.TrimSpace(string(kept))) == 0 {
		kept = []byte(rand.Text() + "\n")
		err = os.WriteFile(name, kept, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("--data-dir: keep the identity of this server: %w", err)
	}
	return strings.TrimSpace(string(kept)), nil
}
