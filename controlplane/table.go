package controlplane

// The table of controllers.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/controlplane/clusterroles"
	"github.com/hawser-project/hawser/controlplane/cronjob"
	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/daemonset"
	"github.com/hawser-project/hawser/controlplane/deployment"
	"github.com/hawser-project/hawser/controlplane/disruption"
	"github.com/hawser-project/hawser/controlplane/endpointslice"
	"github.com/hawser-project/hawser/controlplane/garbage"
	"github.com/hawser-project/hawser/controlplane/job"
	"github.com/hawser-project/hawser/controlplane/loadbalancer"
	"github.com/hawser-project/hawser/controlplane/namespace"
	"github.com/hawser-project/hawser/controlplane/nodeipam"
	"github.com/hawser-project/hawser/controlplane/podgc"
	"github.com/hawser-project/hawser/controlplane/policystatus"
	"github.com/hawser-project/hawser/controlplane/replicaset"
	"github.com/hawser-project/hawser/controlplane/resourcequota"
	"github.com/hawser-project/hawser/controlplane/rootca"
	"github.com/hawser-project/hawser/controlplane/scheduler"
	"github.com/hawser-project/hawser/controlplane/serviceaccount"
	"github.com/hawser-project/hawser/controlplane/statefulset"
	"github.com/hawser-project/hawser/controlplane/tainteviction"
	"github.com/hawser-project/hawser/controlplane/ttlafterfinished"
)

// An entry is a controller that can be made. alias is the name that Kubernetes
// gave it before; it is understood as well.
type entry struct {
	name, alias string
	source      string                            // of its events, if not name
	quiet       bool                              // whether it has no events; some have no right to write any
	make        func(*shared) (Controller, error) // may return nil if there is nothing for it to do
	everywhere  bool                              // whether it runs in every process, and not just in the leader's
	schedules   bool                              // whether it calls the API by Config.SchedulerClient
}

func table() []entry {
	return slices.Concat(forAccess(), forNodes(), forPods(), forWorkloads(), forServices())
}

func forAccess() []entry {
	return []entry{
		{name: "certificatesigningrequest-approving-controller", alias: "csrapproving", make: func(s *shared) (Controller, error) {
			return csr.NewApprover(s.deps, csr.ApproverConfig{Server: s.cfg.ServerNames})
		}},
		{name: "certificatesigningrequest-signing-controller", alias: "csrsigning", make: func(s *shared) (Controller, error) {
			c := s.cfg.Signer
			c.Files, c.Server = s.cfg.Files, s.cfg.ServerNames
			return csr.NewSigner(s.deps, c)
		}},
		{name: "certificatesigningrequest-cleaner-controller", alias: "csrcleaner", make: func(s *shared) (Controller, error) {
			return csr.NewCleaner(s.deps, csr.CleanerConfig{Period: s.cfg.RequestCleanPeriod})
		}},
		{name: "token-cleaner-controller", alias: "tokencleaner", quiet: true, make: func(s *shared) (Controller, error) {
			return csr.NewTokenCleaner(s.deps, csr.TokenCleanerConfig{})
		}},
		{name: "serviceaccount-controller", alias: "serviceaccount", make: func(s *shared) (Controller, error) {
			return serviceaccount.New(s.deps, serviceaccount.Config{})
		}},
		{name: "serviceaccount-token-controller", alias: "serviceaccount-token", quiet: true, make: func(s *shared) (Controller, error) {
			ca, changed, err := s.authority()
			if err != nil || ca == nil {
				return nil, err
			}
			return serviceaccount.NewTokens(s.deps, serviceaccount.TokensConfig{CA: ca, Changed: changed})
		}},
		{name: "clusterrole-aggregation-controller", alias: "clusterrole-aggregation", quiet: true, make: func(s *shared) (Controller, error) {
			return clusterroles.New(s.deps, clusterroles.Config{})
		}},
		{name: "validatingadmissionpolicy-status-controller", make: func(s *shared) (Controller, error) {
			return policystatus.New(s.deps, policystatus.Config{})
		}},
	}
}

func forNodes() []entry {
	return []entry{
		{name: "node-lifecycle-controller", alias: "nodelifecycle", source: "node-controller", make: newNodeLifecycle},
		{name: "hawser-tunnel-health-controller", make: newTunnelHealth, everywhere: true},
		{name: "node-ipam-controller", alias: "nodeipam", source: "cidrAllocator", make: func(s *shared) (Controller, error) {
			if !s.cfg.IPAM.Allocate {
				return nil, nil
			}
			return nodeipam.New(s.deps, s.cfg.IPAM)
		}},
	}
}

