package lanes

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A tap is a child session that can be watched and meddled with.
type tap struct {
	tunnel.Session
	wrote  atomic.Int64 // bytes in its streams
	parked atomic.Bool
	moved  atomic.Int64
	state  tunnel.LinkState

	mu   sync.Mutex // guards the following
	held chan struct{}
}

// hold has nothing accepted until the function that it returns is called.
func (s *tap) hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.held = held
	return sync.OnceFunc(func() { close(held) })
}

func (s *tap) Open(ctx context.Context) (tunnel.Stream, error) {
	st, err := s.Session.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &tapped{st, s}, nil
}

func (s *tap) Accept(ctx context.Context) (tunnel.Stream, error) {
	st, err := s.Session.Accept(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
	return &tapped{st, s}, nil
}

func (s *tap) Link() tunnel.LinkState {
	state := s.state
	state.Window = time.Minute
	if s.parked.Load() {
		state.Parked = time.Now()
	}
	return state
}

func (s *tap) Move(context.Context) error {
	s.moved.Add(1)
	return nil
}

type tapped struct {
	tunnel.Stream
	tap *tap
}

func (st *tapped) Write(p []byte) (int, error) {
	n, err := st.Stream.Write(p)
	st.tap.wrote.Add(int64(n))
	return n, err
}

func (st *tapped) Abort() error { return tunnel.Abort(st.Stream) }

// modest is a tuning with which what is said at home fits into the window of a
// connection in memory.
func modest() tuning {
	t := standard
	t.far, t.near = 32<<10, 32<<10
	return t
}

// A road is a session in memory with a tap at both ends of each lane.
type road struct {
	dialer, accepter *Session

	mu    sync.Mutex // guards the following
	near  []*tap     // the dialer's ends; lane 0 first
	far   []*tap
	dials int
	fail  error         // for whoever dials a lane
	slow  time.Duration // and how long it takes
}

func newRoad(t testing.TB, tune tuning, lanes int) *road {
	t.Helper()
	r := new(road)
	mk := func(ctx context.Context, t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, err error) {
		a, b, err := inMemory(ctx, t, o)
		if err != nil {
			return nil, nil, err
		}
		near, far := &tap{Session: a}, &tap{Session: b}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.near, r.far = append(r.near, near), append(r.far, far)
		return near, far, nil
	}
	r.dialer, r.accepter = pair(t, mk, tunnel.Options{}, Config{
		Max: lanes, tune: tune,
		Dial: func(context.Context, int) (tunnel.Session, error) {
			r.mu.Lock()
			r.dials++
			slow, fail := r.slow, r.fail
			r.mu.Unlock()
			<-time.After(slow)
			return nil, fail
		},
	})
	return r
}

// atHome is how many bytes have been written on lane 0, at both ends.
func (r *road) atHome() int64 {
	near, far := r.ends()
	return near[0].wrote.Load() + far[0].wrote.Load()
}

// ends are the dialer's and the accepter's ends of all lanes there have been.
func (r *road) ends() (near, far []*tap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.near), slices.Clone(r.far)
}

// dialed is how often a lane was dialed.
func (r *road) dialed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials
}

// prepare makes a lane before it is needed, and says when both ends have it.
func (r *road) prepare(t testing.TB, lanes int) {
	t.Helper()
	if err := r.dialer.wanted(lanes); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Session{r.dialer, r.accepter} {
		s.until(t, "lanes there", func() bool { return len(s.lanes) == lanes })
	}
}

// until waits until is, which is called with mu held, says so.
func (s *Session) until(t testing.TB, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		s.mu.Lock()
		ok, changed := is(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// tapOf is the tap of one end's lane.
func tapOf(t testing.TB, s *Session, number int) *tap {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[number]
	if l == nil {
		t.Fatalf("no lane %d", number)
	}
	return l.session.(*tap)
}

// legs is how many legs one end knows of.
func (s *Session) legs() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		n += len(l.legs)
	}
	return n
}

// say writes size bytes of the pattern from at on.
func say(w io.Writer, at, size int64) error {
	n, err := io.Copy(w, &pattern{at: at, left: size})
	if err == nil && n != size {
		err = io.ErrShortWrite
	}
	return err
}

// both runs two functions beside each other.
func both(f, g func() error) error {
	var (
		wg     sync.WaitGroup
		fe, ge error
	)
	wg.Go(func() { fe = f() })
	ge = g()
	wg.Wait()
	return errors.Join(fe, ge)
}
