// Reach: one attempt to establish a session, from the server's name to its welcome.

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// connectTimeout bounds one attempt: certificate, connection, handshake and hello. It
// suffices for a round trip of three seconds with 20 % packet loss.
const connectTimeout = 45 * time.Second

// keepsKey is the metadata of the hello in which a migrating agent lists the older sessions
// that it keeps: their sequence numbers, the latest first.
const keepsKey = "keeps"

// errUnwanted is the error of an attempt that is no longer needed.
var errUnwanted = errors.New("not needed any more")

// A plan has the parameters of an attempt.
type plan struct {
	server   string
	sequence uint64
	keeps    []uint64 // sessions that are kept beside the new one, the latest first
	// wanted is called before the hello is sent, which commits both ends. If it returns false
	// the attempt ends. Nil means that it goes on.
	wanted func() bool
}

// meta is the metadata of the hello.
func (a *Agent) meta(keeps []uint64) tunnel.Meta {
	m := tunnel.Meta{}
	if a.cfg.Version != "" {
		m["version"] = a.cfg.Version
	}
	if len(keeps) > 0 {
		texts := make([]string, len(keeps))
		for i, n := range keeps {
			texts[i] = strconv.FormatUint(n, 10)
		}
		m[keepsKey] = strings.Join(texts, ",")
	}
	return m
}

// connect makes one attempt. Its error is a *Refusal if a retry cannot succeed.
func (a *Agent) connect(ctx context.Context, p plan) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var conf *tls.Config
	if a.cfg.TLS != nil {
		var err error
		if conf, err = a.cfg.TLS(ctx); err != nil {
			return nil, fmt.Errorf("prepare TLS: %w", err)
		}
	}
	session, err := a.dialSession(ctx, p.server, conf)
	if err != nil {
		return nil, a.diagnose(p.server, err)
	}
	if p.wanted != nil && !p.wanted() {
		_ = session.Close() // it has no user
		return nil, errUnwanted
	}
	hello := tunnel.Hello{Node: a.cfg.NodeName, Instance: a.shared.instance, Sequence: p.sequence, Meta: a.meta(a.shared.beside(p.keeps))}
	control, welcome, err := tunnel.Greet(ctx, session, hello)
	if err != nil {
		err = a.diagnose(p.server, causeOf(ctx, session, err))
		_ = session.Close() // the greeting's error is returned
		return nil, err
	}
	limit := tunnel.Options{MaxStreams: a.cfg.MaxStreams}.Streams()
	l := &link{
		agent: a, server: p.server, session: session, control: control, welcome: welcome,
		sequence: p.sequence, since: time.Now(),
		log:     a.log.With("server", p.server, "session", welcome.Session),
		streams: occupancy{limit: limit, idle: make(chan struct{})},
		opened:  occupancy{limit: math.MaxInt, idle: make(chan struct{})}, // the session itself has a limit
		done:    make(chan struct{}),
	}
	if other := a.shared.enter(l, p.keeps); other != nil {
		_ = session.Close() // before the answer, so that the other one goes on
		return nil, &sameError{other}
	}
	l.abandoned, l.abandon = context.WithCancel(context.WithoutCancel(ctx))
	return l, nil
}

// dialSession makes a session with a server and sends no hello.
func (a *Agent) dialSession(ctx context.Context, server string, conf *tls.Config) (tunnel.Session, error) {
	if err := a.reachable(server); err != nil {
		return nil, err
	}
	t := a.cfg.Transport
	o := tunnel.Options{TLS: conf, Roots: a.cfg.Roots, Dial: a.dialer.DialContext, DialSmall: a.dialer.DialSmall, MaxStreams: a.cfg.MaxStreams, Link: a.cfg.Link, Log: a.log}
	if !overUDP(t) || a.cfg.Dial != nil {
		return t.Dial(ctx, server, o)
	}
	// A packet transport opens its own sockets, so it is given addresses instead of
	// connections.
	o.Dial, o.DialSmall = nil, nil
	addrs, err := a.dialer.addresses(ctx, server)
	if err != nil {
		return nil, err
	}
	if conf != nil && conf.ServerName == "" {
		host, _, err := net.SplitHostPort(server)
		if err != nil {
			return nil, fmt.Errorf("server address: %w", err)
		}
		o.TLS = conf.Clone()
		o.TLS.ServerName = host
	}
	var losers sync.WaitGroup
	defer losers.Wait() // they stop at once
	return race(ctx, &losers, len(addrs), addressHeadStart, func(ctx context.Context, i int) (tunnel.Session, error) {
		return t.Dial(ctx, addrs[i].String(), o)
	}, func(s tunnel.Session) { _ = s.Close() }) // it has no user
}

// overUDP reports whether t uses UDP, which HTTP proxies do not carry.
func overUDP(t tunnel.Transport) bool { return t.Name == "quic" }

// reachable returns an error if the transport cannot reach server: HTTP proxies carry no UDP.
func (a *Agent) reachable(server string) error {
	via, err := a.dialer.proxyFor(server)
	switch {
	case err != nil:
		return &Refusal{Server: server, Reason: ErrProxyRefused, Err: err}
	case via != nil && overUDP(a.cfg.Transport):
		return &Refusal{Server: server, Reason: ErrProxyRefused, Err: &proxyError{proxy: via.Host, server: server}}
	}
	return nil
}

// causeOf returns why greeting s failed. With TLS 1.3 a server may reject the client's
// certificate after the client's handshake. Then the alert is the cause of the session's end. It may
// be a goodbye of the server, too, which the stream of the greeting does not have.
func causeOf(ctx context.Context, s tunnel.Session, err error) error {
	var bye *tunnel.Goodbye
	if reasonOf(err) != nil || errors.As(err, &bye) {
		return err
	}
	select {
	case <-s.Context().Done():
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	if cause := context.Cause(s.Context()); cause != nil && (reasonOf(cause) != nil || errors.As(cause, &bye)) {
		return cause
	}
	return err
}
