// Rig: transports in memory whose connections a test can take away.

package agent

import (
	"context"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A rig is one transport of a harbor.
type rig struct {
	name    string
	harbor  *harbor
	resumes bool // whether its sessions outlive their connections

	mu    sync.Mutex // guards the following
	dials []time.Time
	buoys []*buoy
}

func (r *rig) transport() tunnel.Transport { return tunnel.Transport{Name: r.name, Dial: r.dial} }

func (r *rig) dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	r.mu.Lock()
	r.dials = append(r.dials, time.Now())
	r.mu.Unlock()
	s, err := r.harbor.exchange.Dial(ctx, addr, o)
	if err != nil || !r.resumes {
		return s, err
	}
	b := &buoy{Session: s, state: tunnel.LinkState{Window: time.Minute, RTT: time.Millisecond}, afloat: make(chan struct{})}
	close(b.afloat)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buoys = append(r.buoys, b)
	return b, nil
}

func (r *rig) dialed() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials
}

// latest is the session that was dialed last.
func (r *rig) latest() *buoy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buoys[len(r.buoys)-1]
}

// A buoy is a session that can be parked. Nothing is opened while it is.
type buoy struct {
	tunnel.Session

	mu     sync.Mutex // guards the following
	state  tunnel.LinkState
	moves  int
	afloat chan struct{} // closed while not parked
}

func (b *buoy) park() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Parked = time.Now()
	b.state.Parks++
	b.afloat = make(chan struct{})
}

func (b *buoy) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Parked = time.Time{}
	b.state.Resumes++
	b.state.Replayed += 100
	close(b.afloat)
}

func (b *buoy) Link() tunnel.LinkState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *buoy) Move(context.Context) error {
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

func (b *buoy) moved() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.moves
}

func (b *buoy) Open(ctx context.Context) (tunnel.Stream, error) {
	b.mu.Lock()
	afloat := b.afloat
	b.mu.Unlock()
	select {
	case <-afloat:
		return b.Session.Open(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

var _ tunnel.Resumer = (*buoy)(nil)

// rig is a transport whose sessions resume.
func (h *harbor) rig() *rig { return &rig{name: "rig", harbor: h, resumes: true} }
