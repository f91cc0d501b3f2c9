// Package emulator is a network link in software: it delays, jitters, reorders,
// duplicates, damages, slows down and loses packets.
//
// A Link is one direction, and only decides: it is told the time, takes packets and
// says which are due when. It starts nothing and reads no clock, so a test of it
// needs no time at all. Run is the other half: it moves packets between two devices
// through two Links.
//
// The model, in the order in which a packet meets it: too large for the MTU, it
// vanishes; lost by chance, it vanishes; a drop-tail queue in front of a wire of a
// certain rate; then the delay of the wire. What is kept is bounded in bytes.
//
// It is no model of radio: losses are independent of each other, and the jitter is
// uniform.
package emulator

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// MaxHeld bounds what a link holds, queue and wire together, in bytes. A packet
	// for which there is no room is lost.
	MaxHeld = 64 << 20
	// overhead is added to each packet when counting what is held, so that a flood
	// of tiny packets is bounded too.
	overhead = 64
	// minQueue is the smallest queue chosen by default: some forty full packets.
	minQueue = 64 << 10
	// defaultHold is how long a reordered packet is held back by default.
	defaultHold = 10 * time.Millisecond
)

// A Shape says what one direction of a link does to packets. The zero Shape does
// nothing to them.
type Shape struct {
	Delay     time.Duration // from the end of sending to arrival
	Jitter    time.Duration // added to Delay: uniform between -Jitter and +Jitter, never below a delay of 0
	Loss      float64       // share of packets that vanish, 0 to 1
	Duplicate float64       // share of packets that arrive twice, 0 to 1
	Reorder   float64       // share of packets that are held back, so that later ones overtake them, 0 to 1
	Corrupt   float64       // share of packets of which one bit is turned over, 0 to 1: whoever checks sums loses them later
	Hold      time.Duration // how long those are held back; 0 means 10 ms
	Rate      int64         // bytes per second; 0 means without limit
	Queue     int           // bytes that wait in front of the wire of a limited rate; 0 means one round trip's worth, at least 64 KiB
	MTU       int           // bytes; larger packets vanish without a word to the sender; 0 means without limit
}

// Check returns an error that names the first field that makes no sense.
func (s Shape) Check() error {
	for _, share := range []struct {
		name string
		of   float64
	}{{"loss", s.Loss}, {"duplicate", s.Duplicate}, {"reorder", s.Reorder}, {"corrupt", s.Corrupt}} {
		// Written so that NaN is refused too.
		if !(share.of >= 0 && share.of <= 1) {
			return fmt.Errorf("%s %v: must be from 0 to 1", share.name, share.of)
		}
	}
	switch {
	case s.Delay < 0 || s.Jitter < 0 || s.Hold < 0:
		return errors.New("delay, jitter and hold must not be negative")
	case s.Rate < 0 || s.Queue < 0 || s.MTU < 0:
		return errors.New("rate, queue and mtu must not be negative")
	}
	return nil
}

func (s Shape) queue() int {
	if s.Queue > 0 {
		return min(s.Queue, MaxHeld)
	}
	trip := float64(s.Rate) * (2 * s.Delay).Seconds()
	return int(min(max(trip, minQueue), MaxHeld))
}

// Counts says what has become of the packets given to a Link.
type Counts struct {
	Sent       uint64 // given to Send
	Delivered  uint64 // returned by Due, duplicates included
	Lost       uint64 // by chance
	Overflowed uint64 // no room in the queue, or in MaxHeld
	TooLarge   uint64 // above the MTU
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
}

// A Link is one direction of an emulated link. It is not safe for concurrent use.
// The times given to it must not run backwards.
type Link struct {
	shape   Shape
	chance  *rand.Rand
	held    packets
	bytes   int       // held, with overhead
	order   uint64    // of the next packet, for packets due at the same instant
	idle    time.Time // when the wire has sent all that waits
	arrival time.Time // of the last packet that keeps the order
	counts  Counts
}

// New returns a Link. The same seed, packets and times give the same fates.
func New(shape Shape, seed uint64) (*Link, error) {
	if err := shape.Check(); err != nil {
		return nil, fmt.Errorf("shape of a link: %w", err)
	}
	return &Link{shape: shape, chance: rand.New(rand.NewPCG(seed, 0x4a75))}, nil
}

