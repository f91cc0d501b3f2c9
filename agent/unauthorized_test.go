// Tests of certificates that servers refuse, at the beginning of sessions and beside them.

package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A gate is a transport to servers that may refuse the node's certificate.
type gate struct {
	mu     sync.Mutex
	alerts map[string]tls.AlertError // by server
	asked  []time.Time               // when the attempts began that Config.Rejected was called for
}

func (g *gate) refuse(alert tls.AlertError, servers ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alerts = map[string]tls.AlertError{}
	for _, s := range servers {
		g.alerts[s] = alert
	}
}

func (g *gate) rejected(began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, began)
}

// calls returns how often Config.Rejected was called.
func (g *gate) calls() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.asked)
}

func (g *gate) config(h *servers, names ...string) Config {
	inner := h.exchange.Transport()
	dial := inner.Dial
	inner.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
		g.mu.Lock()
		alert, refused := g.alerts[addr]
		g.mu.Unlock()
		if refused {
			return nil, &net.OpError{Op: "remote error", Err: alert}
		}
		return dial(ctx, addr, o)
	}
	return Config{Servers: names, Transport: inner, Rejected: g.rejected}
}

// stream starts agents with one server, and a stream through them.
func (g *gate) stream(t *testing.T, h *servers) (*startedGroup, net.Conn) {
	h.identity = func(name string) string { return name }
	h.open("a:1")
	h.echo("apiserver:443")
	a := h.startGroup(g.config(h, "a:1"), 1)
	pass(time.Second)
	stream, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
	if err != nil {
		t.Fatal(err)
	}
	return a, stream
}

// TestCertificateIsRefused: the node is told to get another certificate once each of its servers
// has refused the present one, and not while it has a session, nor if it has expired.
func TestCertificateIsRefused(t *testing.T) {
	const bad, expired, unknown = tls.AlertError(42), tls.AlertError(45), tls.AlertError(48)
	for name, tc := range map[string]struct {
		alert   tls.AlertError
		refuses []string
		calls   bool
	}{
		"by all, superseded":        {bad, []string{"a:1", "b:1"}, true},
		"by all, of another":        {unknown, []string{"a:1", "b:1"}, true},
		"by all, as it has expired": {expired, []string{"a:1", "b:1"}, false},
		"by one":                    {bad, []string{"a:1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				h.identity = func(name string) string { return name }
				h.open("a:1")
				h.open("b:1")
				var g gate
				g.refuse(tc.alert, tc.refuses...)
				a := h.startGroup(g.config(h, "a:1", "b:1"), 2)
				pass(10 * time.Minute)
				if got := g.calls() > 0; got != tc.calls {
					t.Errorf("told %d times", g.calls())
				}
				for _, line := range a.log.lines("level=ERROR") {
					if strings.Contains(line, "remove the agent's data directory") {
						t.Errorf("it says to lose the key of the node: %s", line)
					}
				}
				if want := len(tc.refuses) == 1; a.State().Connected != want {
					t.Errorf("connected: %t, %+v", a.State().Connected, a.State())
				}
			})
		})
	}
}

// TestRefusedWhileOthersAreDown: a server that does not answer does not keep the node from being told
// that the others refuse its certificate, whatever it said before. A server that answers otherwise does.
func TestRefusedWhileOthersAreDown(t *testing.T) {
	const down, busy, joined = "down", "busy", "joined"
	for name, want := range map[string]bool{down: true, busy: false, joined: true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				h.identity = func(name string) string { return name }
				h.open("a:1")
				if name == busy {
					h.opinion = func(string) error { return &tunnel.Goodbye{Code: tunnel.Busy, Text: "try later"} }
				}
				shut := func() {}
				if name != down {
					shut = h.open("b:1")
				}
				var g gate
				a := g.config(h, "a:1", "b:1")
				g.refuse(42, "a:1")
				h.startGroup(a, 2)
				pass(time.Minute)
				if n := g.calls(); n > 0 && name != down {
					t.Fatalf("told %d times while one server accepts the certificate", n)
				}
				if name == joined {
					shut()
					pass(2 * time.Minute)
				}
				if got := g.calls() > 0; got != want {
					t.Errorf("told %d times", g.calls())
				}
			})
		})
	}
}

