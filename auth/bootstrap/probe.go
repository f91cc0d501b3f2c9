// This file finds out, before a machine joins, whether a server would take it.

package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxProbed bounds what is read of an answer that nobody needs.
const maxProbed = 64 << 10

// A Probe is what a server has shown to a machine that has not joined.
type Probe struct {
	// Ahead is by how much the server's clock is ahead of this machine's, to the second.
	// Zero if the server did not say its time.
	Ahead time.Duration
	// RefusesToken says that the server does not know the join token, or not any more.
	RefusesToken bool
	// NoToken says that there was none to show.
	NoToken bool
}

// Probe asks one server, https://HOST:PORT, for its version, and believes it as Join does: by
// Config.Pins. It shows the join token, if there is one, asks for nothing by it, and writes no
// file. Padding is how many bytes the request has beside what it needs: more than a packet of
// the path takes finds out whether large packets get there. The error is one of Join's.
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+"/version", nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "hawser-agent")
	req.Header.Set("X-Padding", strings.Repeat("x", padding))
	var trip http.RoundTripper = heedful{transport}
	if !p.NoToken {
		trip = bearer{trip, token}
	}
	resp, err := trip.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", server, err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxProbed) // nobody needs it
	p.RefusesToken = resp.StatusCode == http.StatusUnauthorized && !p.NoToken
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		p.Ahead = at.Sub(time.Now().Truncate(time.Second))
	}
	return nil
}
