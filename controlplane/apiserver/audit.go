// The audit log: who asked for what, and what came of it.

package apiserver

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

// Modes of writing the audit log, as kube-apiserver's --audit-log-mode.
const (
	// AuditBlocking has a request wait until its line is written. A line that cannot be
	// written is counted and the request goes on.
	AuditBlocking = "blocking"
	// AuditBatch keeps lines in a bounded buffer and writes them beside the requests. What
	// the buffer cannot hold is counted.
	AuditBatch = "batch"
	// AuditBlockingStrict is AuditBlocking, but a request whose arrival cannot be
	// written is refused.
	AuditBlockingStrict = "blocking-strict"
)

// auditBuffer is how many events AuditBatch holds, as in kube-apiserver.
const auditBuffer = 10000

// Audit says which requests are recorded, and where. Lines that are lost are counted by
// apiserver_audit_error_total.
type Audit struct {
	// PolicyFile is an audit.k8s.io/v1 Policy. Empty means that nothing is recorded. It is
	// followed: each request goes by one version of it, from its first event to the last.
	PolicyFile string
	// Out gets one line for each event. Nil means that nothing is recorded.
	Out io.Writer
	// Format is json or legacy; empty means json.
	Format string
	// Mode is one of those above; empty means AuditBlocking.
	Mode string
	// Also gets each event that Out does. Requests wait for it. Nil means that nothing does.
	Also audit.Backend
}

// Check reads the policy and says what is wrong. Errors begin with kube-apiserver's flag
// for it, without the dashes.
func (a Audit) Check() error {
	_, err := a.auditor(&auth.Files{})
	return err
}

// An auditor decides about events and takes them. Its zero value does neither.
type auditor struct {
	rules   audit.PolicyRuleEvaluator
	backend audit.Backend
}

// auditor follows the policy.
func (a *Audit) auditor(files *auth.Files) (auditor, error) {
	switch {
	case a.Format == "":
		a.Format = auditlog.FormatJson
	case !slices.Contains(auditlog.AllowedFormats, a.Format):
		return auditor{}, fmt.Errorf("audit-log-format %q: want one of %s", a.Format, strings.Join(auditlog.AllowedFormats, ", "))
	}
	modes := []string{AuditBlocking, AuditBatch, AuditBlockingStrict}
	switch {
	case a.Mode == "":
		a.Mode = AuditBlocking
	case !slices.Contains(modes, a.Mode):
		return auditor{}, fmt.Errorf("audit-log-mode %q: want one of %s", a.Mode, strings.Join(modes, ", "))
	}
	if a.PolicyFile == "" {
		if a.Out != nil {
			return auditor{}, errors.New("audit-policy-file: without one the audit log would stay empty: name one")
		}
		return auditor{}, nil
	}
	rules, err := auth.Follow(files, "audit-policy-file", parsePolicy, a.PolicyFile)
	if err != nil {
		return auditor{}, err
	}
	if a.Out == nil {
		return auditor{}, nil
	}
	backend := a.backend()
	if a.Also != nil {
		backend = audit.Union(backend, a.Also)
	}
	return auditor{rules: currentPolicy{rules}, backend: backend}, nil
}

func parsePolicy(contents [][]byte) (audit.PolicyRuleEvaluator, error) {
	p, err := policy.LoadPolicyFromBytes(contents[0])
	if err != nil {
		return nil, place.Of(contents[0], err)
	}
	return policy.NewPolicyRuleEvaluator(p), nil
}

// A currentPolicy is the policy as its file says it. It is asked once for each request.
type currentPolicy struct {
	file *auth.File[audit.PolicyRuleEvaluator]
}

// EvaluatePolicyRule implements audit.PolicyRuleEvaluator.
func (c currentPolicy) EvaluatePolicyRule(attrs authorizer.Attributes) audit.RequestAuditConfig {
	return c.file.Get().EvaluatePolicyRule(attrs)
}

func (a *Audit) backend() audit.Backend {
	lines := auditlog.NewBackend(a.Out, a.Format, auditv1.SchemeGroupVersion)
	switch a.Mode {
	case AuditBatch:
		return buffered.NewBackend(lines, buffered.BatchConfig{BufferSize: auditBuffer, MaxBatchSize: 1})
	case AuditBlockingStrict:
		return lines
	}
	return forgiving{lines}
}

// A forgiving backend lets requests go on whose events it could not write. Its delegate
// has counted them.
type forgiving struct{ audit.Backend }

// ProcessEvents implements audit.Sink.
func (f forgiving) ProcessEvents(events ...*auditinternal.Event) bool {
	_ = f.Backend.ProcessEvents(events...)
	return true
}
