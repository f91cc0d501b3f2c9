package tunnelhealth

// Probes: asking a kubelet whether it is there.

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

const (
	kubeletPort = "10250"
	// retryAfter is how soon a node is asked again that has failed once: only two
	// failures in a row are believed.
	retryAfter = 3 * time.Second
	// maxAnswer is how much of an answer is looked at, in bytes.
	maxAnswer = 256
	// textKept is for how long the text of a failure is not replaced by that of the next,
	// so that a text which changes each time is no write each time.
	textKept = 5 * time.Minute
)

// A result is what the probes of a session have found.
type result struct {
	session uint64
	err     string    // of one that is believed, at most textKept old; empty is success
	at      time.Time // of err
	since   time.Time
	certain bool // there was one to be believed
	failed  int  // failures in a row
}

// next is the result after another probe.
func (r result) next(session uint64, err error, now time.Time) result {
	if r.session != session {
		r = result{session: session}
	}
	if err == nil {
		if !r.certain || r.err != "" {
			r.since = now
		}
		r.err, r.certain, r.failed = "", true, 0
		return r
	}
	if r.failed == 0 && (!r.certain || r.err == "") {
		r.since = now
	}
	if r.failed++; r.failed >= 2 {
		if r.err == "" || now.Sub(r.at) >= textKept {
			r.err, r.at = err.Error(), now
		}
		r.certain = true
	}
	return r
}

func newClient(c Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: c.Dial, TLSClientConfig: c.TLS,
			// A connection that works is no proof that the next will: each probe
			// makes its own, and none is kept on thousands of nodes.
			DisableKeepAlives:   true,
			TLSHandshakeTimeout: c.ProbeTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// probe asks an attached node's kubelet. It says when to ask again, zero if only
// another change calls for that, and whether the result is another.
func (c *Controller) probe(ctx context.Context, node string) (again time.Duration, changed bool) {
	if c.probes.Wait(ctx) != nil {
		return 0, false
	}
	if _, err := c.nodes.Get(node); err != nil {
		return 0, false // there is nowhere to write it
	}
	before, ok := c.cfg.Source.Observe(node)
	if !ok || before.State != evidence.Attached || before.Elsewhere {
		return 0, false
	}
	began := time.Now()
	err := c.ask(ctx, node)
	if ctx.Err() != nil {
		return 0, false
	}
	after, ok := c.cfg.Source.Observe(node)
	if !ok || after.State != evidence.Attached || after.Session != before.Session || after.Elsewhere {
		return 0, false // what failed was the tunnel, and its end is a change
	}
	c.metrics.probed(err, time.Since(began))
	again = c.cfg.ProbePeriod*9/10 + rand.N(c.cfg.ProbePeriod/5+1)
	c.memo(node, func(m *memo) {
		was := m.probe
		m.probe = was.next(after.Session, err, time.Now())
		changed = was != m.probe && m.probe.certain
		changed = changed || shown(m.rtt, after.RTT) != m.rtt
		if err != nil && m.probe.failed == 1 {
			again = min(again, retryAfter)
		}
	})
	return again, changed
}

// ask is one probe.
func (c *Controller) ask(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ProbeTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+node+":"+kubeletPort+"/healthz", http.NoBody)
	if err != nil {
		return fmt.Errorf("ask the kubelet of %s: %w", node, err)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		var about *url.Error
		if errors.As(err, &about) { // whose text names the URL, which the reader knows
			err = about.Err
		}
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired { // whose text has the time
			from, to := invalid.Cert.NotBefore.UTC(), invalid.Cert.NotAfter.UTC()
			return fmt.Errorf("its certificate is valid from %s to %s", from.Format(time.RFC3339), to.Format(time.RFC3339))
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %v", c.cfg.ProbeTimeout)
		}
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	refused := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	if resp.StatusCode != http.StatusOK && (!refused || !c.cfg.Stranger) {
		return fmt.Errorf("%s: %s", resp.Status, strings.ToValidUTF8(strings.TrimSpace(string(said)), ""))
	}
	return nil
}
