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
			return csr.NewApprover(s.client, s.informers, s.cfg.ServerNames, s.log), nil
		}},
		{name: "certificatesigningrequest-signing-controller", alias: "csrsigning", make: func(s *shared) (Controller, error) {
			return csr.NewSigner(s.client, s.informers, csr.SignerConfig{
				CertFile: s.cfg.SigningCertFile, KeyFile: s.cfg.SigningKeyFile,
				ServingCertFile: s.cfg.ServingSigningCertFile, ServingKeyFile: s.cfg.ServingSigningKeyFile,
				Files: s.cfg.Files, Server: s.cfg.ServerNames, Duration: s.cfg.SigningDuration, Log: s.log,
			})
		}},
		{name: "certificatesigningrequest-cleaner-controller", alias: "csrcleaner", make: func(s *shared) (Controller, error) {
			return csr.NewCleaner(s.client, s.informers, s.cfg.RequestCleanPeriod, s.log), nil
		}},
		{name: "token-cleaner-controller", alias: "tokencleaner", make: func(s *shared) (Controller, error) {
			return csr.NewTokenCleaner(s.client, s.log), nil
		}},
		{name: "serviceaccount-controller", alias: "serviceaccount", make: func(s *shared) (Controller, error) {
			return serviceaccount.New(s.client, s.informers, s.log), nil
		}},
		{name: "serviceaccount-token-controller", alias: "serviceaccount-token", make: func(s *shared) (Controller, error) {
			ca, _, err := s.authority()
			if err != nil || ca == nil {
				return nil, err
			}
			return serviceaccount.NewTokens(s.client, s.informers, serviceaccount.TokensConfig{CA: ca, Log: s.log})
		}},
		{name: "clusterrole-aggregation-controller", alias: "clusterrole-aggregation", make: func(s *shared) (Controller, error) {
			return clusterroles.New(s.client, s.informers, s.log), nil
		}},
		{name: "validatingadmissionpolicy-status-controller", make: func(s *shared) (Controller, error) {
			return policystatus.New(s.client, s.informers, s.log), nil
		}},
	}
}

func forNodes() []entry {
	return []entry{
		{name: "node-lifecycle-controller", alias: "nodelifecycle", make: newNodeLifecycle},
		{name: "hawser-tunnel-health-controller", make: newTunnelHealth, everywhere: true},
		{name: "node-ipam-controller", alias: "nodeipam", make: func(s *shared) (Controller, error) {
			c := s.cfg.IPAM
			if !c.Allocate {
				return nil, nil
			}
			c.Events, c.Metrics, c.Log = s.recorder("cidrAllocator"), s.metrics, s.log
			return nodeipam.New(s.client, s.informers, c)
		}},
	}
}

func forPods() []entry {
	return []entry{
		{name: "kube-scheduler", alias: "scheduler", schedules: true, make: func(s *shared) (Controller, error) {
			return scheduler.New(s.client, s.informers, scheduler.Config{
				MinBackoff: s.cfg.SchedulerMinBackoff, MaxBackoff: s.cfg.SchedulerMaxBackoff,
				Events: s.recorder("default-scheduler"), Metrics: s.metrics, Log: s.log,
			})
		}},
		{name: "taint-eviction-controller", make: func(s *shared) (Controller, error) {
			return tainteviction.New(s.client, s.informers, tainteviction.Config{
				Events: s.recorder("taint-eviction-controller"), Metrics: s.metrics, Log: s.log,
			})
		}},
		{name: "pod-garbage-collector-controller", alias: "podgc", make: func(s *shared) (Controller, error) {
			c := s.cfg.PodGC
			c.Metrics, c.Log = s.metrics, s.log
			return podgc.New(s.client, s.informers, c)
		}},
		{name: "disruption-controller", alias: "disruption", make: func(s *shared) (Controller, error) {
			return disruption.New(s.client, s.informers, disruption.Config{
				Scales: s.custom, Events: s.recorder("controllermanager"), Log: s.log,
			}), nil
		}},
	}
}

