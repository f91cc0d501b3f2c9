// Further lanes: sessions that carry the bulk of a link.

package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/lanes"
)

// widen lets l's session have further lanes, as many as the server allows. The
// control stream stays on lane 0 as it is; all streams after it are the lanes',
// from now on at both ends.
func (l *link) widen(p plan) {
	n := lanes.Agreed(l.welcome.Meta, l.agent.cfg.Lanes)
	i := slices.IndexFunc(p.transports, func(t tunnel.Transport) bool { return t.Name == l.transport })
	if n <= 1 || i < 0 {
		return
	}
	l.session = lanes.New(l.session, lanes.Config{
		Max: n, RTT: l.control.RTT, Log: l.log,
		Dial: func(ctx context.Context, lane int) (tunnel.Session, error) {
			return l.dialLane(ctx, p.transports[i], lane)
		},
	})
}

// dialLane makes a lane. Its control stream is minded until it ends, which it does
// with l's session.
func (l *link) dialLane(ctx context.Context, t tunnel.Transport, lane int) (tunnel.Session, error) {
	a := l.agent
	var conf *tls.Config
	if a.cfg.TLS != nil {
		var err error
		if conf, err = a.cfg.TLS(ctx); err != nil {
			return nil, fmt.Errorf("prepare TLS: %w", err)
		}
	}
	s, err := a.dialSession(ctx, t, l.server, conf)
	if err != nil {
		return nil, err
	}
	hello := tunnel.Hello{Node: a.cfg.NodeName, Instance: a.instance, Sequence: l.sequence, Meta: a.meta(nil)}
	lanes.Join(hello.Meta, l.welcome.Session, lane)
	control, _, err := tunnel.Greet(ctx, s, hello)
	if err != nil {
		_ = s.Close() // the greeting's failure is the news
		return nil, err
	}
	l.minders.Go(func() {
		if err := control.Run(s.Context(), nil); err != nil {
			l.log.Debug("lane ended", "lane", lane, "reason", err)
		}
		_ = s.Close() // its end is what matters
	})
	return s, nil
}
