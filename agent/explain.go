// Explain: what an operator can do about a failed attempt.

package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
)

// explain is err's text and, where there is one, the remedy, in one line.
func explain(err error) string {
	if err == nil {
		return ""
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if r := remedy(err); r != "" {
		return text + " (" + r + ")"
	}
	return text
}

func remedy(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		host    x509.HostnameError
		record  tls.RecordHeaderError
		op      *net.OpError
	)
	switch {
	case errors.As(err, &unknown):
		return "the server's certificate is not from this cluster's authority: wrong address, or something on the way intercepts TLS"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate is expired or not yet valid: check this machine's clock"
	case errors.As(err, &host):
		return "add the address to the server's certificate with --advertise-address, or connect by a name that it has"
	case errors.As(err, &record):
		return "the address does not speak TLS: check the port"
	case errors.As(err, &op) && op.Op == "remote error":
		return alertRemedy(op.Err.Error())
	default:
		return ""
	}
}

// alertRemedy goes by the alert's text because package tls keeps the type to
// itself.
func alertRemedy(alert string) string {
	switch {
	case strings.Contains(alert, "expired certificate"):
		return "the server says that this node's certificate is expired: check both clocks, or join the node again with a new token"
	case strings.Contains(alert, "revoked"):
		return "the server says that this node's certificate is revoked: join the node again with a new token"
	case strings.Contains(alert, "unknown certificate authority"), strings.Contains(alert, "bad certificate"),
		strings.Contains(alert, "unknown certificate"), strings.Contains(alert, "certificate required"):
		return "the server does not accept this node's certificate: if the cluster was made anew, remove the agent's data directory and join with a new token"
	case strings.Contains(alert, "application protocol"):
		return "the address is no hawser server: check the port"
	default:
		return "the server refused the TLS handshake"
	}
}
