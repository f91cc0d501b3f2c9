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
	"github.com/hawser-project/hawser/controlplane/cronjob"
	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/daemonset"
	"github.com/hawser-project/hawser/controlplane/deployment"
	"github.com/hawser-project/hawser/controlplane/endpointslice"
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/garbage"
	"github.com/hawser-project/hawser/controlplane/job"
	"github.com/hawser-project/hawser/controlplane/leader"
	"github.com/hawser-project/hawser/controlplane/nodeipam"
	"github.com/hawser-project/hawser/controlplane/nodelifecycle"
	"github.com/hawser-project/hawser/controlplane/podgc"
	"github.com/hawser-project/hawser/controlplane/replicaset"
	"github.com/hawser-project/hawser/controlplane/resourcequota"
	"github.com/hawser-project/hawser/controlplane/statefulset"
	"github.com/hawser-project/hawser/controlplane/ttlafterfinished"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
)

// identityFile names this data directory among those that stand for election.
const identityFile = "identity"

// controllerOptions are the flags of the controllers. Names, defaults and meanings
// are Kubernetes' own where it has the flag.
type controllerOptions struct {
	enabled       []string
	signingPeriod time.Duration
	lifecycle     nodelifecycle.Policy
	podGC         podgc.Config
	ipam          nodeipam.Config

	collectGarbage bool
	garbage        garbage.Config
	deployment     deployment.Config
	replicaSet     replicaset.Config
	daemonSet      daemonset.Config
	statefulSet    statefulset.Config
	job            job.Config
	cronJob        cronjob.Config
	endpointSlice  endpointslice.Config
	endpoints      endpointslice.EndpointsConfig
	mirror         endpointslice.MirrorConfig
	finishedJob    ttlafterfinished.Config
	quota          resourcequota.Config

	// podEvictionTimeout is a flag that Kubernetes had, and that many still set.
	podEvictionTimeout time.Duration
	// cloudProvider is one that is a cloud controller manager's now.
	cloudProvider string
	elect         bool

	causeAware   bool
	siteAutonomy time.Duration
	maxAutonomy  time.Duration
	keepAttached bool
	probePeriod  time.Duration

	leader leader.Config
}

func (o *controllerOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.enabled, "controllers", []string{"*"}, "controllers to run: '*' for all, NAME to add, -NAME to leave out; with --kubeconfig "+strings.Join(besideControllers, ",")+" by default")
	f.DurationVar(&o.signingPeriod, "cluster-signing-duration", csr.DefaultDuration, "longest life of certificates signed for nodes and users; agents renew theirs before half of it is over, so one that is cut off for as long comes back by itself")
	f.IntVar(&o.podGC.Threshold, "terminated-pod-gc-threshold", podgc.DefaultThreshold, "pods that have ended and are kept; 0 keeps all")
	f.DurationVar(&o.podGC.Period, "pod-gc-sync-period", podgc.DefaultPeriod, "how often pods are looked for that nobody will end")
	f.DurationVar(&o.podGC.Quarantine, "pod-gc-orphan-quarantine", podgc.DefaultQuarantine, "how long a node must be missing before its pods are deleted")
}

// addRangeFlags adds the flags of the addresses of pods.
func (o *controllerOptions) addRangeFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.ipam.Allocate, "allocate-node-cidrs", false, "give each node a block of --cluster-cidr for its pods")
	f.StringVar(&o.ipam.ClusterCIDR, "cluster-cidr", "", "addresses of pods: a range, or one of IPv4 and one of IPv6 with a comma between them")
	f.IntVar(&o.ipam.MaskSize, "node-cidr-mask-size", 0, "prefix length of a node's block of --cluster-cidr (default 24, and 64 for IPv6)")
	f.IntVar(&o.ipam.MaskSizeIPv4, "node-cidr-mask-size-ipv4", 0, "prefix length of a node's IPv4 block, where --cluster-cidr has two ranges")
	f.IntVar(&o.ipam.MaskSizeIPv6, "node-cidr-mask-size-ipv6", 0, "prefix length of a node's IPv6 block, where --cluster-cidr has two ranges")
}

