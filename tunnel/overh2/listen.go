// The accepting end: which two connections are a session.

package overh2

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/strangers"
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
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a, err := carrier.NewAcceptor(ln, []string{ALPN}, nil, o)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", ln.Addr(), err)
	}
	return &listener{Acceptor: a, options: o, halves: make(map[string]*half), owned: make(map[string]int)}, nil
}

type listener struct {
	*carrier.Acceptor
	options tunnel.Options
	broken  strangers.Sparse // lines about connections of which no session came

	mu     sync.Mutex // guards the following
	halves map[string]*half
	owned  map[string]int // halves, by identity
}

// A half is a session that waits for its second connection.
type half struct {
	*session
	identity string
	second   chan struct{} // holds one value, once it has come
}

// Transport implements tunnel.Doorkeeper.
func (l *listener) Transport() string { return Name }

// Serve implements tunnel.Listener.
func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	return l.Acceptor.Serve(ctx, func(ctx context.Context, t *tls.Conn) {
		if err := l.accept(ctx, t, f); err != nil {
			if more, ok := l.broken.Tell(t.RemoteAddr()); ok && ctx.Err() == nil {
				l.options.Log.Info("no session came about", "addr", t.RemoteAddr().String(), "err", err, "others", more)
			}
		}
	})
}

// accept finds out what a connection is for, and owns it.
func (l *listener) accept(ctx context.Context, t *tls.Conn, f func(context.Context, tunnel.Session)) error {
	c := newConn(t, l.options)
	within, cancel := context.WithTimeout(ctx, pairTimeout)
	defer cancel()
	stop := context.AfterFunc(within, func() { _ = c.NetConn().Close() })
	c.head = make([]byte, 1)
	_, err := t.Read(c.head)
	if !stop() || err != nil {
		_ = c.Close() // never fails
		return errors.Join(errors.New("peer says nothing"), err)
	}
	who, err := carrier.Identity(t.ConnectionState())
	if err != nil {
		_ = c.Close() // as above
		return err
	}
	// A client begins with "PRI * HTTP/2.0" (RFC 9113, 3.4), a server with a frame of
	// settings, which is short.
	if c.head[0] != 'P' {
		return l.second(within, c, who)
	}
	s, err := l.first(within, c, who)
	if err != nil {
		return err
	}
	f(ctx, s)
	_ = s.Close() // never fails
	return nil
}

// first makes a session of a connection on which the peer is the client, when the second
// one has come.
func (l *listener) first(ctx context.Context, c *conn, who string) (*session, error) {
	h := &half{session: newSession(c.Conn, l.options), identity: who, second: make(chan struct{}, 1)}
	h.id = rand.Text()
	err := l.add(h)
	if err != nil {
		_, _ = c.Close(), h.Close() // neither ever fails
		return nil, err
	}
	h.serve(c)
	select {
	case <-h.second:
	case <-h.alive.Done():
		err = context.Cause(h.alive)
	case <-ctx.Done():
		err = fmt.Errorf("second connection: %w", context.Cause(ctx))
	}
	if err == nil {
		return h.session, nil
	}
	if l.take(h.id, who) == nil {
		<-h.second // who has found it is at it
	}
	_ = h.Close() // never fails
	return nil, err
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
			h.adopt(c, cc)
			h.second <- struct{}{}
			return nil
		}
		err = errors.New("second connection of no session of this identity")
	}
	_ = cc.Close() // never fails in a way that matters
	_ = c.Close()
	return err
}

// add has a half wait.
func (l *listener) add(h *half) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.halves) >= maxHalves || l.owned[h.identity] >= maxHalvesOfOne {
		return fmt.Errorf("%w: of first connections without a second", tunnel.Busy)
	}
	l.halves[h.id] = h
	l.owned[h.identity]++
	return nil
}

// take finds a half, which waits no more; nil if there is none of that identity.
func (l *listener) take(id, who string) *half {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.halves[id]
	if h == nil || h.identity != who {
		return nil
	}
	delete(l.halves, id)
	if l.owned[who]--; l.owned[who] == 0 {
		delete(l.owned, who)
	}
	return h
}
