// How the server is reached: the listener, TLS, and the loopback client.

package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// listener stands between the server and Config.Listener. The library panics
// when Accept fails; this one reports the failure, and lets Accept wait for the
// Close that follows. The library also leaves connections behind that did not end in
// time; this one knows all that it has accepted, and ends them with abandon.
type listener struct {
	net.Listener
	failed chan struct{} // closed once Accept has failed and nobody has closed us
	closed chan struct{}

	mu    sync.Mutex
	err   error
	off   time.Time // when it was closed
	end   func()    // what to do then; nil if nothing
	conns map[*accepted]struct{}
}

// An accepted connection has not been closed.
type accepted struct {
	net.Conn
	by *listener
}

// NetConn returns the connection below.
func (c *accepted) NetConn() net.Conn { return c.Conn }

func (c *accepted) Close() error {
	c.by.mu.Lock()
	delete(c.by.conns, c)
	c.by.mu.Unlock()
	return c.Conn.Close()
}

// abandon closes the connections that are open. There must be no Accept any more.
func (l *listener) abandon() {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // nobody waits for it
	}
}

// onClose has f called when the listener is closed, at once if it is.
func (l *listener) onClose(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end = f; !l.off.IsZero() {
		f()
	}
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, failed: make(chan struct{}), closed: make(chan struct{}), conns: make(map[*accepted]struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	var temporary interface{ Temporary() bool }
	if err == nil {
		a := &accepted{c, l}
		l.mu.Lock()
		l.conns[a] = struct{}{}
		l.mu.Unlock()
		return a, nil
	}
	if errors.As(err, &temporary) && temporary.Temporary() {
		return nil, err
	}
	l.fail(err)
	<-l.closed
	return nil, net.ErrClosed
}

func (l *listener) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.off.IsZero() {
		l.err = fmt.Errorf("accept connections on %s: %w", l.Addr(), err)
		close(l.failed)
	}
}

// failure is why Accept failed, nil if it did not.
func (l *listener) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// since is when it was closed; zero if it was not.
func (l *listener) since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.off
}

// Close closes the listener below too. Calling it again is harmless.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.off.IsZero() {
		return nil
	}
	l.off = time.Now()
	if l.end != nil {
		l.end()
	}
	close(l.closed)
	return l.Listener.Close()
}

// loopbackCertificate makes a certificate by which this process knows itself, and its key,
// both as PEM. It is good for ten years, which is longer than any process runs: a restart
// replaces it. The key is P-256; the two RSA keys that the library would make took a fifth
// of the time in which a server starts.
func loopbackCertificate() (cert, key []byte, err error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	own, err := certutil.NewSelfSignedCACert(certutil.Config{
		CommonName: genericapiserver.LoopbackClientServerNameOverride,
		NotBefore:  time.Now().Add(-time.Hour), // a clock may be set back a little
	}, signer)
	if err != nil {
		return nil, nil, err
	}
	if cert, err = certutil.EncodeCertificates(own); err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(signer)
	return cert, key, err
}

// serving is how to serve on l, still without the certificates of cfg, and a
// client configuration for this process that nobody else can have: its token and
// its certificate are made here and kept in memory.
func serving(l net.Listener) (*genericapiserver.SecureServingInfo, *rest.Config, error) {
	own, key, err := loopbackCertificate()
	if err != nil {
		return nil, nil, fmt.Errorf("loopback certificate: %w", err)
	}
	sni, err := dynamiccertificates.NewStaticSNICertKeyContent("loopback", own, key, genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		return nil, nil, fmt.Errorf("loopback certificate: %w", err)
	}
	info := &genericapiserver.SecureServingInfo{Listener: l, SNICerts: []dynamiccertificates.SNICertKeyContentProvider{sni}}
	loopback, err := info.NewLoopbackClientConfig(rand.Text(), own)
	if err != nil {
		return nil, nil, fmt.Errorf("loopback client: %w", err)
	}
	loopback.UserAgent = "kube-apiserver"
	// To compress each event of a watch costs more than to send it within this machine.
	loopback.DisableCompression = true
	// This process keeps an Endpoints object for old clients and knows that it
	// is deprecated.
	loopback.WarningHandler = rest.NoWarnings{}
	return info, loopback, nil
}
