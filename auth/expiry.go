// The expiry of certificates, and warnings about one that was not renewed in time.

package auth

import (
	"context"
	"crypto/x509"
	"log/slog"
	"time"
)

const (
	// warnBelow is the fraction of a certificate's life below which it is warned of.
	warnBelow = 0.3
	// warnEvery is the interval between two warnings of one certificate.
	warnEvery = 24 * time.Hour
	// lookEvery is the interval between two checks of all certificates.
	lookEvery = time.Hour
)

// An Expiring is a certificate in use and its successors.
type Expiring struct {
	Name string
	// Now returns the certificate in use, nil if there is none.
	Now func() *x509.Certificate
}

const (
	// ExpirationMetric is the gauge of the expiry of certificates, with label name, and
	// ExpirationHelp is its help text.
	ExpirationMetric = "hawser_certificate_expiration_timestamp_seconds"
	ExpirationHelp   = "Unix time at which the certificate in use expires, by name."
)

// Ends is the value of ExpirationMetric; 0 means that there is no certificate.
func (e Expiring) Ends() float64 {
	if cert := e.Now(); cert != nil {
		return float64(cert.NotAfter.Unix())
	}
	return 0
}

// An ExpiryWatch warns of certificates that expire soon. A certificate that is renewed in
// time is never warned of, so a warning means that an administrator must act. There is
// one a day for each certificate.
type ExpiryWatch struct {
	certificates []Expiring
	log          *slog.Logger
	warned       map[string]time.Time // used by Run
}

// NewExpiryWatch watches certificates, each of which has a name of its own.
func NewExpiryWatch(log *slog.Logger, certificates ...Expiring) *ExpiryWatch {
	return &ExpiryWatch{certificates: certificates, log: log, warned: make(map[string]time.Time)}
}

// Run warns until ctx is done.
func (w *ExpiryWatch) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		w.look(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *ExpiryWatch) look(now time.Time) {
	for _, c := range w.certificates {
		cert := c.Now()
		if cert == nil || !late(cert, now) {
			delete(w.warned, c.Name)
			continue
		}
		if last, ok := w.warned[c.Name]; ok && now.Sub(last) < warnEvery {
			continue
		}
		w.warned[c.Name] = now
		w.log.Warn("a certificate is close to its end and has not been renewed", "name", c.Name,
			"subject", cert.Subject.CommonName, "until", cert.NotAfter, "left", cert.NotAfter.Sub(now).Round(time.Second))
	}
}

// late reports whether a certificate has less than 30 % of its life left.
func late(cert *x509.Certificate, now time.Time) bool {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return cert.NotAfter.Sub(now) < time.Duration(warnBelow*float64(life))
}