func (o *controllerOptions) addLifecycleFlags(f *pflag.FlagSet) {
	p, d := &o.lifecycle, nodelifecycle.DefaultPolicy()
	f.DurationVar(&p.MonitorPeriod, "node-monitor-period", d.MonitorPeriod, "time between two looks at all nodes")
	f.DurationVar(&p.MonitorGracePeriod, "node-monitor-grace-period", d.MonitorGracePeriod, "how long a node may be silent before its conditions are Unknown")
	f.DurationVar(&p.StartupGracePeriod, "node-startup-grace-period", d.StartupGracePeriod, "how long a node that has never said whether it is ready may be silent before its conditions are Unknown")
	f.Float32Var(&p.EvictionRate, "node-eviction-rate", d.EvictionRate, "nodes a second of a zone from which pods are evicted while the zone is healthy, or down as a whole")
	f.Float32Var(&p.SecondaryEvictionRate, "secondary-node-eviction-rate", d.SecondaryEvictionRate, "nodes a second of a large zone from which pods are evicted while the zone is partly down")
	f.Float32Var(&p.UnhealthyZoneThreshold, "unhealthy-zone-threshold", d.UnhealthyZoneThreshold, "share of a zone's nodes, if more than two, whose silence makes it partly down")
	f.DurationVar(&o.podEvictionTimeout, "pod-eviction-timeout", 0, "")
	f.StringVar(&o.cloudProvider, "cloud-provider", "", "")
	for _, gone := range []string{"pod-eviction-timeout", "cloud-provider"} {
		_ = f.MarkHidden(gone) // it fails only if there is no such flag
	}
	f.IntVar(&p.LargeClusterThreshold, "large-cluster-size-threshold", d.LargeClusterThreshold, "nodes above which a zone is large; a smaller one that is partly down is not evicted from")
}

func (o *controllerOptions) addWorkloadFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.collectGarbage, "enable-garbage-collector", true, "delete objects with their owners; the API server and the controllers must be told the same")
	f.IntVar(&o.garbage.Workers, "concurrent-gc-syncs", garbage.DefaultWorkers, "objects that the garbage collector works on at once")
	f.IntVar(&o.deployment.Workers, "concurrent-deployment-syncs", deployment.DefaultWorkers, "Deployments worked on at once")
	f.IntVar(&o.replicaSet.Workers, "concurrent-replicaset-syncs", replicaset.DefaultWorkers, "ReplicaSets worked on at once")
	f.IntVar(&o.daemonSet.Workers, "concurrent-daemonset-syncs", daemonset.DefaultWorkers, "DaemonSets worked on at once")
	f.IntVar(&o.statefulSet.Workers, "concurrent-statefulset-syncs", statefulset.DefaultWorkers, "StatefulSets worked on at once")
	f.IntVar(&o.job.Workers, "concurrent-job-syncs", job.DefaultWorkers, "Jobs worked on at once")
	f.IntVar(&o.cronJob.Workers, "concurrent-cron-job-syncs", cronjob.DefaultWorkers, "CronJobs worked on at once")
	f.DurationVar(&o.job.MinBackoff, "job-min-backoff", job.DefaultMinBackoff, "how long after a pod of a Job has failed the next is made; doubles with each")
	f.DurationVar(&o.job.MaxBackoff, "job-max-backoff", job.DefaultMaxBackoff, "the longest wait between pods of a Job that fail, which begins with --job-min-backoff and doubles")
	f.IntVar(&o.endpointSlice.Workers, "concurrent-service-endpoint-syncs", endpointslice.DefaultWorkers, "Services whose EndpointSlices are worked on at once")
	f.IntVar(&o.endpointSlice.MaxEndpoints, "max-endpoints-per-slice", endpointslice.DefaultMaxEndpoints, fmt.Sprintf("endpoints of one EndpointSlice, at most %d", endpointslice.MaxEndpoints))
	f.IntVar(&o.mirror.Workers, "mirroring-concurrent-service-endpoint-syncs", endpointslice.DefaultWorkers, "Endpoints of Services without a selector that are mirrored at once")
	f.IntVar(&o.mirror.MaxEndpoints, "mirroring-max-endpoints-per-subset", endpointslice.DefaultMirrored, fmt.Sprintf("addresses of Endpoints with the same ports that are mirrored, at most %d", endpointslice.MaxEndpoints))
	f.IntVar(&o.endpoints.Workers, "concurrent-endpoint-syncs", endpointslice.DefaultWorkers, "Services whose Endpoints are worked on at once")
	f.IntVar(&o.finishedJob.Workers, "concurrent-ttl-after-finished-syncs", ttlafterfinished.DefaultWorkers, "Jobs that have ended and are worked on at once")
	f.IntVar(&o.quota.Workers, "concurrent-resource-quota-syncs", resourcequota.DefaultWorkers, "resource quotas counted at once")
	f.DurationVar(&o.quota.Period, "resource-quota-sync-period", resourcequota.DefaultPeriod, "how often what all resource quotas have in use is counted anew, beside when something gives room back")
}

