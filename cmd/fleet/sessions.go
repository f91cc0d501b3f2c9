// Sessions: agents without nodes.

package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/tunnel"
)

// SessionsConfig configures Sessions. Server, PKI, Count and Transport are required.
type SessionsConfig struct {
	// Server is where the agents connect, HOST:PORT.
	Server string
	// PKI is the directory of the cluster's authority, whose key signs the
	// agents' certificates.
	PKI string
	// First numbers the first agent, Count is how many there are: they are nodes
	// sim-FIRST, sim-FIRST+1, ….
	First, Count int
	// Transport is what they use.
	Transport tunnel.Transport
	// Link is about the connections below their sessions.
	Link tunnel.LinkOptions

	Log *slog.Logger // nil means discard
}

// Sessions are many agents that keep a session and do nothing with it. Run runs
// them; the other methods may be called at the same time.
type Sessions struct {
	agents    []*agent.Agent
	partition partition // below all sessions
}

// NewSessions makes the agents and their certificates. It starts nothing.
func NewSessions(c SessionsConfig) (*Sessions, error) {
	if c.Server == "" || c.PKI == "" || c.Count <= 0 || c.Transport.Dial == nil {
		return nil, errors.New("fleet: SessionsConfig.Server, PKI, Count and Transport are required")
	}
	ca, err := loadAuthority(c.PKI)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	f := &Sessions{}
	dial, transport := f.partition.wrapDial(new(net.Dialer).DialContext), f.partition.wrapTransport(c.Transport)
	for i := range c.Count {
		name := fmt.Sprintf("sim-%d", c.First+i)
		cert, err := ca.issue(name)
		if err != nil {
			return nil, fmt.Errorf("fleet: certificate of %s: %w", name, err)
		}
		conf := auth.ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }, ca.pool, "")
		a, err := agent.New(agent.Config{
			Servers: []string{c.Server}, NodeName: name,
			Transport: transport, Link: c.Link,
			TLS:  func(context.Context) (*tls.Config, error) { return conf, nil },
			Dial: dial, Log: c.Log,
		})
		if err != nil {
			return nil, fmt.Errorf("fleet: %w", err)
		}
		f.agents = append(f.agents, a)
	}
	return f, nil
}

// Run runs the agents until ctx is done and they have left.
func (f *Sessions) Run(ctx context.Context) error {
	errs := make([]error, len(f.agents))
	var wg sync.WaitGroup
	for i, a := range f.agents {
		wg.Go(func() { errs[i] = a.Run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Connected is how many agents have a session that has a connection.
func (f *Sessions) Connected() int {
	n := 0
	for _, a := range f.agents {
		if a.State().Connected {
			n++
		}
	}
	return n
}

// Cut breaks all connections at once, as a reset would, and says how many there
// were.
func (f *Sessions) Cut() int { return f.partition.cut() }

// An authority issues agents' certificates. The pool has that of the server.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func loadAuthority(dir string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, pki.ClientCA+".crt"), filepath.Join(dir, pki.ClientCA+".key"))
	if err != nil {
		return nil, fmt.Errorf("load authority: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("load authority: key is a %T", pair.PrivateKey)
	}
	raw, err := os.ReadFile(filepath.Join(dir, pki.CA+".crt"))
	if err != nil {
		return nil, fmt.Errorf("load authority: %w", err)
	}
	a := &authority{cert: pair.Leaf, key: key, pool: x509.NewCertPool()}
	if !a.pool.AppendCertsFromPEM(raw) {
		return nil, errors.New("load authority: no certificate")
	}
	return a, nil
}

// issue makes a node's certificate, which lasts for a day.
func (a *authority) issue(node string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
