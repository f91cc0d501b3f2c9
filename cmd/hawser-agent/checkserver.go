// hawser-agent check: the way to a server, and whether it would admit the node.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

const (
	// smallPacket is a bound that packets keep which an agent sends to join, less TLS's and
	// TCP's options.
	smallPacket = 1200
	// plainTimeout bounds the wait for an answer without TLS, maxPlainHeader its header.
	plainTimeout   = 3 * time.Second
	maxPlainHeader = 16 << 10
)

// checkServer checks the way to one server, from below. What stands on a check that failed is
// left out.
func (o *options) checkServer(ctx context.Context, l *checklist, c *bootstrap.Config, addr string) {
	host, _, _ := net.SplitHostPort(addr) // checkServers made it
	via, _ := proxyFor(addr)              // it has been checked
	found := []string{host}
	if _, err := netip.ParseAddr(host); err != nil && via == nil {
		if !l.check(ctx, "name "+host, func(ctx context.Context) (_ string, err error) {
			found, err = net.DefaultResolver.LookupHost(ctx, host)
			return strings.Join(found, ", "), err
		}) {
			return
		}
	}
	way := "way to " + addr
	if via != nil {
		way += " through proxy " + via.Host
	}
	if !l.check(ctx, way, func(ctx context.Context) (string, error) {
		return "it takes connections", reaches(ctx, agent.NewDial(proxyFor, false), addr)
	}) {
		return
	}
	o.checkUDP(ctx, l, addr, found)
	if len(c.Pins) > 0 {
		o.checkJoin(ctx, l, c, addr)
	} else { // it has its certificate, and trusts what it was given with that
		checkTunnel(ctx, l, addr)
	}
}

// checkJoin asks a server that takes connections as an agent does that joins.
func (o *options) checkJoin(ctx context.Context, l *checklist, c *bootstrap.Config, addr string) {
	small, large := *c, *c
	large.Dial = agent.NewDial(proxyFor, false)
	var p bootstrap.Probe
	if !l.check(ctx, "server "+addr, func(ctx context.Context) (text string, err error) {
		p, err = small.Probe(ctx, "https://"+addr, 0)
		if err != nil {
			return "", explained(ctx, c.Dial, addr, err)
		}
		if p.RefusesToken {
			return o.refused(c)
		}
		if p.NoToken {
			return "its CA is the one expected; there is no join token to show", nil
		}
		return "its CA is the one expected, and it knows the join token", nil
	}) {
		return
	}
	checkTunnel(ctx, l, addr)
	l.check(ctx, "clocks", func(context.Context) (string, error) {
		return clocks(p.Ahead)
	})
	l.check(ctx, "large packets", func(ctx context.Context) (string, error) {
		if _, err := large.Probe(ctx, "https://"+addr, checkPadding); err != nil {
			return "", o.noLargePackets(err)
		}
		return "they pass", nil
	})
}

// errNoHub is what it means that an API server answers at an address, and no hub.
var errNoHub = errors.New("an API server, but no hawser server, answers there; a hub beside a cluster is on 8132 by default")

// checkTunnel checks whether a server takes the tunnel: an API server may be another program than
// the hub.
func checkTunnel(ctx context.Context, l *checklist, addr string) {
	l.check(ctx, "tunnel "+addr, func(ctx context.Context) (string, error) {
		dial := agent.NewDial(proxyFor, true) // large packets have a check of their own
		return "a hawser server answers", explained(ctx, dial, addr, speaksTunnel(ctx, dial, addr))
	})
}

// speaksTunnel makes a TLS handshake that offers the tunnel's protocol alone. It sends and believes
// nothing after that.
func speaksTunnel(ctx context.Context, dial dialFunc, addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := tls.Client(conn, &tls.Config{
		ServerName: host, MinVersion: tls.VersionTLS13, NextProtos: []string{qmux.ALPN},
		InsecureSkipVerify: true, //nolint:gosec // nothing is sent or believed
	})
	err = c.HandshakeContext(ctx)
	if errors.Is(agent.Diagnose(addr, err), agent.ErrNotServer) || err == nil && c.ConnectionState().NegotiatedProtocol != qmux.ALPN {
		return errNoHub
	}
	return err
}

// noLargePackets says what it means that small packets pass and large ones do not. A node joins
// with small ones, and the tunnel takes to them, but for that of sshd.
func (o *options) noLargePackets(err error) error {
	const cure = "let ICMP pass, or lower the MTU of this machine's interface"
	if o.transport == setup.SSH {
		return fmt.Errorf("small ones pass and large ones do not: %s: %w", cure, err)
	}
	return warning{fmt.Errorf("small ones pass and large ones do not: the tunnel uses small ones, at a sixth less throughput; other programs on this machine will hang: %s: %w", cure, err)}
}