// addTunnelFlags adds the flags of what only a process with tunnels can do.
func (o *controllerOptions) addTunnelFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.causeAware, "cause-aware-eviction", true, "evict nobody from a node while the tunnel has another explanation for its silence than its death; false is what Kubernetes does")
	f.DurationVar(&o.siteAutonomy, "site-autonomy-duration", evidence.DefaultSiteAutonomy, "how long pods stay on the nodes of a site, or behind a server, that has lost its network (--cause-aware-eviction), unless an annotation says otherwise")
	f.DurationVar(&o.maxAutonomy, "max-autonomy-duration", evidence.DefaultMaxAutonomy, "the longest that --cause-aware-eviction, --site-autonomy-duration and any annotation can keep pods on a silent node")
	f.BoolVar(&o.keepAttached, "keep-attached-nodes", false, "evict nobody from a silent node whose tunnel works (--cause-aware-eviction), for --max-autonomy-duration at most")
	f.DurationVar(&o.probePeriod, "tunnel-probe-period", tunnelhealth.DefaultProbePeriod, "how often each node's kubelet is asked for its health through the tunnel")
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
	if err := controlplane.CheckEnabled(o.enabled); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if o.signingPeriod < time.Hour {
		return fmt.Errorf("--cluster-signing-duration %s: want an hour or more", o.signingPeriod)
	}
	if o.podEvictionTimeout != 0 {
		return errors.New("--pod-eviction-timeout is no more, in Kubernetes since 1.27: set --default-unreachable-toleration-seconds and --default-not-ready-toleration-seconds, or tolerations of pods")
	}
	if o.cloudProvider != "" {
		return fmt.Errorf("--cloud-provider %s: no cloud is in this server, as in kube-controller-manager since 1.31: leave it out, run a cloud controller manager such as hawser-ccm, and agents with --cloud-provider external", o.cloudProvider)
	}
	if o.siteAutonomy < 0 {
		return fmt.Errorf("--site-autonomy-duration %s is negative: want a duration such as 1h, or 0 for none", o.siteAutonomy)
	}
	if o.maxAutonomy < time.Second {
		return fmt.Errorf("--max-autonomy-duration %s: want a duration such as 24h, not below 1s", o.maxAutonomy)
	}
	if o.siteAutonomy > o.maxAutonomy {
		return fmt.Errorf("--site-autonomy-duration %s is longer than --max-autonomy-duration %s: raise the latter or lower the former", o.siteAutonomy, o.maxAutonomy)
	}
	if err := o.checkNumbers(); err != nil {
		return err
	}
	if err := o.lifecycle.Check(); err != nil {
		return err
	}
	if err := o.ipam.Check(); err != nil {
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
		"--pod-gc-sync-period": o.podGC.Period, "--pod-gc-orphan-quarantine": o.podGC.Quarantine, "--tunnel-probe-period": o.probePeriod,
		"--node-monitor-period":        o.lifecycle.MonitorPeriod,
		"--resource-quota-sync-period": o.quota.Period,
		"--job-min-backoff":            o.job.MinBackoff, "--job-max-backoff": o.job.MaxBackoff,
		"--leader-elect-lease-duration": o.leader.LeaseDuration, "--leader-elect-renew-deadline": o.leader.RenewDeadline, "--leader-elect-retry-period": o.leader.RetryPeriod,
	} {
		if d < minPeriod {
			return fmt.Errorf("%s %s: want a duration such as 20s, not below %s", flag, d, minPeriod)
		}
	}
	if o.job.MinBackoff > o.job.MaxBackoff {
		return fmt.Errorf("--job-min-backoff %s is above --job-max-backoff %s", o.job.MinBackoff, o.job.MaxBackoff)
	}
	for flag, n := range map[string]int{
		"--concurrent-gc-syncs": o.garbage.Workers, "--concurrent-deployment-syncs": o.deployment.Workers, "--concurrent-replicaset-syncs": o.replicaSet.Workers,
		"--concurrent-daemonset-syncs": o.daemonSet.Workers, "--concurrent-statefulset-syncs": o.statefulSet.Workers,
		"--concurrent-job-syncs": o.job.Workers, "--concurrent-cron-job-syncs": o.cronJob.Workers, "--concurrent-ttl-after-finished-syncs": o.finishedJob.Workers,
		"--concurrent-resource-quota-syncs": o.quota.Workers, "--concurrent-service-endpoint-syncs": o.endpointSlice.Workers,
		"--concurrent-endpoint-syncs": o.endpoints.Workers, "--mirroring-concurrent-service-endpoint-syncs": o.mirror.Workers, "--mirroring-max-endpoints-per-subset": o.mirror.MaxEndpoints, "--max-endpoints-per-slice": o.endpointSlice.MaxEndpoints,
	} {
		if n <= 0 {
			return fmt.Errorf("%s %d: want one or more", flag, n)
		}
	}
	if n := o.endpointSlice.MaxEndpoints; n > endpointslice.MaxEndpoints {
		return fmt.Errorf("--max-endpoints-per-slice %d: want %d or less", n, endpointslice.MaxEndpoints)
	}
	if n := o.mirror.MaxEndpoints; n > endpointslice.MaxEndpoints {
		return fmt.Errorf("--mirroring-max-endpoints-per-subset %d: want %d or less", n, endpointslice.MaxEndpoints)
	}
	return nil
}

