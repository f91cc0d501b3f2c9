// Proxy errors: what a proxy that makes no tunnel says, and what an operator should do.

package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// proxyBodyTimeout bounds the wait for the page that comes with a refusal.
	proxyBodyTimeout = time.Second
	// maxProxyBody bounds how much of it is read, maxProxyLine how much is told, in bytes.
	maxProxyBody = 4 << 10
	maxProxyLine = 120
	// maxSchemes bounds how many schemes are told.
	maxSchemes = 5
)

// A proxyError is a proxy's refusal.
type proxyError struct {
	proxy  string // without the password
	server string
	status int    // 0 if no request was sent
	text   string // the status line
	sent   bool   // whether credentials were sent
	// schemes are the ways to authenticate that it takes (RFC 9110, 11.7.1).
	schemes []string
	says    string // the first line of the page that comes with it
}

func (e *proxyError) Error() string {
	if e.status == 0 {
		return fmt.Sprintf("proxy %s cannot carry QUIC", e.proxy)
	}
	text := fmt.Sprintf("it answers %q to CONNECT %s", e.text, e.server)
	if e.says != "" {
		text += fmt.Sprintf(" and says %q", e.says)
	}
	if e.status == http.StatusProxyAuthRequired {
		user := "no user"
		if e.sent {
			user = "a user"
		}
		text += fmt.Sprintf(" (it takes %s; HTTPS_PROXY has %s)", cmp.Or(strings.Join(e.schemes, ", "), "no scheme that it names"), user)
	}
	return text
}

// remedy is what an operator should do; empty if a retry may succeed.
func (e *proxyError) remedy() string {
	switch e.status {
	case 0:
		return "use --transport qmux, or put " + e.server + " into NO_PROXY"
	case http.StatusProxyAuthRequired:
		if len(e.schemes) > 0 && !slices.ContainsFunc(e.schemes, func(s string) bool { return strings.EqualFold(s, "Basic") }) {
			return "this agent can send Basic credentials alone: have the proxy take them, or let this machine through without, or put the server into NO_PROXY"
		}
		if e.sent {
			return "it does not accept the user name and password in HTTPS_PROXY"
		}
		return "it wants a user name and a password: set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT"
	case http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusUnauthorized:
		return "have the proxy allow CONNECT to " + e.server + ", or put the server into NO_PROXY"
	default:
		return ""
	}
}

// A proxyTLSError is a failed TLS handshake with an https:// proxy. It does not unwrap to its cause,
// which would be taken for the server's.
type proxyTLSError struct {
	proxy string // HOST:PORT, without the password
	cause error
}

// proxyTLS is err as the error of the TLS handshake with a proxy; nil stays nil.
func proxyTLS(via *url.URL, err error) error {
	if err == nil {
		return nil
	}
	return &proxyTLSError{proxyAddr(via), err}
}

// Error says whose TLS handshake failed.
func (e *proxyTLSError) Error() string { return "TLS handshake with the proxy: " + e.cause.Error() }

// remedy is what an operator should do.
func (e *proxyTLSError) remedy() string {
	var (
		host  x509.HostnameError
		ca    x509.UnknownAuthorityError
		bad   x509.CertificateInvalidError
		noTLS tls.RecordHeaderError
		plain = "set HTTPS_PROXY to http://" + e.proxy
	)
	switch {
	case errors.As(e.cause, &host):
		return "set HTTPS_PROXY to a name that the proxy's certificate has, or have the proxy get a certificate for this one"
	case errors.As(e.cause, &ca):
		return "add the authority of the proxy's certificate to this machine's trust store, or have SSL_CERT_FILE name it"
	case errors.As(e.cause, &bad) && bad.Reason == x509.Expired:
		return "check this machine's clock and whether the proxy's certificate has expired"
	case errors.As(e.cause, &bad):
		return "have the proxy get a valid certificate for a TLS server"
	case errors.As(e.cause, &noTLS):
		return "the proxy does not speak TLS: " + plain
	case alerted(e.cause):
		return "the proxy refuses TLS with this machine: if it wants a client certificate, have it let this machine through without one, or put the server into NO_PROXY"
	default:
		return "if the proxy does not speak TLS, " + plain
	}
}

// alerted reports whether err is a TLS alert of the peer.
func alerted(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// schemesOf are the schemes of all challenges. A header may have several, separated by commas as
// the parameters of one are.
func schemesOf(h http.Header) []string {
	var found []string
	for _, challenge := range strings.Split(strings.Join(h.Values("Proxy-Authenticate"), ","), ",") {
		scheme, _, _ := strings.Cut(strings.TrimSpace(challenge), " ")
		if schemeName.MatchString(scheme) && !slices.Contains(found, scheme) && len(found) < maxSchemes {
			found = append(found, scheme)
		}
	}
	return found
}

var (
	schemeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,30}$`)
	// markup is what a page shows nothing of.
	markup = regexp.MustCompile(`(?is)<(?:style|script)\b.*?</(?:style|script)>|<!--.*?-->|<[^>]*>`)
)

// firstLine is the first line of a page that has text; empty if there is none.
func firstLine(body io.Reader) string {
	page, _ := io.ReadAll(io.LimitReader(body, maxProxyBody)) // of a page that is cut short the beginning will do
	for line := range strings.Lines(markup.ReplaceAllString(string(page), "\n")) {
		if line = strings.TrimSpace(html.UnescapeString(line)); line != "" {
			return strings.ToValidUTF8(line[:min(len(line), maxProxyLine)], "")
		}
	}
	return ""
}

// A silentError means that a proxy took a connection and did not answer in time.
type silentError struct {
	server string
	after  time.Duration
	cause  error
}

// silent is the cause of the end of an exchange with a proxy, which is told as silence if that is
// what it was.
func silent(cause error, server string, after time.Duration) error {
	if !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return &silentError{server, after, cause}
}

// Error says what was waited for.
func (e *silentError) Error() string {
	return fmt.Sprintf("it takes connections and does not answer CONNECT %s within %v: it may not reach the server, or be no HTTP proxy", e.server, e.after.Round(time.Second))
}

// Unwrap gives the end of the context.
func (e *silentError) Unwrap() error { return e.cause }
