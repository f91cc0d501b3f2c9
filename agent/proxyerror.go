// Proxy errors: what a proxy that makes no tunnel says, and what an operator should do.

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
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