// SetShape changes what happens to packets from now on; those under way keep their
// arrival.
func (l *Link) SetShape(shape Shape) error {
	if err := shape.Check(); err != nil {
		return fmt.Errorf("shape of a link: %w", err)
	}
	l.shape = shape
	return nil
}

// Counts returns what has happened so far.
func (l *Link) Counts() Counts { return l.counts }

// Send decides what becomes of a packet that reaches the link at now. The link
// owns p until Due has returned it.
func (l *Link) Send(now time.Time, p []byte) {
	l.counts.Sent++
	switch {
	case l.shape.MTU > 0 && len(p) > l.shape.MTU:
		l.counts.TooLarge++
		return
	case l.happens(l.shape.Loss):
		l.counts.Lost++
		return
	case !l.room(now, len(p)):
		l.counts.Overflowed++
		return
	}
	sent := l.transmit(now, len(p))
	if len(p) > 0 && l.happens(l.shape.Corrupt) {
		l.counts.Corrupted++
		p[l.chance.IntN(len(p))] ^= 1 << l.chance.IntN(8)
	}
	copies := 1
	if l.happens(l.shape.Duplicate) {
		l.counts.Duplicated++
		copies = 2
	}
	for range copies {
		l.hold(p, l.arrives(sent))
	}
}

// happens draws only if there is something to draw for, so that a shape without
// chance uses none.
func (l *Link) happens(share float64) bool { return share > 0 && l.chance.Float64() < share }

// room reports whether the queue and the memory have room for a packet.
func (l *Link) room(now time.Time, size int) bool {
	if l.bytes+2*(size+overhead) > MaxHeld { // twice: it may be duplicated
		return false
	}
	if l.shape.Rate == 0 || !l.idle.After(now) {
		return true
	}
	waiting := l.idle.Sub(now).Seconds() * float64(l.shape.Rate)
	return waiting+float64(size) <= float64(l.shape.queue())
}

// transmit returns when the last byte of a packet has gone onto the wire.
func (l *Link) transmit(now time.Time, size int) time.Time {
	if l.shape.Rate == 0 {
		return now
	}
	if l.idle.Before(now) {
		l.idle = now
	}
	l.idle = l.idle.Add(time.Duration(float64(size) / float64(l.shape.Rate) * float64(time.Second)))
	return l.idle
}

// arrives returns when a packet whose sending ends at sent is due. Jitter alone
// never reorders: a packet waits for the one before it, as on a real wire.
func (l *Link) arrives(sent time.Time) time.Time {
	delay := l.shape.Delay
	if j := l.shape.Jitter; j > 0 {
		delay = max(0, delay-j+time.Duration(l.chance.Int64N(int64(2*j)+1)))
	}
	at := sent.Add(delay)
	if l.happens(l.shape.Reorder) {
		l.counts.Reordered++
		if l.shape.Hold > 0 {
			return at.Add(l.shape.Hold)
		}
		return at.Add(defaultHold)
	}
	if at.Before(l.arrival) {
		at = l.arrival
	}
	l.arrival = at
	return at
}

func (l *Link) hold(p []byte, due time.Time) {
	heap.Push(&l.held, packet{due: due, order: l.order, data: p})
	l.order++
	l.bytes += len(p) + overhead
}

// Next returns when the next packet is due; false means that none is held.
func (l *Link) Next() (time.Time, bool) {
	if len(l.held) == 0 {
		return time.Time{}, false
	}
	return l.held[0].due, true
}

// Due returns the next packet due at now or before, nil if there is none. A packet
// that is due twice is returned twice, as the same bytes.
func (l *Link) Due(now time.Time) []byte {
	if len(l.held) == 0 || l.held[0].due.After(now) {
		return nil
	}
	p := heap.Pop(&l.held).(packet)
	l.bytes -= len(p.data) + overhead
	l.counts.Delivered++
	return p.data
}

type packet struct {
	due   time.Time
	order uint64
	data  []byte
}

// packets is a heap: the packet due first is on top.
type packets []packet

func (h packets) Len() int { return len(h) }

func (h packets) Less(i, j int) bool {
	if h[i].due.Equal(h[j].due) {
		return h[i].order < h[j].order
	}
	return h[i].due.Before(h[j].due)
}

func (h packets) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *packets) Push(p any) { *h = append(*h, p.(packet)) }

func (h *packets) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = packet{} // lets go of the bytes
	*h = (*h)[:last]
	return p
}
