// Cuts: at every byte against a model, and at random under load.

package link

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A fuse is a connection of which one end breaks after a number of bytes
// written. What was written before arrives if it is soft; else it may be lost.
type fuse struct {
	*memnet.Conn
	soft bool

	mu     sync.Mutex // guards the following
	left   int
	blown  bool
	frames []int // how much had been written before each Write
	total  int
}

func (f *fuse) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blown {
		return 0, net.ErrClosed
	}
	f.frames = append(f.frames, f.total)
	short := p[:min(len(p), f.left)]
	n, err := f.Conn.Write(short)
	f.left -= n
	f.total += n
	if err == nil && f.left == 0 {
		f.blown = true
		if f.soft {
			_ = f.Close() // never fails
		} else {
			_ = f.Abort() // likewise
		}
		if n < len(p) {
			err = net.ErrClosed
		}
	}
	return n, err
}

// A script is what the model does: both ends talk in blocks of several sizes, in
// turns and at once, over a link whose first connection breaks.
var script = [][2]int{{1, 0}, {0, 1}, {5, 7}, {100, 0}, {0, 300}, {1000, 20}, {20000, 1}, {3, 40000}, {1, 1}}

// play runs the script with fuses of the connections so many bytes long, in
// order, at the dialing or the accepting end. It returns what the first fuse saw.
func play(t *testing.T, accepting, soft bool, lengths ...int) (first *fuse, resumes uint64) {
	t.Helper()
	r := newRig(t, Config{})
	var fuses []*fuse
	light := func(c net.Conn) net.Conn {
		f := &fuse{Conn: c.(*memnet.Conn), soft: soft, left: 1 << 30}
		if len(fuses) < len(lengths) {
			f.left = lengths[len(fuses)]
		}
		fuses = append(fuses, f)
		return f
	}
	if accepting {
		r.far = light
	} else {
		r.wrap = light
	}
	a, b := r.pair(t, Config{})
	up, down := randomBytes(3, 30000), randomBytes(4, 50000)
	for _, step := range script {
		var wg sync.WaitGroup
		say := func(l *Link, data []byte, n int) { wg.Go(func() { _, _ = l.Write(data[:n]) }) } // the far end notices
		hear := func(l *Link, data []byte, n int) {
			wg.Go(func() {
				got := make([]byte, n)
				if _, err := io.ReadFull(l, got); err != nil || !bytes.Equal(got, data[:n]) {
					t.Errorf("fuses %v: read: %v", lengths, err)
				}
			})
		}
		say(a, up, step[0])
		say(b, down, step[1])
		hear(b, up, step[0])
		hear(a, down, step[1])
		up, down = up[step[0]:], down[step[1]:]
		wg.Wait()
	}
	resumes = a.Stats().Resumes
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Close() })
	// Even if it was the bye that was cut: it is said again.
	if n, err := io.Copy(io.Discard, b); n != 0 || err != nil {
		t.Errorf("fuses %v: %d bytes too many, %v", lengths, n, err)
	}
	wg.Wait()
	r.close(t, a, b)
	return fuses[0], resumes
}

// boundaries are the places worth cutting at: around every write, and in every
// byte of a frame's head, and somewhere in each body.
func boundaries(f *fuse) []int {
	seen := make(map[int]bool)
	var at []int
	add := func(n int) {
		if n > 0 && n < f.total && !seen[n] {
			seen[n] = true
			at = append(at, n)
		}
	}
	for _, start := range f.frames {
		for d := -2; d <= frameHeader+2; d++ {
			add(start + d)
		}
		add(start + 1000)
	}
	return at
}

// Whatever the place of the cut, every byte arrives once and in order.
func TestCutEverywhere(t *testing.T) {
	for _, accepting := range []bool{false, true} {
		for _, soft := range []bool{false, true} {
			t.Run(fmt.Sprintf("accepting=%t/soft=%t", accepting, soft), func(t *testing.T) {
				var places []int
				opening := len((&message{kind: kindOpen}).encode())
				if accepting {
					// A reset takes along what the dialing end has not read yet, which
					// it has once it says something.
					opening = len((&message{kind: kindOpened}).encode()) + frameHeader
				}
				synctest.Test(t, func(t *testing.T) {
					whole, _ := play(t, accepting, soft)
					places = boundaries(whole)
				})
				cuts := 0
				for _, n := range places {
					if n <= opening {
						continue // there is no link yet
					}
					synctest.Test(t, func(t *testing.T) {
						if _, resumes := play(t, accepting, soft, n); resumes > 0 {
							cuts++
						}
					})
				}
				if cuts < len(places)*2/3 || cuts < 100 {
					t.Errorf("%d places, %d cuts", len(places), cuts)
				}
			})
		}
	}
}

// A resumption that is itself cut, at any byte, leaves a link that resumes.
func TestCutResumption(t *testing.T) {
	for _, accepting := range []bool{false, true} {
		t.Run(fmt.Sprintf("accepting=%t", accepting), func(t *testing.T) {
			for n := 1; n < messageHeader+idSize+secretSize+24+2*frameHeader; n++ {
				for again := range 2 { // the one after it, too
					synctest.Test(t, func(t *testing.T) {
						lengths := []int{500, n, n}[:2+again]
						if _, resumes := play(t, accepting, n%2 == 0, lengths...); resumes == 0 {
							t.Errorf("fuses %v: never resumed", lengths)
						}
					})
				}
			}
		})
	}
}

// Cuts and moves at random while both directions are full.
func TestChaos(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, Config{})
	random := func(c net.Conn) net.Conn {
		return &fuse{Conn: c.(*memnet.Conn), soft: dice.IntN(2) == 0, left: 200 + dice.IntN(300<<10)}
	}
	a, b := r.pair(t, Config{})
	r.set(func() { r.wrap, r.far = random, random })
	r.cut()
	data := randomBytes(5, 16<<20)
	var traffic, movers sync.WaitGroup
	for i, l := range []*Link{a, b} {
		traffic.Go(func() {
			sizes := rand.New(rand.NewPCG(seed, uint64(i+1)))
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+sizes.IntN(100<<10))
				if _, err := l.Write(rest[:n]); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				rest = rest[n:]
			}
		})
		traffic.Go(func() {
			got := make([]byte, len(data))
			if n, err := io.ReadFull(l, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d, equal %t: %v", n, bytes.Equal(got[:n], data[:n]), err)
			}
		})
	}
	done := make(chan struct{})
	movers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = a.Move(t.Context()) // fails as often as the dice will have it
			}
		}
	})
	traffic.Wait()
	close(done)
	movers.Wait()
	if s := a.Stats(); s.Resumes < 20 {
		t.Errorf("hardly any chaos: %+v", s)
	} else {
		t.Logf("%+v", s)
	}
	r.set(func() { r.wrap, r.far = nil, nil })
	r.close(t, a, b)
}