func forWorkloads() []entry {
	return []entry{
		{name: "namespace-controller", alias: "namespace", make: func(s *shared) (Controller, error) {
			return namespace.New(s.client, s.objects, s.informers, namespace.Config{
				Recheck: s.cfg.NamespaceRecheck, Log: s.log,
			}), nil
		}},
		{name: "resourcequota-controller", alias: "resourcequota", make: func(s *shared) (Controller, error) {
			c := s.cfg.Quota
			c.Log = s.log
			return resourcequota.New(s.client, s.objects, s.informers, c), nil
		}},
		{name: "root-ca-certificate-publisher-controller", alias: "root-ca-cert-publisher", make: newRootCA},
		{name: "garbage-collector-controller", alias: "garbagecollector", make: func(s *shared) (Controller, error) {
			c := s.cfg.Garbage
			if !s.cfg.CollectGarbage {
				return nil, nil
			}
			c.Events, c.Metrics, c.Log = s.recorder("garbage-collector-controller"), s.metrics, s.log
			return garbage.New(s.client, s.objects, c), nil
		}},
		{name: "deployment-controller", alias: "deployment", make: func(s *shared) (Controller, error) {
			c := s.cfg.Deployment
			c.Events, c.Log = s.recorder("deployment-controller"), s.log
			return deployment.New(s.client, s.informers, c)
		}},
		{name: "replicaset-controller", alias: "replicaset", make: func(s *shared) (Controller, error) {
			c := s.cfg.ReplicaSet
			c.Events, c.Log = s.recorder("replicaset-controller"), s.log
			return replicaset.New(s.client, s.informers, c)
		}},
		{name: "daemonset-controller", alias: "daemonset", make: func(s *shared) (Controller, error) {
			c := s.cfg.DaemonSet
			c.Events, c.Log = s.recorder("daemonset-controller"), s.log
			return daemonset.New(s.client, s.informers, c)
		}},
		{name: "statefulset-controller", alias: "statefulset", make: func(s *shared) (Controller, error) {
			c := s.cfg.StatefulSet
			c.Events, c.Log = s.recorder("statefulset-controller"), s.log
			return statefulset.New(s.client, s.informers, c)
		}},
		{name: "job-controller", alias: "job", make: func(s *shared) (Controller, error) {
			c := s.cfg.Job
			c.Events, c.Log = s.recorder("job-controller"), s.log
			return job.New(s.client, s.informers, c)
		}},
		{name: "cronjob-controller", alias: "cronjob", make: func(s *shared) (Controller, error) {
			c := s.cfg.CronJob
			c.Events, c.Log = s.recorder("cronjob-controller"), s.log
			return cronjob.New(s.client, s.informers, c)
		}},
		{name: "ttl-after-finished-controller", alias: "ttl-after-finished", make: func(s *shared) (Controller, error) {
			c := s.cfg.FinishedJob
			c.Log = s.log
			return ttlafterfinished.New(s.client, s.informers, c), nil
		}},
	}
}

func forServices() []entry {
	return []entry{
		{name: "endpointslice-controller", alias: "endpointslice", make: func(s *shared) (Controller, error) {
			c := s.cfg.EndpointSlice
			c.Events, c.Log = s.recorder("endpoint-slice-controller"), s.log
			return endpointslice.New(s.client, s.informers, c)
		}},
		{name: "endpoints-controller", alias: "endpoint", make: func(s *shared) (Controller, error) {
			c := s.cfg.Endpoints
			c.Log = s.log
			return endpointslice.NewEndpoints(s.client, s.informers, c)
		}},
		{name: "endpointslice-mirroring-controller", alias: "endpointslicemirroring", make: func(s *shared) (Controller, error) {
			c := s.cfg.Mirror
			c.Events, c.Log = s.recorder("endpoint-slice-mirroring-controller"), s.log
			return endpointslice.NewMirror(s.client, s.informers, c)
		}},
		{name: "hawser-load-balancer-controller", everywhere: true, make: func(s *shared) (Controller, error) {
			if s.cfg.LoadBalancer == nil {
				return nil, nil
			}
			c := *s.cfg.LoadBalancer
			c.Events, c.Log = s.recorder("hawser-load-balancer-controller"), s.log
			return loadbalancer.New(s.informers, c)
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
	return rootca.New(s.client, s.informers, rootca.Config{CA: ca, Changed: changed, Log: s.log})
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
