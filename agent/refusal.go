// Refusals: failures that a retry does not fix.

package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// Reasons of a Refusal, which unwraps to one of them.
var (
	// ErrCertificateRejected: the server does not accept this node's
	// certificate, or there is none.
	ErrCertificateRejected = errors.New("server rejects this node's certificate")
	// ErrServerUntrusted: the server's certificate is not from the cluster's
	// authority, is for another name, or is not valid now.
	ErrServerUntrusted = errors.New("server's certificate cannot be trusted")
	// ErrNotServer: the peer is not a Hawser server, or has an incompatible version.
	ErrNotServer = errors.New("no hawser server answers there")
	// ErrNodeRefused: the server accepts the certificate and refuses the session.
	ErrNodeRefused = errors.New("server refuses this node")
	// ErrProxyRefused: the HTTP proxy does not connect to the server, or TLS with it fails.
	ErrProxyRefused = errors.New("the proxy does not let this node through")
	// ErrReplaced: another agent with this node's certificate has connected.
	ErrReplaced = errors.New("another agent with this node's identity has connected")
	// ErrRevoked: this node's key no longer owns the node's name.
	ErrRevoked = errors.New("the server does not admit this node any more")
)

// A Refusal is a failure caused by the configuration. The agent keeps retrying with growing
// back-off, but an operator should act.
type Refusal struct {
	Server string
	// Reason is one of the errors above.
	Reason error
	// Err is the detailed error.
	Err error
}

// Error is one line: what, why, and the remedy.
func (r *Refusal) Error() string {
	detail := strings.ReplaceAll(r.Err.Error(), "\n", "; ")
	return r.Reason.Error() + " (" + detail + "): " + remedy(r.Reason, r.Err)
}

// Unwrap gives the reason and the detail.
func (r *Refusal) Unwrap() []error { return []error{r.Reason, r.Err} }

// Diagnose returns err as a *Refusal if it is one, else unchanged. Nil stays nil.
func Diagnose(server string, err error) error {
	if reason := reasonOf(err); reason != nil {
		return &Refusal{Server: server, Reason: reason, Err: err}
	}
	return err
}

func reasonOf(err error) error {
	var (
		bye   *tunnel.Goodbye
		op    *net.OpError
		cert  *tls.CertificateVerificationError
		ca    x509.UnknownAuthorityError
		host  x509.HostnameError
		bad   x509.CertificateInvalidError
		noTLS tls.RecordHeaderError
		proxy *proxyError
		hop   *proxyTLSError
	)
	switch {
	case errors.As(err, &hop):
		return ErrProxyRefused
	case errors.As(err, &proxy):
		if proxy.remedy() != "" {
			return ErrProxyRefused
		}
		return nil
	case errors.As(err, &bye):
		switch bye.Code {
		case tunnel.Denied, tunnel.Invalid:
			return ErrNodeRefused
		case tunnel.Replaced:
			return ErrReplaced
		case tunnel.Revoked:
			return ErrRevoked
		default:
			return nil
		}
	case errors.As(err, &op) && op.Op == "remote error":
		return alertReason(op.Err)
	case errors.As(err, &cert), errors.As(err, &ca), errors.As(err, &host), errors.As(err, &bad), errors.Is(err, auth.ErrNodeAsServer):
		return ErrServerUntrusted
	case errors.As(err, &noTLS), errors.Is(err, tunnel.ErrFrame):
		return ErrNotServer
	default:
		return nil
	}
}

// alertReasons maps the server's TLS alerts (RFC 8446, 6.2) to reasons. It is never
// changed.
var alertReasons = map[tls.AlertError]error{
	42:  ErrCertificateRejected, // bad_certificate
	43:  ErrCertificateRejected, // unsupported_certificate
	44:  ErrCertificateRejected, // certificate_revoked
	45:  ErrCertificateRejected, // certificate_expired
	46:  ErrCertificateRejected, // certificate_unknown
	48:  ErrCertificateRejected, // unknown_ca
	49:  ErrCertificateRejected, // access_denied
	70:  ErrNotServer,           // protocol_version
	116: ErrCertificateRejected, // certificate_required
	120: ErrNotServer,           // no_application_protocol
}

// alertReason compares the alert's text with crypto/tls's own, because the type of the
// error is not exported.
func alertReason(alert error) error {
	for a, reason := range alertReasons {
		if alert != nil && alert.Error() == a.Error() {
			return reason
		}
	}
	return nil
}

// expired reports whether the server considers this node's certificate expired.
func expired(err error) bool {
	const certificateExpired tls.AlertError = 45
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && op.Err != nil && op.Err.Error() == certificateExpired.Error()
}

// madeAnew is about a cluster that has other authorities, under the same name and address.
const madeAnew = "if the cluster was made anew, remove the agent's data directory and join with a new token"

// remedy is what an operator should do.
func remedy(reason, err error) string {
	var (
		host  x509.HostnameError
		bad   x509.CertificateInvalidError
		noTLS tls.RecordHeaderError
		proxy *proxyError
		hop   *proxyTLSError
	)
	switch {
	case errors.As(err, &hop):
		return hop.remedy()
	case errors.As(err, &proxy):
		return proxy.remedy()
	case errors.As(err, &host):
		return "connect by a name or an address that the server's certificate has, or add this one to it with the server's --tls-san"
	case errors.As(err, &bad) && bad.Reason == x509.Expired:
		return "check this machine's clock and the server's"
	case errors.As(err, &noTLS) && string(noTLS.RecordHeader[:]) == "HTTP/":
		return "the address speaks HTTP without TLS: check the port, and whether a captive portal or a proxy is on the way; \"hawser-agent check\" has its answer"
	case errors.As(err, &noTLS):
		return "the address does not speak TLS, check the port"
	}
	switch {
	case expired(err):
		return "this node's certificate has expired: run \"hawser token create --print-join-command\" on the server and start this agent with the token that it prints; check the clocks"
	case errors.Is(reason, ErrCertificateRejected):
		return "its authority may have been replaced: check the clocks, then start this agent with a new token (\"hawser token create --print-join-command\" on the server), " +
			"or put that into its --token-file, and keep the agent's data directory, which has the key that holds the node's name"
	case errors.Is(reason, ErrServerUntrusted):
		return "the certificate is not from this cluster's authority: check the address, and whether something on the way intercepts TLS; " + madeAnew
	case errors.Is(reason, ErrNotServer):
		return "check the address and the server's version"
	case errors.Is(reason, ErrProxyRefused):
		return "check HTTPS_PROXY and NO_PROXY"
	case errors.Is(reason, ErrRevoked):
		return "its pods are stopped and it keeps asking; to have the node back, restart it with a valid join token (--token-file, HAWSER_TOKEN or --token); unless its Node was deleted, that takes \"hawser node allow\" on the server first"
	case errors.Is(reason, ErrReplaced):
		return "if this machine is a copy of another one, remove the agent's data directory and join it under another name"
	default:
		return "see the server's log"
	}
}
