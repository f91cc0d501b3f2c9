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
	// CertificateFile is that of Config.
	CertificateFile string
}

// Error is one line: what, why, and the remedy.
func (r *Refusal) Error() string {
	detail := strings.ReplaceAll(r.Err.Error(), "\n", "; ")
	return r.Reason.Error() + " (" + detail + "): " + r.remedy()
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

// diagnose is Diagnose with the remedies for this node's identity.
func (a *Agent) diagnose(server string, err error) error {
	err = Diagnose(server, err)
	if r, ok := errors.AsType[*Refusal](err); ok {
		r.CertificateFile = a.cfg.CertificateFile
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
	112: ErrNotServer,           // unrecognized_name
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

// Alerts that have remedies of their own.
const (
	certificateExpired    tls.AlertError = 45
	unrecognizedName      tls.AlertError = 112
	noApplicationProtocol tls.AlertError = 120
)

// expired reports whether the server considers this node's certificate expired.
func expired(err error) bool { return isAlert(err, certificateExpired) }

// isAlert reports whether err is that alert of the server.
func isAlert(err error, alert tls.AlertError) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && op.Err != nil && op.Err.Error() == alert.Error()
}

// remedy is what an operator should do.
func (r *Refusal) remedy() string {
	var (
		host  x509.HostnameError
		bad   x509.CertificateInvalidError
		noTLS tls.RecordHeaderError
		proxy *proxyError
		hop   *proxyTLSError
	)
	switch err := r.Err; {
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
	case isAlert(err, unrecognizedName):
		return "what answers there routes by name and does not know this one, or was told none, as an IP address is no name: connect by a name that it routes"
	case isAlert(err, noApplicationProtocol):
		return "a hawser server of another version, or an API server answers there: check the address; a hub beside a cluster is on port 8132 by default"
	case errors.Is(r.Reason, ErrNotServer):
		return "check the address and the server's version"
	case errors.Is(r.Reason, ErrProxyRefused):
		return "check HTTPS_PROXY and NO_PROXY"
	case r.CertificateFile != "":
		return r.remedyOfFile()
	default:
		return r.remedyOfToken()
	}
}

// remedyOfToken is for a node that requests its certificate with a join token.
func (r *Refusal) remedyOfToken() string {
	switch {
	case expired(r.Err):
		return "this node's certificate has expired: run \"hawser token create --print-join-command\" on the server and start this agent with the token that it prints; check the clocks"
	case errors.Is(r.Reason, ErrCertificateRejected):
		return "its authority may have been replaced: check the clocks, then start this agent with a new token (\"hawser token create --print-join-command\" on the server), " +
			"or put that into its --token-file, and keep the agent's data directory, which has the key that holds the node's name; " +
			"a server with --agent-ca takes no token: give --client-certificate, --client-key and --certificate-authority"
	case errors.Is(r.Reason, ErrServerUntrusted):
		return untrusted + "if the cluster's authority was replaced, remove pki/ca.crt alone from the agent's data directory and start it with a new join command (\"hawser token create --print-join-command\" on the server); " +
			"if the cluster was made anew, remove that directory before"
	case errors.Is(r.Reason, ErrRevoked):
		return "its pods are stopped and it keeps asking; to have the node back, restart it with a valid join token (--token-file, HAWSER_TOKEN or --token); unless its Node was deleted, that takes \"hawser node allow\" on the server first"
	case errors.Is(r.Reason, ErrReplaced):
		return "if this machine is a copy of another one, remove the agent's data directory and join it under another name"
	default:
		return serversLog
	}
}

// remedyOfFile is for a node whose certificate another program renews. It takes no token.
func (r *Refusal) remedyOfFile() string {
	switch {
	case expired(r.Err):
		return "this node's certificate has expired: replace it in " + r.CertificateFile + ", which is followed; check the clocks"
	case errors.Is(r.Reason, ErrCertificateRejected):
		return "its authority may have been replaced: check the clocks, then replace the certificate in " + r.CertificateFile + ", which is followed"
	case errors.Is(r.Reason, ErrServerUntrusted):
		return untrusted + "if the cluster was made anew, give this agent the new authority, and a certificate that is signed by it in " + r.CertificateFile + "; both are followed"
	case errors.Is(r.Reason, ErrRevoked):
		return "its pods are stopped and it keeps asking; to have the node back, replace the certificate in " + r.CertificateFile + ", which is followed, by one for another key; " +
			"unless its Node was deleted, or the cluster is another than the server's own, that takes \"hawser node allow\" on the server first"
	case errors.Is(r.Reason, ErrReplaced):
		return "if this machine is a copy of another one, give it a name of its own, and a certificate for that in " + r.CertificateFile
	default:
		return serversLog
	}
}

const (
	untrusted  = "the certificate is not from this cluster's authority: check the address, and whether something on the way intercepts TLS; "
	serversLog = "see the server's log"
)
