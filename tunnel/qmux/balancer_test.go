// A load balancer in front of several servers: a connection may reach one that does not have the
// session.

package qmux

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A balancer has several servers behind one address.
type balancer struct {
	mu    sync.Mutex // guards the following
	dials int
	next  func(dial int) *network // which one a dial reaches, numbered from 0
}

func (b *balancer) dial(ctx context.Context) (secured, error) {
	b.mu.Lock()
	n := b.next(b.dials)
	b.dials++
	b.mu.Unlock()
	return n.dial(ctx)
}

// to has dials reach a server from now on.
func (b *balancer) to(n *network) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = func(int) *network { return n }
}

func named(server string) tunnel.Options {
	return tunnel.Options{Link: tunnel.LinkOptions{Server: server, Connections: 4}}
}

// balanced is a session with the first of two servers of these names.
func balanced(t *testing.T, first, second string) (b *balancer, n, other *network, d, a *Session) {
	t.Helper()
	n, other = newNetwork(named(first)), newNetwork(named(second))
	b = &balancer{}
	b.to(n)
	d, a = n.pairBy(t, tunnel.Options{}, b.dial)
	return b, n, other, d, a
}

// A parked session goes on once a connection reaches its server: other servers behind the same
// address, which refuse it, do not end it.
func TestOtherServerDoesNotEndASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n, other, d, a := balanced(t, "one", "two")
		near, far := opened(t, d, a)
		for range 3 {
			b.mu.Lock()
			from := b.dials
			b.next = func(dial int) *network {
				if (dial-from)%3 < 2 {
					return other
				}
				return n
			}
			b.mu.Unlock()
			began, before := time.Now(), other.made()
			n.cut()
			says(t, near, "there")
			hears(t, far, "there")
			says(t, far, "and back")
			hears(t, near, "and back")
			if took := time.Since(began); took > 2*time.Second || other.made() != before+2 {
				t.Errorf("resumed after %v; the other server was reached %d times", took, other.made()-before)
			}
			if l := d.Link(); l.Elsewhere || !l.Parked.IsZero() {
				t.Errorf("%+v", l)
			}
			time.Sleep(10 * time.Second) // the bubble's clock
		}
		n.close(t, d, a)
		other.close(t)
	})
}

// A refusal of a connection that was to replace a doubted one does not end the session while the
// doubted one is there: of a server that is not known to be the session's.
func TestRefusedWhileDoubted(t *testing.T) {
	for name, servers := range map[string][2]string{"names": {"one", "two"}, "without names": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, n, other, d, a := balanced(t, servers[0], servers[1])
				near, far := opened(t, d, a)
				b.to(other)
				n.near[0].Stall(true)
				says(t, near, "late")
				time.Sleep(4 * time.Second) // the bubble's clock
				n.near[0].Stall(false)
				hears(t, far, "late")
				says(t, far, "and back")
				hears(t, near, "and back")
				if made := other.made(); made < 1 || made > 4 || d.Link().Parks != 0 {
					t.Errorf("the other server was reached %d times: %+v", made, d.Link())
				}
				n.close(t, d, a)
				other.close(t)
			})
		})
	}
}

// What the session's own server has forgotten is over at once; so it is if a server has no name,
// as those of older versions, and for a parked session.
func TestForgottenByItsServer(t *testing.T) {
	for name, c := range map[string]struct {
		first, second string
		spoil         func(*network)
	}{
		"parked":                  {"one", "one", (*network).cut},
		"doubted":                 {"one", "one", (*network).stall},
		"neither has a name":      {"", "", (*network).cut},
		"the first one has none":  {"", "two", (*network).cut},
		"the second one has none": {"one", "", (*network).cut},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, n, restarted, d, a := balanced(t, c.first, c.second)
				near, _ := opened(t, d, a)
				b.to(restarted)
				began := time.Now()
				c.spoil(n)
				_, _ = io.WriteString(near, "lost") // fails or not
				if err := why(d); !errors.Is(err, tunnel.Lost) || time.Since(began) > 2*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				n.close(t, d, a)
				restarted.close(t)
			})
		})
	}
}

// Where only other servers are left the session ends with the detach window. They are asked with
// the usual pauses.
func TestOnlyOtherServersAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n, other, d, a := balanced(t, "one", "two")
		b.to(other)
		began := time.Now()
		n.cut()
		time.Sleep(time.Second) // the bubble's clock
		if l := d.Link(); l.Parked.IsZero() || !l.Elsewhere {
			t.Errorf("%+v", l)
		}
		if err := why(d); !errors.Is(err, tunnel.Lost) || time.Since(began) != tunnel.DefaultDetachWindow {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if made := other.made(); made < 15 || made > 80 {
			t.Errorf("the other server was reached %d times", made)
		}
		n.close(t, d, a)
		other.close(t)
	})
}

// Other servers are not asked as fast as a server's own return is looked for: all sessions of a
// server that was killed ask them.
func TestOtherServersAreSpared(t *testing.T) {
	const sessions = 40
	asked := 0
	for range sessions {
		synctest.Test(t, func(t *testing.T) {
			b, n, other, d, a := balanced(t, "one", "two")
			b.to(other)
			n.cut()
			time.Sleep(time.Second) // the bubble's clock
			asked += other.made()
			n.close(t, d, a)
			other.close(t)
		})
	}
	if asked > 7*sessions/2 {
		t.Errorf("they were asked %d times within a second of the loss of %d sessions", asked, sessions)
	}
}

// A session migrates through a balancer, too.
func TestMoveReachesAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n, other, d, a := balanced(t, "one", "two")
		near, far := opened(t, d, a)
		b.mu.Lock()
		from := b.dials
		b.next = func(dial int) *network {
			if dial < from+3 {
				return other
			}
			return n
		}
		b.mu.Unlock()
		if err := d.Move(waiting(t)); err != nil || n.made() != 2 {
			t.Errorf("%v, with %d connections", err, n.made())
		}
		says(t, near, "there")
		hears(t, far, "there")
		b.to(other)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := d.Move(ctx); err == nil || other.made() > 30 {
			t.Errorf("%v, after %d connections", err, other.made())
		}
		says(t, near, "still there")
		hears(t, far, "still there")
		n.close(t, d, a)
		other.close(t)
	})
}

// Connections beside the first that reach another server neither end the session nor are made as
// fast as can be.
func TestAddedConnectionsReachAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n, other, d, a := balanced(t, "one", "two")
		b.to(other)
		near, far := opened(t, d, a)
		var group sync.WaitGroup
		group.Go(func() { _, _ = io.Copy(io.Discard, far) })
		group.Go(func() { sendBulk(near, 50*time.Millisecond) })
		time.Sleep(time.Minute) // the bubble's clock
		if made := other.made(); made < 2 || made > 6 || d.Link().Parks != 0 {
			t.Errorf("%d attempts in a minute: %+v", made, d.Link())
		}
		b.to(n)
		time.Sleep(time.Minute) // the bubble's clock
		if l := d.Link(); l.Connections != 2 {
			t.Errorf("%+v", l)
		}
		n.close(t, d, a)
		other.close(t)
		group.Wait()
	})
}
