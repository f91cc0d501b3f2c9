package csr

// Requests that were not granted: counted each, and logged once a minute for each
// requester.

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/hawser-project/hawser/auth/kubeauth"
)

// What became of a request, as the metric calls it.
const (
	left   = "left"   // to a person
	denied = "denied" // by the approver
	failed = "failed" // at the signer, once it had been approved
)

// said is what the log says.
var said = map[string]string{left: "leave to a person", denied: "deny", failed: "refuse to sign"}

// refusals count for the approver and the signer of this process together.
type refusals struct {
	count *prometheus.CounterVec // by signer, verdict
	lines *kubeauth.Lines
}

var ungranted = refusals{
	count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hawser_certificate_requests_refused_total",
		Help: "Certificate signing requests that were not granted, by signer and verdict (denied, failed, left).",
	}, []string{"signer", "verdict"}),
	lines: kubeauth.NewLines(),
}

// Refused counts the requests that were not granted in this process. It is for one
// registry, or more, to have.
func Refused() prometheus.Collector { return ungranted.count }

// note counts and logs the verdict on r. Its signer is one of ours.
func (f *refusals) note(log *slog.Logger, level slog.Level, verdict string, r *certificatesv1.CertificateSigningRequest, why string) {
	f.count.WithLabelValues(r.Spec.SignerName, verdict).Inc()
	if more, ok := f.lines.Due(r.Spec.Username); ok {
		log.Log(context.Background(), level, said[verdict], "request", r.Name, "signer", r.Spec.SignerName,
			"requester", r.Spec.Username, "why", why, "refusedSinceLastLine", more)
	}
}
