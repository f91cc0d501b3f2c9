// Several servers on one store, or beside one cluster: who they are, and how each reaches
// the others' nodes.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/servers"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/peers"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// anyServer is a name that is in the serving certificate of every server.
const anyServer = "kubernetes"

// peerOptions are the flags of a server that is one of several.
type peerOptions struct {
	id, address string
}

func (o *peerOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.id, "server-id", "", "name of this server among those that share --etcd-servers, or beside the same cluster (default the host's name and a suffix, kept in the data directory)")
	f.StringVar(&o.address, "peer-address", "", "HOST:PORT at which the other servers reach this one's tunnel (default --advertise-address and --secure-port)")
}

func (o *peerOptions) check() error {
	if o.id != "" {
		if err := auth.CheckServerID(o.id); err != nil {
			return fmt.Errorf("--server-id: %w", err)
		}
	}
	if o.address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(o.address)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
		return fmt.Errorf("--peer-address %q is not HOST:PORT, such as 10.0.0.1:6443", o.address)
	}
	return nil
}

// A peering is this server among others. With the embedded store there are no others,
// and it is nil.
type peering struct {
	*peers.Peers
	self        servers.Server
	started     time.Time
	token, dir  string
	authorities func() string   // nil if servers share theirs
	trust       *peerTrust      // nil if servers share their authorities
	same        map[string]bool // whether a server has this one's address; used by changed alone
	alone       chan struct{}   // closed once no other server is known to have the same identity
	log         *slog.Logger
}

// newPeering makes what this server is to the others. t gets a hub and a page before it runs.
func newPeering(o *serverOptions, keys *pki.PKI, files *auth.Files, t *tunnels) (*peering, error) {
	beside := o.beside.kubeconfig != ""
	if len(o.store.servers) == 0 && !beside {
		return nil, nil
	}
	token, err := keptIdentity(o.dataDir)
	if err != nil {
		return nil, err
	}
	p := &peering{started: time.Now(), token: token, dir: o.dataDir, log: t.log, alone: make(chan struct{}), self: servers.Server{ID: o.peer.id, Address: o.peer.address}}
	if p.self.ID == "" {
		p.self.ID = defaultServerID(token)
	}
	if p.self.Address == "" {
		p.self.Address = net.JoinHostPort(o.advertise.String(), strconv.Itoa(o.securePort))
	}
	if o.peerAddressIsGuess() {
		p.log.Warn("this server's peer address is loopback, because there is no default route: other servers do not reach it; give --peer-address or --advertise-address",
			"address", p.self.Address)
	}
	conf, err := p.clientTLS(beside, keys, files)
	if err != nil {
		return nil, err
	}
	p.Peers, err = peers.New(peers.Config{
		ID: p.self.ID, Hub: func() *server.Hub { return t.hub }, Evictions: t.evictions, DrainTimeout: o.shutdown.grace, Log: t.log, Metrics: t.metrics,
		Dial: func(ctx context.Context, peer peers.Peer, resumes bool) (tunnel.Session, error) {
			c, fault := conf(peer.ID)
			if fault != nil {
				return nil, fault
			}
			link := tunnel.LinkOptions{Congestion: o.link.Congestion, Connections: o.link.Connections}
			if !resumes {
				link.DetachWindow = -1
			}
			return qmux.Dial(ctx, peer.Addr, tunnel.Options{TLS: c, MaxStreams: peers.MaxStreams, Link: link, Log: t.log})
		},
	})
	return p, err
}

// clientTLS is how this server speaks to the one of an ID: beside a cluster each has
// authorities of its own.
func (p *peering) clientTLS(beside bool, keys *pki.PKI, files *auth.Files) (func(id string) (*tls.Config, error), error) {
	if !beside {
		shared, err := peerTLS(p.self.ID, keys, files)
		return func(string) (*tls.Config, error) { return shared, nil }, err
	}
	var err error
	p.authorities, err = ownAuthorities(keys, files)
	p.trust = new(peerTrust)
	return p.trust.client(shownToPeers(p.self.ID, keys)), err
}