// TestShortLossIsNoRefusal: one server refuses the certificate all the time, which does not count
// beside a session with another one, nor while that is made again. An older server does not say who
// it is.
func TestShortLossIsNoRefusal(t *testing.T) {
	for name, identity := range map[string]func(string) string{"known": func(name string) string { return name }, "older": nil} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				h.identity = identity
				h.open("a:1")
				shut := h.open("b:1")
				var g gate
				g.refuse(42, "a:1")
				a := h.startGroup(g.config(h, "a:1", "b:1"), 2)
				pass(time.Hour)
				shut()
				pass(8 * time.Second)
				h.open("b:1")
				pass(time.Hour)
				if n := g.calls(); n > 0 || !a.State().Connected {
					t.Errorf("told %d times, %+v", n, a.State())
				}
			})
		})
	}
}

// TestRefusalsBesideASessionDoNotCount: the time of refusals begins once the node has no session, not
// at the last refusal before.
func TestRefusalsBesideASessionDoNotCount(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		shut := h.open("b:1")
		a := h.startGroup(Config{Servers: []string{"b:1"}}, 1)
		pass(time.Minute)
		refused := func() bool { return a.shared.refuses("a:1", time.Now(), 2) }
		if refused() {
			t.Error("a refusal beside a session counts")
		}
		pass(silentFor)
		shut()
		pass(time.Second)
		if refused() {
			t.Error("the time of the session counts")
		}
		pass(silentFor)
		if !refused() {
			t.Error("the time without a session does not count")
		}
	})
}

// TestAPIRefusesCertificate: when the API refuses a certificate and sessions go on, that is logged
// once a minute, and a server is asked in another session, which ends no stream.
func TestAPIRefusesCertificate(t *testing.T) {
	answers := func(g *startedGroup, d time.Duration, status ...int) {
		for end := time.Now().Add(d); time.Now().Before(end); pass(time.Second) {
			for _, s := range status {
				g.Answered(s)
			}
		}
	}
	for name, tc := range map[string]struct {
		statuses []int
		refuses  bool
		calls    int
		sessions int
		lines    int
	}{
		"refused by both":     {[]int{http.StatusUnauthorized}, true, 2, 1, 7},
		"refused by the API":  {[]int{http.StatusUnauthorized}, false, 0, 3, 7},
		"some are refused":    {[]int{http.StatusUnauthorized, http.StatusNotFound}, true, 0, 1, 7},
		"the API is not well": {[]int{http.StatusServiceUnavailable}, true, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				var gate gate
				g, stream := gate.stream(t, h)
				if tc.refuses {
					gate.refuse(42, "a:1")
				}
				answers(g, 6*time.Minute+30*time.Second, tc.statuses...)
				if gate.calls() != tc.calls || h.greetings() != tc.sessions {
					t.Errorf("told %d times, want %d; %d sessions, want %d", gate.calls(), tc.calls, h.greetings(), tc.sessions)
				}
				if n := len(g.log.lines("the API refuses this node's certificate")); n != tc.lines {
					t.Errorf("%d lines in six and a half minutes, want %d", n, tc.lines)
				}
				if !g.State().Connected {
					t.Error("the session has ended")
				}
				exchangeText(t, stream)
			})
		})
	}
}

// TestAPIIsNotBelieved: that the API server's certificate is not believed is logged once a minute, with
// the remedy, while the session goes on.
func TestAPIIsNotBelieved(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		g, stream := new(gate).stream(t, h)
		for end := time.Now().Add(150 * time.Second); time.Now().Before(end); pass(time.Second) {
			g.Failed(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
			g.Failed(context.DeadlineExceeded)
		}
		lines := g.log.lines("no request reaches the API")
		if n := len(lines); n != 3 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[0], "remove pki/ca.crt alone") {
			t.Errorf("%d lines in two and a half minutes: %s", n, lines)
		}
		exchangeText(t, stream)
	})
}

// TestGivenCertificateIsNotTheAPIs: an API that never accepted a given certificate takes those of
// another authority, as beside a server with --agent-ca. That is told once, and so is the server's
// answer.
func TestGivenCertificateIsNotTheAPIs(t *testing.T) {
	for name, accepted := range map[string]bool{"never accepted": false, "accepted before": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				h.identity = func(name string) string { return name }
				h.open("a:1")
				c := new(gate).config(h, "a:1")
				c.CertificateFile = "/x/client.pem"
				g := h.startGroup(c, 1)
				pass(time.Second)
				if accepted {
					g.Answered(http.StatusForbidden)
				}
				for end := time.Now().Add(time.Hour); time.Now().Before(end); pass(10 * time.Second) {
					g.Answered(http.StatusUnauthorized)
				}
				warned, told, asked := len(g.log.lines("level=WARN")), len(g.log.lines("with --agent-ca")), len(g.log.lines("asked this server about"))
				if (warned > 0) != accepted || (told == 1) == accepted || asked != 1 {
					t.Errorf("%d warnings, told %d times, %d answers", warned, told, asked)
				}
				if n := h.greetings(); n < 10 {
					t.Errorf("the server was asked %d times", n-1)
				}
			})
		})
	}
}

