package overquic

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

// overLoopback makes a session over UDP.
func overLoopback(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	o.TLS = testTLS()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenPacket(pc, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	accepted := make(chan tunnel.Session)
	var wg sync.WaitGroup
	wg.Go(func() {
		serr := l.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
			accepted <- s
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
	dialer, err = Dial(t.Context(), l.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	return dialer, <-accepted
}

func TestConformance(t *testing.T) { tunneltest.Run(t, overLoopback) }
