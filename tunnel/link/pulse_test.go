// The pulse by itself, and what it makes of two links.

package link

import (
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel/memnet"
)

const second = time.Second

// A script of what a pulse sees and says, in the order of time.
func TestPulse(t *testing.T) {
	type step struct {
		at   time.Duration
		do   func(p *pulse, now time.Duration) // nil: tick
		ask  bool
		dead bool
		next time.Duration // zero: whatever
	}
	hear := func(p *pulse, now time.Duration) { p.hear(now) }
	pong := func(p *pulse, now time.Duration) { p.hear(now); p.answered(now) }
	owe := func(p *pulse, now time.Duration) { p.owe(now, true) }
	told := func(p *pulse, now time.Duration) { p.hear(now); p.asked(60*second, second/2) }
	for _, tc := range []struct {
		name    string
		dialing bool
		metered bool
		steps   []step
	}{
		{name: "dialing end asks twice", dialing: true, steps: []step{
			{at: 14 * second, ask: true, next: 16800 * time.Millisecond},
			{at: 16800 * time.Millisecond, ask: true, next: 19600 * time.Millisecond},
			{at: 19600 * time.Millisecond, dead: true},
		}},
		{name: "accepting end leaves it to the other, and asks once", steps: []step{
			{at: 14 * second, next: 16800 * time.Millisecond},
			{at: 16800 * time.Millisecond, ask: true, next: 19600 * time.Millisecond},
			{at: 19600 * time.Millisecond, dead: true},
		}},
		{name: "an answer starts it over", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 15 * second, do: pong},
			{at: 16800 * time.Millisecond, next: 29 * second},
			{at: 29 * second, ask: true},
		}},
		{name: "so does anything else", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 16 * second, do: hear},
			{at: 16800 * time.Millisecond, next: 30 * second},
		}},
		{name: "a long round trip makes patient", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 16500 * time.Millisecond, do: pong},
			{at: 16800 * time.Millisecond, next: 30500 * time.Millisecond},
			{at: 30500 * time.Millisecond, ask: true},
			{at: 33300 * time.Millisecond, ask: true, next: 40500 * time.Millisecond},
			{at: 40500 * time.Millisecond, dead: true},
		}},
		{name: "a process that was stopped asks first", dialing: true, steps: []step{
			{at: 44 * second, ask: true, next: 46800 * time.Millisecond},
			{at: 46800 * time.Millisecond, ask: true, next: 49600 * time.Millisecond},
			{at: 49600 * time.Millisecond, dead: true},
		}},
		{name: "even if it had asked already", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 300 * second, ask: true, next: 302800 * time.Millisecond},
		}},
		{name: "stopped at the accepting end", steps: []step{
			{at: 44 * second, next: 46800 * time.Millisecond},
			{at: 46800 * time.Millisecond, ask: true, next: 49600 * time.Millisecond},
			{at: 49600 * time.Millisecond, dead: true},
		}},
		{name: "metered, the silence doubles", dialing: true, metered: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 14 * second, do: pong},
			{at: 16800 * time.Millisecond, next: 28 * second},
			{at: 28 * second, next: 42 * second},
			{at: 42 * second, ask: true},
			{at: 42 * second, do: pong},
			{at: 98 * second, ask: true},
		}},
		{name: "but not while bytes are owed", dialing: true, metered: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 14 * second, do: pong},
			{at: 16800 * time.Millisecond, next: 28 * second},
			{at: 20 * second, do: owe},
			{at: 28 * second, next: 34 * second},
			{at: 34 * second, ask: true, next: 36800 * time.Millisecond},
			{at: 36800 * time.Millisecond, ask: true, next: 39600 * time.Millisecond},
			{at: 39600 * time.Millisecond, dead: true},
		}},
		{name: "the accepting end keeps to what it was told", steps: []step{
			{at: 10 * second, do: told},
			{at: 14 * second, next: 24 * second},
			{at: 24 * second, next: 72800 * time.Millisecond},
			{at: 72800 * time.Millisecond, ask: true, next: 75600 * time.Millisecond},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPulse(Config{Keepalive: 14 * second, Metered: tc.metered}, tc.dialing)
			p.take(0)
			for _, s := range tc.steps {
				if s.do != nil {
					s.do(&p, s.at)
					continue
				}
				b := p.tick(s.at, 0)
				if b.ask {
					p.asking(s.at)
				}
				if b.ask != s.ask || (b.dead > 0) != s.dead || (s.next != 0 && b.next != s.next) || (b.dead == 0 && b.next <= s.at) {
					t.Fatalf("at %v: %+v; want %+v", s.at, b, s)
				}
			}
		})
	}
}