// clocks compares clocks, that of the server being so far ahead.
func clocks(ahead time.Duration) (string, error) {
	text := fmt.Sprintf("that of the server is %v ahead of this machine's", ahead)
	switch {
	case ahead == 0:
		return "that of the server and this machine's agree", nil
	case ahead < 0:
		text = fmt.Sprintf("that of the server is %v behind this machine's", -ahead)
	}
	if ahead.Abs() > clockOff {
		return "", fmt.Errorf("%s: set the wrong one", text)
	}
	return text, nil
}

// A dialFunc makes a connection.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// explained is the error of a probe over a connection that could be made, with what may be the
// cause of silence, or of HTTP in place of TLS.
func explained(ctx context.Context, dial dialFunc, addr string, err error) error {
	var (
		slow  net.Error
		noTLS tls.RecordHeaderError
	)
	if errors.As(err, &noTLS) && string(noTLS.RecordHeader[:]) == "HTTP/" {
		return fmt.Errorf("what answers there speaks HTTP without TLS%s: it may be a captive portal or a proxy on the way, or the port is another program's: %w", plainAnswer(ctx, dial, addr), err)
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return agent.Diagnose(addr, err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &slow) && slow.Timeout() {
		return fmt.Errorf("a connection is made and then nothing comes: packets above %d bytes may not pass, or something on the way accepts and does not answer: %w", smallPacket, err)
	}
	return err
}

// plainAnswer is what is answered to an HTTP request without TLS: the status and, of a redirect,
// where to. That names a captive portal.
func plainAnswer(ctx context.Context, dial dialFunc, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, plainTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return ""
	}
	t := &http.Transport{DialContext: dial, DisableKeepAlives: true, MaxResponseHeaderBytes: maxPlainHeader}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	if to := resp.Header.Get("Location"); to != "" {
		return fmt.Sprintf(" (%.40q, to %.200q)", resp.Status, to)
	}
	return fmt.Sprintf(" (%.40q)", resp.Status)
}

// refused says what it means that the server refuses the join token: nothing for a node that has a
// valid certificate.
func (o *options) refused(c *bootstrap.Config) (string, error) {
	if needed, err := c.NeedsToken(); needed || err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", o.tokenFrom, bootstrap.ErrTokenRejected), err)
	}
	return "its CA is the one expected; it refuses the join token, which a node that has its certificate does not need", nil
}

// reaches makes a connection and closes it.
func reaches(ctx context.Context, dial dialFunc, addr string) error {
	conn, err := dial(ctx, "tcp", addr)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil {
		return fmt.Errorf("no answer within %v: %w", checkTimeout, err)
	}
	if err != nil {
		return agent.Diagnose(addr, err)
	}
	return conn.Close()
}

// checkUDP checks whether the server answers by UDP at one of its addresses.
func (o *options) checkUDP(ctx context.Context, l *checklist, addr string, found []string) {
	what := "UDP to " + addr
	if o.transport != overquic.Name {
		l.unused(what, "--transport "+o.transport+" uses TCP alone")
		return
	}
	l.check(ctx, what, func(ctx context.Context) (string, error) { return udpIsAnswered(ctx, addr, found) })
}

// udpIsAnswered says which of the addresses of a server's name answer. One is enough, since an
// agent races them. After the first answer the others have as long again, and a second more.
func udpIsAnswered(ctx context.Context, addr string, found []string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		ip  string
		err error
	}
	answers, began := make(chan answer, len(found)), time.Now()
	for _, ip := range found {
		go func() { answers <- answer{ip, answersUDP(ctx, host, net.JoinHostPort(ip, port))} }()
	}
	var well, silent []string
	var failed []error
	for range found {
		a := <-answers
		if a.err != nil {
			silent, failed = append(silent, a.ip), append(failed, a.err)
			continue
		}
		if well = append(well, a.ip); len(well) == 1 {
			patience := time.Since(began) + time.Second
			defer time.AfterFunc(patience, cancel).Stop()
		}
	}
	switch {
	case len(well) == 0:
		return "", fmt.Errorf("no answer: let UDP pass, or use --transport qmux: %w", errors.Join(failed...))
	case len(silent) > 0:
		return fmt.Sprintf("%s answers, and %s does not: an agent takes what answers", strings.Join(well, ", "), strings.Join(silent, ", ")), nil
	}
	return "it is answered", nil
}

// answersUDP begins a handshake of QUIC. Without a client certificate no session comes of it; how
// the server says so does not matter.
func answersUDP(ctx context.Context, host, addr string) error {
	s, err := overquic.Transport().Dial(ctx, addr, tunnel.Options{TLS: &tls.Config{ServerName: host, MinVersion: tls.VersionTLS13}})
	switch tunnel.CodeOf(err) {
	case 0:
		return s.Close()
	case tunnel.Unreachable, tunnel.Timeout, tunnel.Refused, tunnel.Unresolved, tunnel.Canceled:
		return err
	}
	return nil
}
