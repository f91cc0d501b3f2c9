// A look at a kubelet that is another process: whether it can be reached, and whether an
// API server that checks will believe its certificate.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

const (
	// kubeletEvery is how often the kubelet is looked at.
	kubeletEvery = 10 * time.Second
	// kubeletAnswer is how long it may take to connect and show its certificate.
	kubeletAnswer = 5 * time.Second
	// kubeletAgain is how often what is wrong with it is said.
	kubeletAgain = time.Minute
)

// What is wrong with a kubelet. An error about it wraps one of them.
var (
	errKubeletDown    = errors.New("cannot reach the kubelet, and neither can the API server: start it, or correct --kubelet")
	errKubeletWaits   = errors.New("the kubelet has no serving certificate yet, so logs, exec and port-forward fail: approve the request that it makes: kubectl get csr, kubectl certificate approve NAME (signer kubernetes.io/kubelet-serving)")
	errKubeletForeign = errors.New("the kubelet's certificate is not of this cluster's authority, and an API server that checks refuses it: have the kubelet ask for one (serverTLSBootstrap: true) and approve that request")
)

// A kubeletWatch says in the log what is wrong with a kubelet, of each kind at most once
// a minute, and that it is well again after something was said.
type kubeletWatch struct {
	addr string
	// dial connects to the kubelet.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// authorities are those that sign kubelets' certificates; none while that is not
	// known.
	authorities func() []*x509.Certificate
	log         *slog.Logger

	told map[error]time.Time // used by run
	sick bool                // something was said since it was last well
}

// run looks until ctx is done.
func (w *kubeletWatch) run(ctx context.Context) error {
	tick := time.NewTicker(kubeletEvery)
	defer tick.Stop()
	for {
		if err := w.look(ctx); ctx.Err() == nil {
			w.tell(err, time.Now())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *kubeletWatch) tell(err error, now time.Time) {
	if err == nil {
		if w.sick {
			w.log.Info("the kubelet is well", "kubelet", w.addr)
		}
		w.sick = false
		return
	}
	kind := errKubeletDown
	for _, other := range []error{errKubeletWaits, errKubeletForeign} {
		if errors.Is(err, other) {
			kind = other
		}
	}
	if last, ok := w.told[kind]; ok && now.Sub(last) < kubeletAgain {
		return
	}
	if w.told == nil {
		w.told = make(map[error]time.Time)
	}
	w.told[kind], w.sick = now, true
	w.log.Warn(kind.Error(), "kubelet", w.addr, "err", errors.Unwrap(err))
}

// look returns what is wrong now. Who answers is not asked for more than its
// certificate.
func (w *kubeletWatch) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, kubeletAnswer)
	defer cancel()
	raw, err := w.dial(ctx, "tcp", w.addr)
	if err != nil {
		return &kubeletError{errKubeletDown, err}
	}
	defer raw.Close()
	var shown []*x509.Certificate
	c := tls.Client(raw, &tls.Config{
		MinVersion:         tls.VersionTLS12, // older kubelets
		InsecureSkipVerify: true,             //nolint:gosec // nothing is said to it; the certificate is looked at below
		VerifyConnection: func(cs tls.ConnectionState) error {
			shown = cs.PeerCertificates
			return nil
		},
	})
	switch err = c.HandshakeContext(ctx); {
	case len(shown) == 0 && isInternalError(err):
		return &kubeletError{errKubeletWaits, err}
	case len(shown) == 0:
		return &kubeletError{errKubeletDown, fmt.Errorf("no TLS there: %w", err)}
	}
	authorities := w.authorities()
	if len(authorities) == 0 {
		return nil
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, a := range authorities {
		roots.AddCert(a)
	}
	for _, cert := range shown[1:] {
		between.AddCert(cert)
	}
	if _, err = shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return &kubeletError{errKubeletForeign, err}
	}
	return nil
}

// isInternalError reports whether err is the TLS alert of a server that has no certificate to show.
// It compares texts, because crypto/tls does not export the type of the alerts that it receives.
func isInternalError(err error) bool {
	const internalError tls.AlertError = 80 // RFC 8446, 6.2
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && op.Err != nil && op.Err.Error() == internalError.Error()
}

// A kubeletError is what is wrong, of which kind.
type kubeletError struct{ kind, err error }

func (e *kubeletError) Error() string        { return e.kind.Error() + ": " + e.err.Error() }
func (e *kubeletError) Is(target error) bool { return target == e.kind }
func (e *kubeletError) Unwrap() error        { return e.err }
