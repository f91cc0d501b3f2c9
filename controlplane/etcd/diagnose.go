// Why a cluster run elsewhere does not answer.

package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// probeTimeout bounds how long a member is looked at.
	probeTimeout = 5 * time.Second
	// refusalWait is how long a member that has shown its certificate may take to refuse
	// the client's: in TLS 1.3 it says so after the handshake.
	refusalWait = time.Second
)

// A Cause is what keeps a cluster from being used.
type Cause int

// The causes, from that which tells most about all members to that which tells least.
const (
	// NoQuorum: members can be reached, and cannot agree on an answer.
	NoQuorum Cause = iota
	// Untrusted: a member's certificate is not of the authorities given, or not for the
	// name in its URL.
	Untrusted
	// Refused: a member does not accept the client certificate, or that there is none.
	Refused
	// Unreachable: no member can be connected to.
	Unreachable
)

// A DialError says why Dial has failed, of one member, or of all where all are alike.
type DialError struct {
	Cause  Cause
	Server string // URLs, separated by commas
	Err    error  // what happened
}

// Error is one line.
func (e *DialError) Error() string {
	what := map[Cause]string{
		NoQuorum: "members can be reached but do not answer", Untrusted: "its certificate is not believed",
		Refused: "it refuses the client", Unreachable: "cannot be reached",
	}[e.Cause]
	return fmt.Sprintf("etcd: %s: %s: %v", e.Server, what, e.Err)
}

// Unwrap returns what happened.
func (e *DialError) Unwrap() error { return e.Err }

// diagnose looks at each member, which says more than the client's answer does: that is
// of one of them, and in the words of a library.
func (e External) diagnose(ctx context.Context, conf *tls.Config, answer error) error {
	all := strings.Join(e.Servers, ",")
	worst := &DialError{Cause: Unreachable, Server: all}
	reached := false
	for _, server := range e.Servers {
		err := e.probe(ctx, conf, server)
		switch {
		case err == nil:
			reached = true
		case err.Cause != Unreachable:
			return err
		case worst.Err == nil:
			worst.Err = err.Err
		}
	}
	switch code := codeOf(answer); {
	case reached && (code == codes.Unauthenticated || code == codes.PermissionDenied):
		return &DialError{Refused, all, answer}
	case reached:
		return &DialError{NoQuorum, all, answer}
	}
	return worst
}

// probe connects to a member and shakes hands.
func (e External) probe(ctx context.Context, conf *tls.Config, server string) *DialError {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	u, err := url.Parse(server)
	if err != nil {
		return &DialError{Unreachable, server, err}
	}
	dial, network, addr := e.Dial, "tcp", u.Host
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if strings.HasPrefix(u.Scheme, "unix") {
		network, addr = "unix", u.Host+u.Path
	}
	c, err := dial(ctx, network, addr)
	if err != nil {
		return &DialError{Unreachable, server, err}
	}
	defer c.Close()
	if !strings.HasSuffix(u.Scheme, "s") {
		return nil
	}
	if conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	conf = conf.Clone()
	conf.ServerName, conf.NextProtos = u.Hostname(), []string{"h2"}
	return shakeHands(ctx, tls.Client(c, conf), server)
}

func shakeHands(ctx context.Context, c *tls.Conn, server string) *DialError {
	err := c.HandshakeContext(ctx)
	if err == nil {
		if err = c.SetReadDeadline(time.Now().Add(refusalWait)); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
	}
	var untrusted *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case errors.As(err, &untrusted):
		return &DialError{Untrusted, server, err}
	case errors.As(err, &op) && op.Op == "remote error": // an alert
		return &DialError{Refused, server, err}
	case err == nil || op != nil && op.Timeout():
		return nil
	}
	return &DialError{Unreachable, server, err}
}
