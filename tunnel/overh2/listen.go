// The accepting end: which two connections are a session.

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
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// maxHalves bounds the connections of a listener that wait for their second one,
	// maxHalvesOfOne those of one identity, and pairTimeout how long they wait.
	maxHalves      = 1024
	maxHalvesOfOne = 16
	pairTimeout    = 20 * time.Second
)

// Listen makes sessions of the connections that ln accepts; see tunnel.Transport.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	l := &listener{options: o, halves: make(map[string]half)}
	return carrier.Listen(ln, Name, []string{ALPN}, nil, o, l.accept)
}

// A listener knows the sessions that wait for their second connection.
type listener struct {
	options tunnel.Options

	mu     sync.Mutex // guards the following
	halves map[string]half
}

// A half is a session that waits for its second connection.
type half struct {
	*session
	identity string
}

// A peeked connection is one of which something has been read already.
type peeked struct {
	*tls.Conn
	all io.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.all.Read(b) }

// accept finds out what a connection is for, and owns it. It returns the session that a
// first connection begins, once that has its second one.
func (l *listener) accept(ctx context.Context, t *tls.Conn) (tunnel.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, pairTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = t.NetConn().Close() })
	head := make([]byte, 1)
	_, err := t.Read(head)
	c := newConn(&peeked{t, io.MultiReader(bytes.NewReader(head), t)}, l.options)
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
		return nil, l.second(ctx, c, who)
	}
	s := newSession(t, l.options)
	s.id = rand.Text()
	if err = l.add(half{s, who}); err != nil {
		_ = c.Close() // never fails
	} else {
		s.serve(c)
		err = s.pair(ctx)
		l.take(s.id, who)
	}
	if err != nil {
		_ = s.Close() // as above
		return nil, err
	}
	return s, nil
}

// second gives a connection on which the peer is the server to its session.
func (l *listener) second(ctx context.Context, c *conn, who string) error {
	cc, err := client(c, l.options)
	if err != nil {
		_ = c.Close() // never fails
		return err
	}
	id, err := askID(ctx, cc)
	if err == nil {
		if h := l.take(id, who); h != nil {
			h.request(c, cc)
			return nil
		}
		err = errors.New("second connection of no session of this identity")
	}
	_ = cc.Close() // never fails in a way that matters
	_ = c.Close()
	return err
}

// add has a half wait.
func (l *listener) add(h half) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	owned := 0
	for _, other := range l.halves {
		if other.identity == h.identity {
			owned++
		}
	}
	if len(l.halves) >= maxHalves || owned >= maxHalvesOfOne {
		return fmt.Errorf("%w: of first connections without a second", tunnel.Busy)
	}
	l.halves[h.id] = h
	return nil
}

// take finds a half's session, which waits no more; nil if there is none of that identity.
func (l *listener) take(id, who string) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.halves[id]
	if h.identity != who {
		return nil
	}
	delete(l.halves, id)
	return h.session
}
