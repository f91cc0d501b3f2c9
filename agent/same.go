// Same: several of the servers' addresses may lead to one server.

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// serverKey is the metadata of the welcome that tells servers apart, and the processes of
	// one. Older servers do not send it.
	serverKey = "server"
	// sameAgain is how long an address is not tried that led to a server with which the node
	// has a session, while that session has a connection.
	sameAgain = time.Minute
	// maxLatest bounds the servers of which the latest session is remembered.
	maxLatest = 64
)

// errOvertaken is why a session ended that a later one of this process has replaced.
var errOvertaken = errors.New("a later session of this agent, by another address of the server, has replaced it")

// A sameError is why a session is not used: the address leads to the server of link.
type sameError struct{ link *link }

func (e *sameError) Error() string {
	return fmt.Sprintf("this address leads to the same server as %s, with which there is a session", e.link.server)
}

// inUse reports whether l has a connection and is its agent's.
func (l *link) inUse() bool {
	return !l.left.Load() && l.session.Context().Err() == nil && l.parked().IsZero()
}

// enter records l unless the node has another session in use with the same server, which it
// returns. keeps are the sessions that l leaves alone.
func (s *shared) enter(l *link, keeps []uint64) *link {
	id := l.welcome.Meta[serverKey]
	if id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.live {
		if other.welcome.Meta[serverKey] == id && !slices.Contains(keeps, other.sequence) && other.inUse() {
			return other
		}
	}
	s.live[l] = struct{}{}
	if _, known := s.latest[id]; !known && len(s.latest) >= maxLatest {
		clear(s.latest)
	}
	s.latest[id] = max(s.latest[id], l.sequence)
	return nil
}

// inUse reports whether one of the recorded sessions is.
func (s *shared) inUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.live {
		if l.inUse() {
			return true
		}
	}
	return false
}

// beside adds to keeps, in which an agent lists the sessions that a new one leaves alone, those
// of all agents: the new one may be with the same server.
func (s *shared) beside(keeps []uint64) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(keeps)
	for l := range s.live {
		if !l.left.Load() && !slices.Contains(all, l.sequence) {
			all = append(all, l.sequence)
		}
	}
	return all[:min(len(all), maxLeaving)]
}

// exit forgets l, which has ended.
func (s *shared) exit(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, l)
}

// overtaken reports whether a later session of this process has replaced l.
func (s *shared) overtaken(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest[l.welcome.Meta[serverKey]] > l.sequence
}

// same records that an address leads to a server with which there is a session.
func (k *keeper) same(server string, err *sameError) {
	wait := spread(sameAgain)
	k.retryAfter[server], k.sameAs[server] = time.Now().Add(wait), err.link
	k.agent.update(func(s *State) { s.Server, s.Err = server, err })
	k.fence(false) // its welcome admits the node
	if k.logged[server].text != err.Error() {
		k.logged[server] = repeat{text: err.Error(), at: time.Now()}
		k.agent.log.Info("no second session with one server", slog.String("address", server), slog.String("session", err.link.server))
	}
}

// pauseBeside waits for d, and no longer than a session with the same server is in use.
func (k *keeper) pauseBeside(ctx context.Context, server string, d time.Duration) {
	other := k.sameAs[server]
	delete(k.sameAs, server)
	if other == nil {
		pause(ctx, d)
		return
	}
	over := time.After(d)
	for {
		changed := k.agent.shared.next()
		if !other.inUse() {
			delete(k.retryAfter, server)
			return
		}
		select {
		case <-changed:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}