// A path forgets after some silence: a metered link finds out once, and then
// stays below for a day.
func TestPulseLearns(t *testing.T) {
	for _, tc := range []struct {
		name         string
		bears        time.Duration
		interval     time.Duration // in the end
		lost, probes int           // in a day, at most
	}{
		{"forever", 1 << 60, 10 * time.Minute, 0, 151},
		{"five minutes", 5 * time.Minute, 224 * second, 2, 400},
		{"a minute", time.Minute, 56 * second, 2, 1600},
		{"hardly", 15 * second, 14 * second, 2, 6200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPulse(Config{Keepalive: 14 * second, Metered: true}, true)
			var now time.Duration
			var lost, probes int
			for p.take(now); now < 24*time.Hour; now = p.planned { // as the timer would have it
				silent := now - p.heard
				b := p.tick(now, 0)
				switch {
				case b.dead > 0:
					lost++
					p.lost(now)
					p.learn(now)
					p.take(now)
				case b.ask:
					probes++
					announced, _ := p.asking(now)
					if silent > tc.bears {
						continue
					}
					if p.hear(now); p.open > 0 {
						p.answered(now)
					}
					if p.interval != announced {
						t.Fatalf("announced %v, holds %v", announced, p.interval)
					}
				}
			}
			if p.interval != tc.interval || lost > tc.lost || probes > tc.probes {
				t.Errorf("interval %v, lost %d, asked %d times", p.interval, lost, probes)
			}
			p.forget()
			if p.interval != p.base || p.ceiling != 0 {
				t.Errorf("another path: %+v", p)
			}
		})
	}
}

// A network that was down teaches nothing.
func TestPulseOutage(t *testing.T) {
	p := newPulse(Config{Keepalive: 14 * second, Metered: true}, true)
	p.take(0)
	p.tick(14*second, 0)
	p.asking(14 * second)
	p.lost(14 * second)
	p.take(100 * second) // not learned
	p.learn(100 * second)
	if p.ceiling != 0 || p.interval != p.base {
		t.Errorf("%+v", p)
	}
}

// A meter counts what is written: frames, and bytes as TLS and TCP over IPv4
// would have them on the wire.
type meter struct {
	*memnet.Conn
	tally *tally
}

type tally struct {
	mu            sync.Mutex // guards the following
	writes, bytes int
}

func (t *tally) take() (writes, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	writes, bytes = t.writes, t.bytes
	t.writes, t.bytes = 0, 0
	return writes, bytes
}

const (
	// tlsRecord is what TLS 1.3 adds to a record: header, type, tag. packet is
	// what IPv4 and TCP with timestamps add to a segment.
	tlsRecord = 5 + 1 + 16
	packet    = 20 + 32
)

func (m meter) Write(p []byte) (int, error) {
	m.tally.mu.Lock()
	m.tally.writes++
	m.tally.bytes += len(p) + tlsRecord + packet
	m.tally.mu.Unlock()
	return m.Conn.Write(p)
}

// An idle link costs one exchange an interval, whoever counts.
func TestIdleCost(t *testing.T) {
	for _, tc := range []struct {
		name    string
		metered bool
		span    time.Duration
		limit   int // of bytes
	}{
		{"an hour", false, time.Hour, 60 << 10},
		{"a metered day", true, 24 * time.Hour, 40 << 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{})
				var near, far tally
				r.wrap = func(c net.Conn) net.Conn { return meter{c.(*memnet.Conn), &near} }
				r.far = func(c net.Conn) net.Conn { return meter{c.(*memnet.Conn), &far} }
				a, b := r.pair(t, Config{Metered: tc.metered})
				time.Sleep(tc.span)
				asked, up := near.take()
				answered, down := far.take()
				// TCP acknowledges the question with the answer, and the answer by
				// itself.
				total := up + down + asked*packet
				t.Logf("%d and %d frames, %d bytes", asked, answered, total)
				// At the end of the time a question may be on its way.
				if total > tc.limit || asked-answered < 0 || asked-answered > 1 {
					t.Errorf("%d and %d frames, %d bytes", asked, answered, total)
				}
				if s := a.Stats(); s.Parks != 0 {
					t.Errorf("%+v", s)
				}
				r.close(t, a, b)
			})
		})
	}
}

