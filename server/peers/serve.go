// The answering end: sessions that other servers have made with this one.

package peers

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// batch bounds the nodes of one message, which is shorter than maxLine whatever their
// agents have said.
const batch = 50

// Listener returns the sessions of l with agents. It serves those with other servers
// itself. LinkOptions.Resume of l must be MayResume.
func (p *Peers) Listener(l tunnel.Listener) tunnel.Listener { return &listener{l, p} }

type listener struct {
	tunnel.Listener
	peers *Peers
}

// Serve implements tunnel.Listener.
func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	return l.Listener.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
		if id, err := serverID(s.Peer()); err == nil {
			l.peers.serve(ctx, s, id)
			return
		}
		f(ctx, s)
	})
}

// MayResume reports whether the session of this peer, a server or a node, may continue on
// another connection. It is for LinkOptions.Resume of the listeners, in place of Hub.MayResume.
// A server has proved in the connection's handshake that it is the one that began the session,
// which is all that it proves at the beginning.
func (p *Peers) MayResume(peer tunnel.Peer) error {
	if _, err := serverID(peer); err == nil {
		return nil
	}
	return p.cfg.Hub().MayResume(peer)
}

// serverID returns the server at the other end.
func serverID(p tunnel.Peer) (string, error) {
	if p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
		return auth.ServerID(nil)
	}
	return auth.ServerID(p.TLS.PeerCertificates[0])
}

// serve answers another server. Once ctx is done, streams into nodes get DrainTimeout
// to end.
func (p *Peers) serve(ctx context.Context, s tunnel.Session, id string) {
	defer func() { _ = s.Close() }() // its end is what matters
	select {
	case p.served <- struct{}{}:
		defer func() { <-p.served }()
	default:
		p.refuse(s, id, "too_many")
		return
	}
	if id == p.cfg.ID {
		p.refuse(s, id, "same_id") // its streams are rejected, so that it is told why
	}
	if many, ok := s.(interface{ SetMaxStreams(n int) }); ok {
		many.SetMaxStreams(MaxStreams)
	}
	v := &visit{peers: p, id: id, leaving: ctx}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	served := tunnel.StartServing(run, s, v.answer)
	select {
	case <-ctx.Done():
		select {
		case <-v.open.Idle():
		case <-time.After(p.cfg.DrainTimeout):
		case <-s.Context().Done():
		}
	case <-s.Context().Done():
	}
	stop()
	_ = s.Close()
	_ = served() // its end is what matters
}

// refuse counts a refused session, and logs it once a minute for each server.
func (p *Peers) refuse(s tunnel.Session, id, reason string) {
	p.metrics.refused.WithLabelValues(reason).Inc()
	if more, ok := p.refused.Allow([2]string{id, reason}); ok {
		p.log.Warn("session of another server refused", "server", id, "addr", s.Peer().Addr.String(), "reason", reason, "others", more)
	}
}

// A visit is a session that another server made.
type visit struct {
	peers   *Peers
	id      string
	leaving context.Context // done once this server stops
	open    server.Tally    // streams into nodes
}

// answer serves one stream of the other server.
func (v *visit) answer(ctx context.Context, r *tunnel.Request) {
	node := r.Meta[nodeKey]
	switch {
	case v.id == v.peers.cfg.ID:
		_ = r.Reject(tunnel.Invalid, "this is the server itself, or another one with its ID, "+v.id) // the opener is told why
	case r.Network == sessionsNetwork && r.Addr == sessionsAddr:
		v.tell(ctx, r)
	case node == "" || r.Network != "tcp":
		_ = r.Reject(tunnel.Invalid, "a server may only ask for its sessions, or dial into a node")
	default:
		v.pass(ctx, node, r)
	}
}

// pass connects the stream to an address in a node.
func (v *visit) pass(ctx context.Context, node string, r *tunnel.Request) {
	v.count(1)
	defer v.count(-1)
	_, err := tunnel.Answer(ctx, r, func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx = auth.WithCaller(ctx, auth.Caller{Name: auth.ServerUserPrefix + v.id})
		c, err := v.peers.cfg.Hub().DialHere(ctx, node, tunnel.Dial{Network: network, Addr: addr, Spare: r.Meta[spareKey] != ""})
		v.peers.metrics.answered.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
		return c, err
	})
	if err != nil {
		v.peers.log.Debug("stream of another server ended", "server", v.id, "node", node, "target", r.Addr, "err", err)
	}
}

func (v *visit) count(d int) {
	v.peers.metrics.passing.Add(float64(d))
	v.open.Add(d)
}

// tell announces this server's sessions until the stream ends.
func (v *visit) tell(ctx context.Context, r *tunnel.Request) {
	st, err := r.Accept()
	if err != nil {
		return // it is gone
	}
	defer st.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu  sync.Mutex // one message at a time
		out = json.NewEncoder(st)
	)
	write := func(m message) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		m.Now, m.Resumes = time.Now(), true
		for i := range m.Nodes {
			m.Nodes[i] = rebased(&m.Nodes[i], m.Now, m.Now.Sub)
		}
		werr := errors.Join(st.SetWriteDeadline(time.Now().Add(stalled)), out.Encode(m))
		if werr != nil {
			cancel(werr)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { v.beat(ctx, write) })
	hub, complete := v.peers.cfg.Hub(), false
	write(message{}) // that it is heard
	if err := hub.Follow(ctx, func(nodes []string) {
		for len(nodes) > 0 {
			n := min(batch, len(nodes))
			write(about(hub, nodes[:n]))
			nodes = nodes[n:]
		}
		if !complete {
			complete = true
			write(message{Complete: true})
		}
	}); err != nil {
		v.peers.log.Debug("sessions are not told any more", "server", v.id, "err", err)
	}
}

// about announces nodes.
func about(hub *server.Hub, nodes []string) message {
	var m message
	for _, node := range nodes {
		if o, ok := hub.Observe(node); ok {
			m.Nodes = append(m.Nodes, o)
		} else {
			m.Gone = append(m.Gone, node)
		}
	}
	return m
}

// rebased returns o with all times as this server's clock of now tells them. The clock may have
// been set since, and the other server only knows how it stands now. age returns how long ago a
// time was. o itself is left as it is.
func rebased(o *server.Observation, now time.Time, age func(time.Time) time.Duration) server.Observation {
	told := *o
	told.Changes = slices.Clone(o.Changes)
	for _, t := range times(&told) {
		if !t.IsZero() {
			*t = now.Round(0).Add(-age(*t))
		}
	}
	return told
}

// beat sends heartbeats and samples, and announces when this server is about to leave.
func (v *visit) beat(ctx context.Context, write func(message)) {
	t := time.NewTicker(beat)
	defer t.Stop()
	leaving, stopping := v.peers.leaving, v.leaving.Done()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-leaving:
			leaving, stopping = nil, nil
			write(message{Draining: true})
		case <-stopping:
			leaving, stopping = nil, nil
			write(message{Draining: true})
		case <-t.C:
			write(message{})
			if n%beatsPerSample == 0 {
				for some := range slices.Chunk(SamplesOf(v.peers.cfg.Hub()), batch) {
					write(message{Samples: some})
				}
				if v.peers.cfg.Evictions != nil {
					e := v.peers.cfg.Evictions()
					e.Frozen = e.Frozen[:min(len(e.Frozen), maxFrozen)]
					write(message{Evictions: &e})
				}
			}
		}
	}
}