// config is what the controllers are made from, without what only the caller has.
// The identity under which they stand for election is kept in dir, so that a server
// that was killed need not wait for its own lease to expire.
func (o *controllerOptions) config(dir string) (controlplane.Config, error) {
	c := controlplane.Config{
		Enabled: o.enabled, SigningDuration: o.signingPeriod,
		Lifecycle: o.lifecycle, PodGC: o.podGC, IPAM: o.ipam,
		CollectGarbage: o.collectGarbage, Garbage: o.garbage,
		Deployment: o.deployment, ReplicaSet: o.replicaSet, DaemonSet: o.daemonSet, StatefulSet: o.statefulSet, Job: o.job, CronJob: o.cronJob, EndpointSlice: o.endpointSlice, Endpoints: o.endpoints, Mirror: o.mirror, FinishedJob: o.finishedJob, Quota: o.quota,
	}
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
	autonomy := o.siteAutonomy
	if autonomy == 0 {
		autonomy = -1 // none, where zero means the default
	}
	return &evidence.Config{
		SiteAutonomy: autonomy, MaxAutonomy: o.maxAutonomy, KeepAttached: o.keepAttached,
		Silence: o.lifecycle.MonitorGracePeriod / 2, StartupGrace: o.lifecycle.StartupGracePeriod,
	}
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
