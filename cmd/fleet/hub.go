// Hub: the part of a server that agents meet.

package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// HubConfig configures a Hub. Address and PKI are required.
type HubConfig struct {
	// Address is where to listen, 127.0.0.1:0 for instance.
	Address string
	// PKI is the directory of keys; they are made if missing.
	PKI  string
	Link tunnel.LinkOptions

	Log *slog.Logger // nil means discard
}

// A Hub is a server.Hub on a port of its own. It may be run again after Run has
// returned, and then knows nothing of what was before, like a process that was
// started anew.
type Hub struct {
	config HubConfig
	keys   *pki.PKI

	addr    string // once it has listened
	hub     *server.Hub
	metrics *prometheus.Registry
}

// NewHub makes the keys. It starts nothing.
func NewHub(c HubConfig) (*Hub, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	keys, err := pki.Ensure(pki.Config{Dir: c.PKI, Names: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Hub{config: c, keys: keys, addr: c.Address}, nil
}

// Open listens; Run does the rest.
func (h *Hub) Open(ctx context.Context) (run func(context.Context) error, err error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", h.addr)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	h.addr = ln.Addr().String()
	defer func() {
		if err != nil {
			err = errors.Join(err, ln.Close())
		}
	}()
	pair, err := new(auth.Files).KeyPair(h.keys.Path(pki.APIServer, false), h.keys.Path(pki.APIServer, true))
	if err != nil {
		return nil, err
	}
	cas, err := new(auth.Files).Authorities(h.keys.Path(pki.ClientCA, false))
	if err != nil {
		return nil, err
	}
	port, err := server.NewPort(server.PortConfig{Listener: ln, Protocols: []string{qmux.ALPN, overyamux.ALPN, overh2.ALPN}, Log: h.config.Log})
	if err != nil {
		return nil, err
	}
	o := tunnel.Options{TLS: cas.ServerTLS(pair.GetCertificate), Link: h.config.Link, Log: h.config.Log}
	o.Link.Resume = func(p tunnel.Peer) error { return h.hub.MayResume(p) }
	engine, err := qmux.Listen(port.Tunnel(qmux.ALPN), o)
	if err != nil {
		return nil, err
	}
	yamux, err := overyamux.Listen(port.Tunnel(overyamux.ALPN), o)
	if err != nil {
		return nil, err
	}
	h2, err := overh2.Listen(port.Tunnel(overh2.ALPN), o)
	if err != nil {
		return nil, err
	}
	packets, err := new(net.ListenConfig).ListenPacket(ctx, "udp", h.addr)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	quic, err := overquic.ListenPacket(packets, o)
	if err != nil {
		return nil, err
	}
	h.metrics = prometheus.NewRegistry()
	h.hub, err = server.New(server.Config{
		Listeners: []tunnel.Listener{engine, yamux, h2, quic}, DrainTimeout: -1, Log: h.config.Log, Metrics: h.metrics,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return port.Run(ctx) })
		group.Go(func() error { return h.hub.Run(ctx) })
		return group.Wait()
	}, nil
}

// Addr is where the hub listens, once it does.
func (h *Hub) Addr() string { return h.addr }

// A Report is how a hub and its process fare.
type Report struct {
	Sessions, Parked int
	Resumes, Refused uint64
	Ended            uint64        // sessions
	Handshakes       uint64        // finished
	RSS, Peak        int           // of the process, in bytes
	CPU              time.Duration // used by the process so far
}

// Report counts. With clean, the memory that nobody uses is given back to the
// system first, so that RSS is what is in use.
func (h *Hub) Report(clean bool) (Report, error) {
	if clean {
		Trim()
	}
	var (
		r   Report
		err error
	)
	// Before anything is counted, which takes memory for each node.
	if r.RSS, r.Peak, err = memory(); err != nil {
		return Report{}, err
	}
	for _, s := range h.hub.Sessions() {
		r.Sessions++
		if !s.Parked.IsZero() {
			r.Parked++
		}
	}
	families, err := h.metrics.Gather()
	if err != nil {
		return Report{}, err
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch n := uint64(m.GetCounter().GetValue()); f.GetName() {
			case "hawser_hub_link_resumes_total":
				r.Resumes += n
			case "hawser_hub_sessions_ended_total":
				r.Ended += n
			case "hawser_hub_sessions_refused_total":
				r.Refused += n
			case "hawser_hub_handshakes_total":
				for _, l := range m.GetLabel() {
					if l.GetValue() == "done" {
						r.Handshakes += n
					}
				}
			}
		}
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return Report{}, fmt.Errorf("read usage: %w", err)
	}
	r.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return r, nil
}

// Trim gives memory that nobody uses back to the system: joining leaves as much of
// it as there is in use.
func Trim() {
	for range 5 { // a stack that was deep once shrinks by half each time
		runtime.GC()
	}
	debug.FreeOSMemory()
}

// memory is what the process has in memory, and the most that it ever had.
func memory() (rss, peak int, err error) {
	p, err := procfs.Self()
	if err != nil {
		return 0, 0, fmt.Errorf("read memory: %w", err)
	}
	status, err := p.NewStatus()
	if err != nil {
		return 0, 0, fmt.Errorf("read memory: %w", err)
	}
	return int(status.VmRSS), int(status.VmHWM), nil //nolint:gosec // far less than 2^63
}
