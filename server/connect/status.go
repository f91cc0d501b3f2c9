// The HTTP status of a failed dial: one table.

package connect

import (
	"net/http"
	"strings"

	"github.com/hawser-project/hawser/tunnel"
)

// An outcome is the status and the RFC 9209 error type for a Code.
type outcome struct {
	status int
	reason string
}

// outcomes is written here once and never changed.
var outcomes = map[tunnel.Code]outcome{
	tunnel.NoNode:      {http.StatusServiceUnavailable, "destination_unavailable"},
	tunnel.Parked:      {http.StatusServiceUnavailable, "destination_unavailable"},
	tunnel.Refused:     {http.StatusBadGateway, "connection_refused"},
	tunnel.Unreachable: {http.StatusBadGateway, "destination_ip_unroutable"},
	tunnel.Timeout:     {http.StatusGatewayTimeout, "connection_timeout"},
	tunnel.Denied:      {http.StatusForbidden, "http_request_denied"},
	tunnel.Draining:    {http.StatusServiceUnavailable, "destination_unavailable"},
	tunnel.Ambiguous:   {http.StatusBadGateway, "destination_not_found"},
	tunnel.Internal:    {http.StatusBadGateway, "proxy_internal_error"},
	tunnel.Canceled:    {http.StatusBadGateway, "connection_terminated"},
	tunnel.Unresolved:  {http.StatusBadGateway, "dns_error"},
	tunnel.Invalid:     {http.StatusBadRequest, "http_request_error"},
	tunnel.Replaced:    {http.StatusServiceUnavailable, "destination_unavailable"},
	tunnel.Lost:        {http.StatusBadGateway, "connection_terminated"},
	tunnel.Busy:        {http.StatusServiceUnavailable, "connection_limit_reached"},
	tunnel.Dead:        {http.StatusGatewayTimeout, "connection_timeout"},
	tunnel.Revoked:     {http.StatusBadGateway, "destination_not_found"},
}

func outcomeOf(c tunnel.Code) outcome {
	if o, ok := outcomes[c]; ok {
		return o
	}
	return outcomes[tunnel.Internal]
}

func httpStatus(c tunnel.Code) int { return outcomeOf(c).status }

// proxyStatus is the value of Proxy-Status: our name, the error type, and the text as a
// structured-field string (RFC 8941), which is printable ASCII.
func proxyStatus(c tunnel.Code, err error) string {
	details := strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(printable(clip(err.Error())))
	return `hawser; error=` + outcomeOf(c).reason + `; details="` + details + `"`
}

// printable has a question mark for each character that is not printable ASCII. So a text cannot end
// a line of the header.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
