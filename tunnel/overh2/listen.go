// The accepting end: pairs the two connections of a session.

package overh2

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// maxWaiting bounds the first connections of a listener that wait for their second one,
	// maxWaitingOfIdentity those of one identity, and pairTimeout how long they wait.
	maxWaiting           = 1024
	maxWaitingOfIdentity = 16
	pairTimeout          = 20 * time.Second
	// refusalTimeout bounds how long the peer may take to hear why its second connection is refused.
	refusalTimeout = 2 * time.Second
)

// errUnpaired is why a second connection is refused. The peer is told.
var errUnpaired = errors.New("no such session: both connections must reach the same server; use qmux, or a load balancer that keeps a client's connections together")

// Listen makes sessions of the connections that ln accepts; see tunnel.Transport.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	l := &listener{options: o, waiting: make(map[string]*session)}
	return carrier.Listen(ln, Name, []string{ALPN}, carrier.Bare, o, l.accept)
}

// A listener has the sessions that wait for their second connection.
type listener struct {
	options tunnel.Options

	mu      sync.Mutex          // guards the following
	waiting map[string]*session // those that have only their first connection
}

// A peekedConn is a connection of which the first byte was read already.
type peekedConn struct {
	*tls.Conn
	reader io.Reader
}

func (p *peekedConn) Read(b []byte) (int, error) { return p.reader.Read(b) }

// accept pairs a connection, which it owns. For a first connection it returns the session
// once the second one is there; for a second one it returns nil.
func (l *listener) accept(ctx context.Context, t *tls.Conn) (tunnel.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, pairTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = t.NetConn().Close() })
	head := make([]byte, 1)
	_, err := t.Read(head)
	c := newConn(&peekedConn{t, io.MultiReader(bytes.NewReader(head), t)}, l.options)
	if !stop() || err != nil {
		_ = c.Close() // never fails
		return nil, errors.Join(errors.New("peer says nothing"), err)
	}
	who, err := carrier.Identity(carrier.PeerOf(t, Name))
	if err != nil {
		_ = c.Close() // as above
		return nil, err
	}
	// A client begins with "PRI * HTTP/2.0" (RFC 9113, 3.4), a server with a frame of
	// settings, which is short.
	if head[0] != 'P' {
		return nil, l.acceptSecond(ctx, c, who)
	}
	s := newSession(t, l.options)
	s.id, s.identity = rand.Text(), who
	if err = l.addWaiting(s); err != nil {
		_ = c.Close() // never fails
	} else {
		s.serve(c)
		err = s.awaitPair(ctx)
		l.takeWaiting(s.id, who)
	}
	if err != nil {
		_ = s.Close() // as above
		return nil, fmt.Errorf("session of %s: %w", who, err)
	}
	return s, nil
}

// acceptSecond adds a connection, on which the peer is the server, to its session.
func (l *listener) acceptSecond(ctx context.Context, c *conn, who string) error {
	cc, err := client(c, l.options)
	if err != nil {
		_ = c.Close() // never fails
		return err
	}
	id, err := askID(ctx, c, cc)
	if err == nil {
		if s := l.takeWaiting(id, who); s != nil {
			s.request(c, cc)
			return nil
		}
		refuse(ctx, cc, errUnpaired)
		err = errUnpaired
	}
	_ = cc.Close() // never fails in a way that matters
	_ = c.Close()
	return fmt.Errorf("second connection of %s: %w", who, err)
}

// refuse tells the peer, which is the server on a second connection, why it is refused.
func refuse(ctx context.Context, cc *http2.ClientConn, why error) {
	ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://hawser"+refusalPath, http.NoBody)
	if err != nil {
		return
	}
	req.Header.Set(refusalHeader, why.Error())
	if resp, err := cc.RoundTrip(req); err == nil {
		_ = resp.Body.Close() // never fails
	}
}

// addWaiting adds a waiting session, within the bounds.
func (l *listener) addWaiting(s *session) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	owned := 0
	for _, other := range l.waiting {
		if other.identity == s.identity {
			owned++
		}
	}
	if len(l.waiting) >= maxWaiting || owned >= maxWaitingOfIdentity {
		return fmt.Errorf("%w: of first connections without a second", tunnel.Busy)
	}
	l.waiting[s.id] = s
	return nil
}

// takeWaiting removes and returns a waiting session; nil if there is none of that identity.
func (l *listener) takeWaiting(id, who string) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.waiting[id]
	if s == nil || s.identity != who {
		return nil
	}
	delete(l.waiting, id)
	return s
}
