// Exchange: dialers and listeners of one process.

package tunneltest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// An Exchange joins the dialers and listeners of one process by address. Its
// zero value is ready.
type Exchange struct {
	mu        sync.Mutex // guards the following
	listeners map[string]*listener
	dialed    int
}

// Listen makes addr reachable for as long as the listener serves, and not
// before.
func (x *Exchange) Listen(addr string) tunnel.Listener {
	return &listener{exchange: x, addr: addr, sessions: make(chan tunnel.Session)}
}

// Dial makes a session with the listener that serves addr. The listener's end
// learns the certificate of o.TLS, if there is one.
func (x *Exchange) Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	proof, err := proofOf(o.TLS)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	l := x.listeners[addr]
	x.dialed++
	local := memnet.Addr(fmt.Sprintf("dialer-%d", x.dialed))
	x.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "mem", Addr: memnet.Addr(addr), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	near, far := Pair(tunnel.Peer{Addr: local, TLS: proof}, tunnel.Peer{Addr: memnet.Addr(addr)}, o)
	select {
	case l.sessions <- far:
		return near, nil
	case <-l.done:
		err = refused
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = near.Close() // never fails
	return nil, err
}

// Transport is the exchange as an agent's transport.
func (x *Exchange) Transport() tunnel.Transport {
	return tunnel.Transport{Name: "inproc", Can: tunnel.Capabilities{HalfClose: true, Reset: true}, Dial: x.Dial}
}

type listener struct {
	exchange *Exchange
	addr     string
	sessions chan tunnel.Session
	done     <-chan struct{} // set before the listener can be found
}

func (l *listener) Addr() net.Addr { return memnet.Addr(l.addr) }

func (l *listener) Transport() string { return "inproc" }

func (l *listener) Handshakes() tunnel.Handshakes { return tunnel.Handshakes{} }

func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.leave()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-l.sessions:
			wg.Go(func() {
				f(ctx, s)
				_ = s.Close() // never fails
			})
		}
	}
}

func (l *listener) enter(ctx context.Context) error {
	x := l.exchange
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.listeners[l.addr]; ok {
		return &net.OpError{Op: "listen", Net: "mem", Addr: l.Addr(), Err: syscall.EADDRINUSE}
	}
	if x.listeners == nil {
		x.listeners = make(map[string]*listener)
	}
	l.done = ctx.Done()
	x.listeners[l.addr] = l
	return nil
}

func (l *listener) leave() {
	l.exchange.mu.Lock()
	defer l.exchange.mu.Unlock()
	delete(l.exchange.listeners, l.addr)
}

// proofOf is what the listening end would learn in a handshake.
func proofOf(c *tls.Config) (*tls.ConnectionState, error) {
	state := &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}
	if c == nil {
		return state, nil
	}
	state.ServerName = c.ServerName
	cert := new(tls.Certificate)
	switch {
	case c.GetClientCertificate != nil:
		var err error
		if cert, err = c.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS13}); err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
	case len(c.Certificates) > 0:
		cert = &c.Certificates[0]
	}
	for _, der := range cert.Certificate {
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		state.PeerCertificates = append(state.PeerCertificates, leaf)
	}
	return state, nil
}