func forPods() []entry {
	return []entry{
		{name: "kube-scheduler", alias: "scheduler", source: "default-scheduler", schedules: true, make: func(s *shared) (Controller, error) {
			return scheduler.New(s.deps, scheduler.Config{
				MinBackoff: s.cfg.SchedulerMinBackoff, MaxBackoff: s.cfg.SchedulerMaxBackoff,
			})
		}},
		{name: "taint-eviction-controller", make: func(s *shared) (Controller, error) {
			return tainteviction.New(s.deps, tainteviction.Config{})
		}},
		{name: "pod-garbage-collector-controller", alias: "podgc", quiet: true, make: func(s *shared) (Controller, error) {
			return podgc.New(s.deps, s.cfg.PodGC)
		}},
		{name: "disruption-controller", alias: "disruption", source: "controllermanager", make: func(s *shared) (Controller, error) {
			return disruption.New(s.deps, disruption.Config{})
		}},
	}
}

func forWorkloads() []entry {
	return []entry{
		{name: "namespace-controller", alias: "namespace", quiet: true, make: func(s *shared) (Controller, error) {
			return namespace.New(s.deps, namespace.Config{Recheck: s.cfg.NamespaceRecheck})
		}},
		{name: "resourcequota-controller", alias: "resourcequota", make: func(s *shared) (Controller, error) {
			return resourcequota.New(s.deps, s.cfg.Quota)
		}},
		{name: "root-ca-certificate-publisher-controller", alias: "root-ca-cert-publisher", make: newRootCA},
		{name: "garbage-collector-controller", alias: "garbagecollector", make: func(s *shared) (Controller, error) {
			if !s.cfg.CollectGarbage {
				return nil, nil
			}
			return garbage.New(s.deps, s.cfg.Garbage)
		}},
		{name: "deployment-controller", alias: "deployment", make: func(s *shared) (Controller, error) {
			return deployment.New(s.deps, s.cfg.Deployment)
		}},
		{name: "replicaset-controller", alias: "replicaset", make: func(s *shared) (Controller, error) {
			return replicaset.New(s.deps, s.cfg.ReplicaSet)
		}},
		{name: "daemonset-controller", alias: "daemonset", make: func(s *shared) (Controller, error) {
			return daemonset.New(s.deps, s.cfg.DaemonSet)
		}},
		{name: "statefulset-controller", alias: "statefulset", make: func(s *shared) (Controller, error) {
			return statefulset.New(s.deps, s.cfg.StatefulSet)
		}},
		{name: "job-controller", alias: "job", make: func(s *shared) (Controller, error) {
			return job.New(s.deps, s.cfg.Job)
		}},
		{name: "cronjob-controller", alias: "cronjob", make: func(s *shared) (Controller, error) {
			return cronjob.New(s.deps, s.cfg.CronJob)
		}},
		{name: "ttl-after-finished-controller", alias: "ttl-after-finished", make: func(s *shared) (Controller, error) {
			return ttlafterfinished.New(s.deps, s.cfg.FinishedJob)
		}},
	}
}

func forServices() []entry {
	return []entry{
		{name: "endpointslice-controller", alias: "endpointslice", source: "endpoint-slice-controller", make: func(s *shared) (Controller, error) {
			return endpointslice.New(s.deps, s.cfg.EndpointSlice)
		}},
		{name: "endpoints-controller", alias: "endpoint", make: func(s *shared) (Controller, error) {
			return endpointslice.NewEndpoints(s.deps, s.cfg.Endpoints)
		}},
		{name: "endpointslice-mirroring-controller", alias: "endpointslicemirroring", source: "endpoint-slice-mirroring-controller", make: func(s *shared) (Controller, error) {
			return endpointslice.NewMirror(s.deps, s.cfg.Mirror)
		}},
		{name: "hawser-load-balancer-controller", everywhere: true, make: func(s *shared) (Controller, error) {
			if s.cfg.LoadBalancer == nil {
				return nil, nil
			}
			return loadbalancer.New(s.deps, *s.cfg.LoadBalancer)
		}},
	}
}

// authority is that by which the controllers themselves know the API server, and what tells
// that it is another; nil where they do not verify it.
func (s *shared) authority() (ca func() []byte, changed func(f func()) (stop func()), err error) {
	tls := s.cfg.Client.TLSClientConfig
	if len(tls.CAData) > 0 {
		return func() []byte { return tls.CAData }, nil, nil
	}
	if tls.CAFile == "" {
		return nil, nil, nil
	}
	cas, err := s.cfg.Files.Authorities(tls.CAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("the API server's authority: %w", err)
	}
	return cas.PEM, cas.Changed, nil
}

// newRootCA publishes the authority, if there is one.
func newRootCA(s *shared) (Controller, error) {
	ca, changed, err := s.authority()
	if err != nil || ca == nil {
		return nil, err
	}
	return rootca.New(s.deps, rootca.Config{CA: ca, Changed: changed})
}

func (e *entry) called(name string) bool {
	return name == e.name || e.alias != "" && name == e.alias
}

// on tells whether a selection asks for the controller. One that only leaves out
// means all the others.
func (e *entry) on(selection []string) bool {
	others := len(selection) > 0
	for _, s := range selection {
		if e.called(s) {
			return true
		}
		name, off := strings.CutPrefix(s, "-")
		if off && e.called(name) {
			return false
		}
		others = others && (off || s == "*")
	}
	return others || slices.Contains(selection, "*")
}