// peerTLS shows others a certificate of this server, and believes servers, all of which
// have the same authorities.
func peerTLS(id string, keys *pki.PKI, files *auth.Files) (*tls.Config, error) {
	cas, err := files.Authorities(keys.Path(pki.CA, false))
	if err != nil {
		return nil, err
	}
	conf := auth.ClientTLS(shownToPeers(id, keys), nil, anyServer)
	cas.Believe(conf)
	believed := conf.VerifyConnection
	conf.VerifyConnection = func(cs tls.ConnectionState) error {
		return errors.Join(auth.NotNode(cs.PeerCertificates), believed(cs))
	}
	return conf, nil
}

// shownToPeers makes the certificate by which a server shows itself to others, anew for each
// connection: the authority that signs it may have been replaced. It has the shape of tls.Config's
// GetClientCertificate.
func shownToPeers(id string, keys *pki.PKI) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return keys.ServerCertificate(id) }
}

// listener takes the sessions of other servers out of l's.
func (p *peering) listener(l tunnel.Listener) tunnel.Listener {
	if p == nil {
		return l
	}
	return p.Listener(l)
}

// name is this server's ID; empty if there are no other servers.
func (p *peering) name() string {
	if p == nil {
		return ""
	}
	return p.self.ID
}

// mayResume says whether sessions of hub, and those of other servers, may be resumed.
func (p *peering) mayResume(hub *server.Hub, peer tunnel.Peer) error {
	if p == nil {
		return hub.MayResume(peer)
	}
	return p.MayResume(peer)
}

// elsewhere is the hub's.
func (p *peering) elsewhere() func(context.Context, string, tunnel.Dial) (tunnel.Stream, bool, error) {
	if p == nil {
		return nil
	}
	return p.Dial
}

// run keeps sessions with the other servers until ctx is done.
func (p *peering) run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	return p.Run(ctx)
}

// peerAddressIsGuess reports whether other servers are told an address of this machine alone because
// there is no default route.
func (o *serverOptions) peerAddressIsGuess() bool {
	return o.peer.address == "" && o.advertiseAddress == "" && o.bind.IsUnspecified() && o.advertise.IsLoopback()
}

// register tells other servers of this one, and this one of them, until ctx is done. The
// error is that another server has its ID, or a copy of its data directory.
func (p *peering) register(ctx context.Context, client kubernetes.Interface) error {
	if p == nil {
		return nil
	}
	p.log.Info("other servers reach this one", "server", p.self.ID, "address", p.self.Address)
	err := servers.New(servers.Config{
		Client: client, Server: p.self, Started: p.started, Token: p.token, Authorities: p.authorities, Log: p.log,
		Alone:   func() { close(p.alone) },
		Changed: p.changed,
	}).Run(ctx)
	if double := (*servers.DoubleError)(nil); errors.As(err, &double) && double.Copied {
		return fmt.Errorf("--data-dir %s: %w", p.dir, err)
	}
	return err
}

// changed has sessions kept with all the other servers. A server with this one's address is not
// dialed: this one would answer.
func (p *peering) changed(all []servers.Server) {
	list, same := make([]peers.Peer, 0, len(all)), make(map[string]bool)
	for _, s := range all {
		if same[s.ID] = s.Address == p.self.Address; same[s.ID] {
			if !p.same[s.ID] {
				p.log.Warn("this server's peer address is that of another server too, so that neither reaches the other: give each a --peer-address or --advertise-address of its own",
					"address", s.Address, "server", p.self.ID, "other", s.ID)
			}
			continue
		}
		list = append(list, peers.Peer{ID: s.ID, Addr: s.Address})
	}
	p.same = same
	p.trust.set(all, p.log)
	p.Set(list)
}

// isAlone waits until no other server is known to have the identity by which this one
// stands for election. It is false if ctx is done before.
func (p *peering) isAlone(ctx context.Context) bool {
	if p == nil {
		return true
	}
	select {
	case <-p.alone:
		return true
	case <-ctx.Done():
		return false
	}
}

// defaultServerID is the host's name, as far as it makes a DNS label, and the beginning of
// the token.
func defaultServerID(token string) string {
	token = strings.ToLower(token[:8])
	host, _ := os.Hostname() // without one it is the token alone
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	if len(host) > 50 {
		host = host[:50]
	}
	id := strings.Trim(host, "-") + "-" + token
	if auth.CheckServerID(id) != nil {
		return "server-" + token
	}
	return id
}
