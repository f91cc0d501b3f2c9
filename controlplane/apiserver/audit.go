// The audit log: who asked for what, and what came of it.

package apiserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
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
	// PolicyFile is an audit.k8s.io/v1 Policy. Empty means that nothing is recorded.
	PolicyFile string
	// Out gets one line for each event. Nil means that nothing is recorded.
	Out io.Writer
	// Format is json or legacy; empty means json.
	Format string
	// Mode is one of those above; empty means AuditBlocking.
	Mode string
}

// Check reads the policy and says what is wrong. Errors begin with kube-apiserver's flag
// for it, without the dashes.
func (a Audit) Check() error {
	_, err := a.auditor()
	return err
}

// An auditor decides about events and takes them. Its zero value does neither.
type auditor struct {
	rules   audit.PolicyRuleEvaluator
	backend audit.Backend
}

// auditor reads the policy.
func (a *Audit) auditor() (auditor, error) {
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
	text, err := os.ReadFile(a.PolicyFile)
	if err != nil {
		return auditor{}, fmt.Errorf("audit-policy-file: %w", err)
	}
	p, err := policy.LoadPolicyFromBytes(text)
	if err != nil {
		return auditor{}, fmt.Errorf("audit-policy-file %s: %s", a.PolicyFile, oneLine(err.Error()))
	}
	if a.Out == nil {
		return auditor{}, nil
	}
	return auditor{rules: policy.NewPolicyRuleEvaluator(p), backend: a.backend()}, nil
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

// oneLine is text without its line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
