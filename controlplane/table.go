package controlplane

// The table of controllers.

import (
	"slices"
	"strings"

	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/namespace"
	"github.com/hawser-project/hawser/controlplane/nodelifecycle"
	"github.com/hawser-project/hawser/controlplane/scheduler"
)

// An entry is a controller that can be made. alias is the name that Kubernetes
// gave it before; it is understood as well.
type entry struct {
	name, alias string
	make        func(*shared) (Controller, error)
}

func table() []entry {
	return []entry{
		{"certificatesigningrequest-approving-controller", "csrapproving", func(s *shared) (Controller, error) {
			return csr.NewApprover(s.client, s.informers, s.log), nil
		}},
		{"certificatesigningrequest-signing-controller", "csrsigning", func(s *shared) (Controller, error) {
			return csr.NewSigner(s.client, s.informers, csr.SignerConfig{
				CertFile: s.cfg.SigningCertFile, KeyFile: s.cfg.SigningKeyFile,
				Duration: s.cfg.SigningDuration, Log: s.log,
			})
		}},
		{"certificatesigningrequest-cleaner-controller", "csrcleaner", func(s *shared) (Controller, error) {
			return csr.NewCleaner(s.client, s.informers, s.cfg.RequestCleanPeriod, s.log), nil
		}},
		{"token-cleaner-controller", "tokencleaner", func(s *shared) (Controller, error) {
			return csr.NewTokenCleaner(s.client, s.log), nil
		}},
		{"namespace-controller", "namespace", func(s *shared) (Controller, error) {
			return namespace.New(s.client, s.objects, s.informers, namespace.Config{
				Recheck: s.cfg.NamespaceRecheck, Log: s.log,
			}), nil
		}},
		{"node-lifecycle-controller", "nodelifecycle", func(s *shared) (Controller, error) {
			return nodelifecycle.New(s.client, s.informers, nodelifecycle.Config{Log: s.log}), nil
		}},
		{"kube-scheduler", "scheduler", func(s *shared) (Controller, error) {
			return scheduler.New(s.scheduler, s.informers, scheduler.Config{
				MinBackoff: s.cfg.SchedulerMinBackoff, MaxBackoff: s.cfg.SchedulerMaxBackoff,
				Events: s.recorder("default-scheduler"), Log: s.log,
			}), nil
		}},
	}
}

func (e *entry) called(name string) bool { return name == e.name || name == e.alias }

// on tells whether a selection asks for the controller.
func (e *entry) on(selection []string) bool {
	for _, s := range selection {
		if e.called(s) {
			return true
		}
		if name, off := strings.CutPrefix(s, "-"); off && e.called(name) {
			return false
		}
	}
	return slices.Contains(selection, "*")
}
