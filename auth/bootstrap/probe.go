// This file checks, before a machine joins, whether a server would admit it.

package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

// maxProbed bounds how much of the answer is read.
const maxProbed = 64 << 10

// A Probe is the result of checking a server before joining.
type Probe struct {
	// Ahead is how far the server's clock is ahead of this machine's, to the second; negative
	// if it is behind. It is zero if the server did not send its time, and if the difference
	// may come from the time that the request took.
	Ahead time.Duration
	// RefusesToken is whether the server refused the join token.
	RefusesToken bool
	// NoToken is whether there was no join token.
	NoToken bool
}

// Probe asks one server, https://HOST:PORT, for its API, and verifies it as Join does, by
// Config.Pins. It sends the join token, if there is one, requests no certificate, and writes
// no file. padding is the number of extra bytes in the request: more than fit in a packet
// test whether large packets arrive. The error is one of Join's.
func (c *Config) Probe(ctx context.Context, server string, padding int) (p Probe, err error) {
	u, err := parseServer(server)
	if err != nil {
		return p, err
	}
	token, err := c.token()
	if p.NoToken = errors.Is(err, errNoToken); err != nil && !p.NoToken {
		return p, err
	}
	ask := func(by *pinned) error { return c.probe(ctx, u.String(), token, padding, by, &p) }
	by := &pinned{host: cmp.Or(c.apiServerName(), u.Hostname()), pins: c.Pins}
	if err = ask(by); c.unnamed(err) && !p.NoToken {
		by, _, err = c.named(ctx, u.String(), token, err)
		if err == nil {
			err = ask(by)
		}
	}
	return p, err
}

func (c *Config) probe(ctx context.Context, server string, token Token, padding int, by *pinned, p *Probe) error {
	transport := c.transport(by.config())
	defer transport.CloseIdleConnections()
	// Everybody may read /version, whatever the token; /api takes a user.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+"/api", nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "hawser-agent")
	req.Header.Set("X-Padding", strings.Repeat("x", padding))
	var trip http.RoundTripper = busyTransport{transport}
	if !p.NoToken {
		trip = bearer{trip, token}
	}
	sent := time.Now()
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = time.Now() }}
	resp, err := trip.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	received := time.Now()
	if err != nil {
		return fmt.Errorf("ask %s for its API: %w", server, err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxProbed) // it is not used
	p.RefusesToken = resp.StatusCode == http.StatusUnauthorized && !p.NoToken
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		p.Ahead = ahead(at, sent, received)
	}
	return nil
}

// ahead is how far a clock is ahead of ours, by which it said its whole seconds, date, between sent
// and received. If that may be nothing it is zero, else the middle of what it may be.
func ahead(date, sent, received time.Time) time.Duration {
	least, most := date.Sub(received), date.Add(time.Second).Sub(sent)
	if least <= 0 && most >= 0 {
		return 0
	}
	return ((least + most) / 2).Round(time.Second)
}