// Both ends know the round trip at once, and go on knowing it.
func TestRTT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		var delay time.Duration
		slow := func(c net.Conn) net.Conn {
			return &slowly{Conn: c.(*memnet.Conn), delay: func() (d time.Duration) { r.set(func() { d = delay }); return d }}
		}
		r.wrap, r.far = slow, slow
		r.set(func() { delay = 40 * time.Millisecond })
		a, b := r.pair(t, Config{})
		listen(r, a, b)
		time.Sleep(second)
		for range 3 {
			// A write takes its time here, and so the answer of one end may wait
			// for the question of its own.
			for _, l := range []*Link{a, b} {
				if rtt := l.Stats().RTT; rtt < 2*delay || rtt > 4*delay {
					t.Errorf("round trip %v with %v each way", rtt, delay)
				}
			}
			r.set(func() { delay *= 3 })
			time.Sleep(3 * DefaultKeepalive)
		}
		r.set(func() { delay = 0 })
		r.close(t, a, b)
	})
}

// slowly is a connection whose writes take a while.
type slowly struct {
	*memnet.Conn
	delay func() time.Duration
}

func (s *slowly) Write(p []byte) (int, error) {
	time.Sleep(s.delay())
	return s.Conn.Write(p)
}

// listen has somebody read from each link, as a multiplexer would, and tells the
// first reads.
func listen(r *rig, links ...*Link) <-chan int {
	heard := make(chan int, len(links))
	for _, l := range links {
		r.wg.Go(func() {
			buf := make([]byte, 100)
			for {
				n, err := l.Read(buf)
				if err != nil {
					return // closed
				}
				select {
				case heard <- n:
				default:
				}
			}
		})
	}
	return heard
}

// A dead peer is found in time at both ends, whoever has something to say, and a
// metered link finds it as soon when it has.
func TestDetection(t *testing.T) {
	for _, tc := range []struct {
		name          string
		metered, busy bool
		bound         time.Duration
	}{
		{"quiet", false, false, 20 * second},
		{"busy", false, true, 20 * second},
		{"metered and quiet", true, false, 10*time.Minute + 20*second},
		{"metered and busy", true, true, 20 * second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{Window: time.Hour})
				a, b := r.pair(t, Config{Metered: tc.metered, Window: time.Hour})
				heard := listen(r, a, b)
				time.Sleep(2 * time.Hour)
				r.set(func() { r.down = errors.New("no way") })
				r.stall()
				start := time.Now()
				if tc.busy {
					send(t, a, "anybody")
					send(t, b, "there")
				}
				for _, l := range []*Link{a, b} {
					for l.Stats().Parked.IsZero() && time.Since(start) < time.Hour {
						time.Sleep(second / 10)
					}
					if d := time.Since(start); d > tc.bound+second/10 {
						t.Errorf("found after %v", d)
					}
				}
				r.set(func() { r.down = nil })
				for range cap(heard) {
					if tc.busy {
						<-heard
					}
				}
				r.close(t, a, b)
			})
		})
	}
}

// A middlebox that forgets quiet connections costs a metered link one of them;
// then it is asked often enough.
func TestForgetfulPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		forgetful := func(c net.Conn) net.Conn {
			f := &forgetter{Conn: c.(*memnet.Conn)}
			f.timer = time.AfterFunc(time.Minute, func() { f.Stall(true) })
			return f
		}
		r.wrap = forgetful
		a, b := r.pair(t, Config{Metered: true})
		time.Sleep(12 * time.Hour)
		if s := a.Stats(); s.Parks != 1 || s.Resumes != 1 {
			t.Errorf("%+v", s)
		}
		send(t, b, "still there")
		expect(t, a, "still there")
		r.close(t, a, b)
	})
}

// A forgetter is a connection that dies of a minute's silence.
type forgetter struct {
	*memnet.Conn
	timer *time.Timer
}

func (f *forgetter) Write(p []byte) (int, error) {
	f.timer.Reset(time.Minute)
	return f.Conn.Write(p)
}

// The window that ended while this process was stopped is extended once.
func TestExpiryWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		r.set(func() { r.down = errors.New("no way") })
		r.cut()
		send(t, b, "x")
		synctest.Wait()
		b.mu.Lock()
		b.park.since = b.park.since.Add(-time.Hour) // as if it had slept
		b.mu.Unlock()
		b.expire()
		if s := b.Stats(); s.Parked.IsZero() {
			t.Errorf("gave up: %+v", s)
		}
		time.Sleep(grace)
		synctest.Wait()
		if links, _ := r.registry.Len(); links != 0 {
			t.Errorf("still waits")
		}
		r.close(t, a, b)
	})
}