// TestLongRefusalEndsNoStream: while the API refuses the certificate and the servers accept it, the
// streams go on, however long that is, also past MoveTimeout.
func TestLongRefusalEndsNoStream(t *testing.T) {
	for name, refused := range map[string]time.Duration{"for a while": 20 * time.Second, "half an hour": 30 * time.Minute, "all the time": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				a, stream := new(gate).stream(t, h)
				for end := time.Now().Add(refused); time.Now().Before(end); pass(time.Second) {
					a.Answered(http.StatusUnauthorized)
				}
				pass(2 * DefaultMoveTimeout)
				if n := h.greetings(); n < 2 {
					t.Errorf("the server was not asked: %d hellos", n)
				}
				exchangeText(t, stream)
			})
		})
	}
}

// TestAskedUntilAnswered: a server that was busy each time it was asked is asked again, a minute later.
func TestAskedUntilAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		const busy, bad = tls.AlertError(80), tls.AlertError(42)
		var gate gate
		g, _ := gate.stream(t, h)
		gate.refuse(busy, "a:1")
		for second := range 17*60 + 30 {
			if second == 16*60 {
				gate.refuse(bad, "a:1")
			}
			g.Answered(http.StatusUnauthorized)
			pass(time.Second)
		}
		if n := gate.calls(); n != 1 {
			t.Errorf("told %d times in the minute and a half after that, want once", n)
		}
		if lines := g.log.lines("asked this server about"); len(lines) > 0 {
			t.Errorf("a busy server has said nothing of the certificate: %s", lines)
		}
		if n := len(g.log.lines("could not ask this server about")); n != 1 {
			t.Errorf("that it could not be asked was logged %d times, want once", n)
		}
	})
}

// TestRenewedCertificateIsTriedAtOnce: an agent does not wait for the end of its back-off.
func TestRenewedCertificateIsTriedAtOnce(t *testing.T) {
	for range 5 { // the back-off is random
		bubble(t, func(t *testing.T, h *servers) {
			h.open("a:1")
			var gate gate
			gate.refuse(45, "a:1")
			g := h.startGroup(gate.config(h, "a:1"), 1)
			pass(time.Hour)
			gate.refuse(45)
			g.Renewed()
			pass(2 * DefaultMinBackoff)
			if !g.State().Connected {
				t.Error("a new certificate waits for the back-off")
			}
		})
	}
}

// TestNextCertificateIsRefused: a certificate that has replaced a refused one is asked about as soon as
// that was.
func TestNextCertificateIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		var gate gate
		g, _ := gate.stream(t, h)
		gate.refuse(42, "a:1")
		for i := range 3 {
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); pass(time.Second) {
				g.Answered(http.StatusUnauthorized)
			}
			if n := gate.calls(); n != i+1 {
				t.Fatalf("told %d times of %d certificates", n, i+1)
			}
			g.Renewed()
		}
	})
}

// TestNodesAskApart: nodes that are refused together do not ask together.
func TestNodesAskApart(t *testing.T) {
	began := time.Now()
	at := map[time.Duration]int{}
	for range 100 {
		var u unauthorized
		for after := time.Duration(0); ; after += time.Second {
			if _, ask := u.note(http.StatusUnauthorized, began.Add(after)); ask {
				at[after]++
				break
			}
		}
	}
	for after, n := range at {
		if after < refusedFor || after > refusedFor+askSpread || n > 40 {
			t.Errorf("%d of 100 nodes ask after %v", n, after)
		}
	}
}

// TestDeletedNodeIsNotRejected: a node that was deleted is not told to get another certificate, though
// a server that has not said so refuses the present one.
func TestDeletedNodeIsNotRejected(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.identity = func(name string) string { return name }
		h.open("a:1")
		var g gate
		h.startGroup(g.config(h, "a:1", "b:1"), 2)
		pass(time.Second)
		m := <-h.sessions
		g.refuse(42, "a:1", "b:1")
		if err := m.control.HangUp(&tunnel.Goodbye{Code: tunnel.Revoked, Text: "the Node was deleted"}); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		if n := g.calls(); n > 0 {
			t.Errorf("it was told %d times", n)
		}
	})
}
