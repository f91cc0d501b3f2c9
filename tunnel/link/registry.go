// Registry: the accepting end, which knows its links by name.

package link

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// Defaults of a RegistryConfig.
const (
	DefaultMaxLinks       = 1 << 16
	DefaultMaxPerIdentity = 16
)

// A RegistryConfig is how a Registry and its links behave.
type RegistryConfig struct {
	Config
	// Identity is required. It tells whose end a connection is, as proved by
	// the connection itself, and fails for who may not have a link, or not any
	// more. It is asked for each transport anew.
	Identity func(net.Conn) (string, error)
	// Resume is asked whether a link may go on on a further transport of its
	// identity. An error refuses. One that wraps Busy leaves the link parked, and the
	// peer tries again; any other ends it. The peer is told the error's Code and text,
	// or only Denied if it has no Code. Nil means that it may.
	Resume func(net.Conn) error
	// MaxLinks bounds the links, parked ones included; zero means 65,536.
	MaxLinks int
	// MaxPerIdentity bounds the links of one identity; zero means 16. One more
	// costs the longest parked one its life.
	MaxPerIdentity int
}

// A Registry accepts links and their further transports. All methods may be
// called at the same time.
type Registry struct {
	conf RegistryConfig

	mu     sync.Mutex // guards the following
	links  map[linkID]*Link
	owned  map[string]map[*Link]struct{} // by identity
	closed bool
}

// NewRegistry makes a Registry.
func NewRegistry(c RegistryConfig) (*Registry, error) {
	if c.Identity == nil {
		return nil, errors.New("link registry: no Identity")
	}
	c.Config = c.withDefaults()
	if c.MaxLinks <= 0 {
		c.MaxLinks = DefaultMaxLinks
	}
	if c.MaxPerIdentity <= 0 {
		c.MaxPerIdentity = DefaultMaxPerIdentity
	}
	return &Registry{conf: c, links: make(map[linkID]*Link), owned: make(map[string]map[*Link]struct{})}, nil
}

// Accept hears what a new connection is for. It returns the link that the
// connection now carries, and whether that link was there before: then whoever
// got it first still owns it, and there is nothing left to do. Accept owns conn
// from now on. ctx bounds it, and so do ten seconds for each message.
func (r *Registry) Accept(ctx context.Context, conn net.Conn) (l *Link, resumed bool, err error) {
	t := newTransport(conn)
	defer func() {
		if err != nil {
			t.abort()
			err = fmt.Errorf("accept link: %w", err)
		}
	}()
	var m, answer message
	err = within(ctx, conn, func() error {
		heard, herr := readMessage(conn)
		m = heard
		return herr
	})
	if err != nil {
		return nil, false, err
	}
	l, answer, err = r.decide(conn, m)
	if err != nil {
		answer = message{kind: kindRefused, code: tunnel.CodeOf(err), text: refusalText(err)}
	}
	said := within(ctx, conn, func() error { return say(conn, answer) })
	switch {
	case err != nil:
		return nil, false, err // whether the peer has heard so or not
	case m.kind == kindResume && said == nil:
		said = l.resume(t, m)
	case m.kind == kindOpen && said == nil && !l.start(t):
		said = net.ErrClosed
	}
	if said != nil {
		if m.kind == kindOpen {
			_ = l.Close() // never fails
			r.remove(l)
		}
		return nil, false, said
	}
	return l, m.kind == kindResume, nil
}

// decide finds the link that conn is for, and what to answer.
func (r *Registry) decide(conn net.Conn, m message) (*Link, message, error) {
	var l *Link
	var answer message
	identity, err := r.conf.Identity(conn)
	switch {
	case err != nil:
		err = &Error{Code: tunnel.Denied, Text: "identity is not accepted", cause: err}
	case m.kind == kindOpen:
		l, answer, err = r.open(identity, m)
	case m.kind == kindResume:
		l, answer, err = r.resume(conn, identity, m)
	default:
		err = fmt.Errorf("%w: message of kind %d", ErrProtocol, m.kind)
	}
	if err != nil && m.kind == kindResume {
		r.audit(conn, identity, m, err)
	}
	return l, answer, err
}

