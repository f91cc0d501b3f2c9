// Transports in memory whose connections a test can cut.

package agent

import (
	"context"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A fakeTransport leads to the servers of a test.
type fakeTransport struct {
	name    string
	servers *servers
	resumes bool // whether its sessions outlive their connections

	mu       sync.Mutex // guards the following
	dials    []time.Time
	sessions []*fakeSession
}

func (r *fakeTransport) transport() tunnel.Transport {
	return tunnel.Transport{Name: r.name, Can: tunnel.Capabilities{Resume: r.resumes, Migrate: r.resumes}, Dial: r.dial}
}

func (r *fakeTransport) dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	r.mu.Lock()
	r.dials = append(r.dials, time.Now())
	r.mu.Unlock()
	s, err := r.servers.exchange.Dial(ctx, addr, o)
	if err != nil || !r.resumes {
		return s, err
	}
	b := &fakeSession{Session: s, state: tunnel.LinkState{Window: time.Minute, RTT: time.Millisecond}, connected: make(chan struct{})}
	close(b.connected)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = append(r.sessions, b)
	return b, nil
}

func (r *fakeTransport) dialed() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials
}

// latest is the session that was dialed last.
func (r *fakeTransport) latest() *fakeSession {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[len(r.sessions)-1]
}

// A fakeSession is a session that can be parked. Nothing is opened while it is.
type fakeSession struct {
	tunnel.Session

	mu        sync.Mutex // guards the following
	state     tunnel.LinkState
	moves     int
	connected chan struct{} // closed while not parked
}

func (b *fakeSession) park() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Parked = time.Now()
	b.state.Parks++
	b.connected = make(chan struct{})
}

// reachElsewhere records that an attempt to resume has reached another server.
func (b *fakeSession) reachElsewhere() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Elsewhere = true
}

func (b *fakeSession) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Parked, b.state.Elsewhere = time.Time{}, false
	b.state.Resumes++
	b.state.Replayed += 100
	close(b.connected)
}

func (b *fakeSession) Link() tunnel.LinkState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *fakeSession) Move(context.Context) error {
	b.mu.Lock()
	parked := !b.state.Parked.IsZero()
	b.moves++
	b.state.Resumes++
	b.mu.Unlock()
	if parked {
		b.resume()
	}
	return nil
}

func (b *fakeSession) moved() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.moves
}

func (b *fakeSession) Open(ctx context.Context) (tunnel.Stream, error) {
	b.mu.Lock()
	connected := b.connected
	b.mu.Unlock()
	select {
	case <-connected:
		return b.Session.Open(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fakeTransport is a transport whose sessions resume.
func (h *servers) fakeTransport() *fakeTransport {
	return &fakeTransport{name: "fakeTransport", servers: h, resumes: true}
}
