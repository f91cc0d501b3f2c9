package overyamux

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One certificate plays every part.
var testTLS = sync.OnceValue(func() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"server"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
})

// overLoopback makes a session over TLS and TCP.
func overLoopback(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	addr, accepted := listen(t, o)
	return dial(t, addr, o), <-accepted
}

// overRelay makes one over a network with faults.
func overRelay(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, net tunneltest.Faults) {
	t.Helper()
	addr, accepted := listen(t, o)
	relay := tunneltest.NewRelay(t, addr)
	return dial(t, relay.Addr(), o), <-accepted, relay
}

func dial(t testing.TB, addr string, o tunnel.Options) tunnel.Session {
	t.Helper()
	o.TLS = testTLS()
	s, err := Dial(t.Context(), addr, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listen listens until the test is over.
func listen(t testing.TB, o tunnel.Options) (addr string, accepted <-chan tunnel.Session) {
	t.Helper()
	o.TLS = testTLS()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(ln, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	sessions := make(chan tunnel.Session)
	var wg sync.WaitGroup
	wg.Go(func() {
		serr := l.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
			sessions <- s
			<-ctx.Done()
		})
		if serr != nil {
			t.Errorf("serve: %v", serr)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return ln.Addr().String(), sessions
}

// overMemory makes a session without TLS.
func overMemory(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	return overConns(t, a, b, o)
}

func overConns(_ testing.TB, a, b net.Conn, o tunnel.Options) (dialer, accepter *mux.Session) {
	return newSession(carrier.NewPipe(a, tunnel.Peer{Addr: a.RemoteAddr()}), true, o),
		newSession(carrier.NewPipe(b, tunnel.Peer{Addr: b.RemoteAddr()}), false, o)
}

func TestConformance(t *testing.T) {
	t.Run("TLS", func(t *testing.T) { tunneltest.Run(t, overLoopback) })
	t.Run("Memory", func(t *testing.T) { tunneltest.Run(t, overMemory) })
}

func TestResumes(t *testing.T) { tunneltest.RunResume(t, overRelay) }