// audit puts a refused resumption on record. After a restart of the server honest
// peers are refused as well, and so is one that has overtaken itself: those need
// nobody's attention.
func (r *Registry) audit(conn net.Conn, identity string, m message, err error) {
	level := slog.LevelInfo
	if suspicious(err) {
		level = slog.LevelWarn
	}
	r.conf.Log.Log(context.Background(), level, "resumption refused",
		"link", m.id.String(), "identity", identity, "addr", conn.RemoteAddr().String(), "attempt", m.attempt, "err", err)
}

// refusalText is as much of err as is for the peer to know.
func refusalText(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Text
	}
	return "invalid request"
}

// open makes a link, which has no transport yet.
func (r *Registry) open(identity string, m message) (*Link, message, error) {
	c := r.conf.Config
	c.Keepalive, c.Window = max(c.Keepalive, m.terms.keepalive), min(c.Window, m.terms.window)
	l := newLink(c.withDefaults(), m.terms.buffer, nil)
	l.identity, l.ended = identity, r.remove
	_, _ = rand.Read(l.id[:])          // never fails
	_, _ = rand.Read(l.park.secret[:]) // likewise
	if err := r.add(l); err != nil {
		_ = l.Close() // never fails
		return nil, message{}, err
	}
	return l, message{kind: kindOpened, id: l.id, secret: l.park.secret, terms: l.conf.terms()}, nil
}

// resume finds a link and fences its transport off.
func (r *Registry) resume(conn net.Conn, identity string, m message) (*Link, message, error) {
	r.mu.Lock()
	l := r.links[m.id]
	r.mu.Unlock()
	switch {
	case l == nil:
		return nil, message{}, unknown(nil)
	case l.identity != identity:
		return nil, message{}, unknown(errForeign)
	}
	if r.conf.Resume != nil {
		if err := r.conf.Resume(conn); err != nil {
			no := refused(err)
			if no.Code != tunnel.Busy {
				l.revoke(no)
			}
			return nil, message{}, no
		}
	}
	var fresh secret
	_, _ = rand.Read(fresh[:]) // never fails
	answer, err := l.fence(m, fresh)
	return l, answer, err
}

// add finds room for l.
func (r *Registry) add(l *Link) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	owned := r.owned[l.identity]
	if len(owned) >= r.conf.MaxPerIdentity {
		oldest := longestParked(owned)
		if oldest == nil {
			return &Error{Code: tunnel.Busy, Text: "too many links of this identity"}
		}
		oldest.displace()
		r.removeLocked(oldest)
		owned = r.owned[l.identity]
	}
	switch {
	case r.closed:
		return &Error{Code: tunnel.Draining, Text: "server is closing"}
	case len(r.links) >= r.conf.MaxLinks:
		return &Error{Code: tunnel.Busy, Text: "too many links"}
	}
	if owned == nil {
		owned = make(map[*Link]struct{})
		r.owned[l.identity] = owned
	}
	owned[l] = struct{}{}
	r.links[l.id] = l
	return nil
}

func longestParked(links map[*Link]struct{}) *Link {
	var oldest *Link
	var since Stats
	for l := range links {
		s := l.Stats()
		if !s.Parked.IsZero() && (oldest == nil || s.Parked.Before(since.Parked)) {
			oldest, since = l, s
		}
	}
	return oldest
}

// revoke ends a link whose identity may not have it any more.
func (l *Link) revoke(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(err)
}

// displace ends a parked link in favour of a new one.
func (l *Link) displace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(&Error{Code: tunnel.Replaced, Text: "too many links of this identity"})
}

// remove forgets l, which is over.
func (r *Registry) remove(l *Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(l)
}

func (r *Registry) removeLocked(l *Link) {
	delete(r.links, l.id)
	delete(r.owned[l.identity], l)
	if len(r.owned[l.identity]) == 0 {
		delete(r.owned, l.identity)
	}
}

// Len is how many links there are, and how many of them are parked.
func (r *Registry) Len() (links, parked int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if !l.Stats().Parked.IsZero() {
			parked++
		}
	}
	return len(r.links), parked
}

// Close closes every link and accepts no more. It returns once all are closed.
func (r *Registry) Close() error {
	r.mu.Lock()
	r.closed = true
	var wg sync.WaitGroup
	for _, l := range r.links {
		wg.Go(func() { _ = l.Close() }) // never fails
	}
	r.mu.Unlock()
	wg.Wait()
	return nil
}
