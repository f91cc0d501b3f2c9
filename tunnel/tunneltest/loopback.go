// Loopback: sessions over real sockets.

package tunneltest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// certified is made once for all tests of a package, and only cloned.
var certified = sync.OnceValues(func() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"server"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
})

// TLS is a configuration for both ends: one certificate, for 127.0.0.1 and
// "server", plays every part. The caller may change it.
func TLS(t testing.TB) *tls.Config {
	t.Helper()
	c, err := certified()
	if err != nil {
		t.Fatal(err)
	}
	return c.Clone()
}

// FreeAddr is an address of TCP at which nobody listens. Its IP address is any of the loopback
// network, all of which Linux has: a program that asks for a free port of 127.0.0.1 is not given it.
func FreeAddr(t testing.TB) netip.AddrPort {
	t.Helper()
	ip := netip.AddrFrom4([4]byte{127, byte(1 + mathrand.IntN(254)), byte(mathrand.IntN(256)), byte(1 + mathrand.IntN(254))})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Serve runs l until the test is over and yields its sessions, which it closes
// then, or once they have ended.
func Serve(t testing.TB, l tunnel.Listener) <-chan tunnel.Session {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	accepted := make(chan tunnel.Session)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := l.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
			select {
			case accepted <- s:
			case <-ctx.Done():
			}
			select {
			case <-s.Context().Done():
			case <-ctx.Done():
			}
		})
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return accepted
}

// ListenTCP has tr listen on a port of loopback until the test is over.
func ListenTCP(t testing.TB, tr tunnel.Transport, o tunnel.Options) (addr string, accepted <-chan tunnel.Session) {
	t.Helper()
	o.TLS = TLS(t)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := tr.Listen(ln, o)
	if err != nil {
		t.Fatal(err)
	}
	return ln.Addr().String(), Serve(t, l)
}

// OverTCP makes sessions of tr over TLS on loopback.
func OverTCP(tr tunnel.Transport) Make {
	return func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
		t.Helper()
		addr, accepted := ListenTCP(t, tr, o)
		return dial(t, tr, addr, o), <-accepted
	}
}

// OverRelay makes sessions as OverTCP does, on connections that can be broken.
func OverRelay(tr tunnel.Transport) MakeResumer {
	return func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, faults Faults) {
		t.Helper()
		addr, accepted := ListenTCP(t, tr, o)
		relay := NewRelay(t, addr)
		return dial(t, tr, relay.Addr(), o), <-accepted, relay
	}
}

// OverTLSRelay makes sessions as OverTCP does, inside TLS with a relay: as through an https://
// proxy.
func OverTLSRelay(tr tunnel.Transport) Make {
	return func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
		t.Helper()
		addr, accepted := ListenTCP(t, tr, o)
		relay := newRelay(t, addr, func(ln net.Listener) net.Listener { return tls.NewListener(ln, TLS(t)) })
		o.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&tls.Dialer{Config: TLS(t)}).DialContext(ctx, network, relay.Addr())
		}
		return dial(t, tr, addr, o), <-accepted
	}
}

func dial(t testing.TB, tr tunnel.Transport, addr string, o tunnel.Options) tunnel.Session {
	t.Helper()
	o.TLS = TLS(t)
	s, err := tr.Dial(t.Context(), addr, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
