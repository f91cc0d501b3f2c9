// Link: what its user sees, and the state behind it.

package link

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Defaults of Config.
const (
	DefaultBuffer    = 4 << 20
	DefaultKeepalive = tunnel.DefaultKeepalive
	DefaultWindow    = tunnel.DefaultDetachWindow
)

const (
	// ackDelay is how long an acknowledgement waits for a frame to ride on.
	ackDelay = 100 * time.Millisecond
	// watchPeriod is how soon somebody reads for a writer that waits while its
	// own side reads nothing.
	watchPeriod = 10 * time.Millisecond
	// lastWords is how long Close waits for the peer to hear of it, or to make some
	// progress towards that, of which it grants lastGrace such times at most.
	lastWords = time.Second
	lastGrace = 4
	// lastTry is how long it waits for another transport to say it on.
	lastTry = 2 * time.Second
	// handshakeTimeout bounds what comes before the first frame. It leaves room for
	// three round trips of three seconds, and for a packet of each to be lost.
	handshakeTimeout = 30 * time.Second
)

// Config is how a link behaves. Zero fields mean the default.
type Config struct {
	// Buffer bounds the replay ring in bytes: what is written and not yet
	// acknowledged. It is kept between 64 KiB and 64 MiB; the default is 4 MiB.
	Buffer int
	// Keepalive is the silence after which the dialing end asks the peer for a
	// sign of life. A fifth of it later, or 3 s if that is less, it asks again,
	// and once more as late it gives the transport up: with the default of 14 s
	// a dead peer is found within 20. The longer one of both ends' holds. It is
	// kept between 10 ms and 10 min.
	Keepalive time.Duration
	// Metered lets the dialing end keep silent for longer and longer, up to
	// 10 min, as long as the path is seen to bear it and nothing waits to be
	// acknowledged. It costs time in which a dead peer goes unnoticed, and saves
	// bytes. It means nothing on the accepting end.
	Metered bool
	// Window is how long a link may stay parked. The shorter one of both ends'
	// holds. It is kept between 10 ms and 24 h; the default is 60 s.
	Window time.Duration
	// Budget bounds the rings of all links that share it, save 4 KiB each; nil is
	// no bound.
	Budget *Budget
	// Unsent has the connection below TLS, a Batch's, hold no more than so many bytes
	// that it has not sent; nil if it cannot be told. It is called now and then, when
	// it has become clear what the path takes.
	Unsent func(below net.Conn, bytes int)
	// Log is told when a link is parked, resumed and given up; nil means
	// discard.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	pick := func(v, def, low, high time.Duration) time.Duration {
		if v <= 0 {
			v = def
		}
		return min(max(v, low), high)
	}
	if c.Buffer <= 0 {
		c.Buffer = DefaultBuffer
	}
	c.Buffer = min(max(c.Buffer, minBuffer), maxBuffer)
	c.Keepalive = pick(c.Keepalive, DefaultKeepalive, 10*time.Millisecond, 10*time.Minute)
	c.Window = pick(c.Window, DefaultWindow, 10*time.Millisecond, 24*time.Hour)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) terms() terms {
	return terms{buffer: c.Buffer, keepalive: c.Keepalive, window: c.Window}
}

// A Link is a net.Conn that survives its transports; see the package comment.
// All methods may be called at the same time. A deadline that has passed fails
// the call and leaves the link as it was.
type Link struct {
	conf     Config // with the terms that hold
	id       linkID
	identity string                                      // of the peer, as the Registry's Identity told it
	dial     func(ctx context.Context) (net.Conn, error) // nil on the accepting end
	ended    func(*Link)                                 // called once, when everything is over; may be nil
	born     time.Time
	ctx      context.Context // of dialing; done when the link is over
	cancel   context.CancelFunc
	dialing  chan struct{} // a token for whoever dials
	parting  chan struct{} // closed by Close

	work sync.WaitGroup // sender, pump, redialer
	pace pace           // the sender's

	mu    sync.Mutex // guards the following
	room  sync.Cond  // for writers
	todo  sync.Cond  // for the sender
	news  sync.Cond  // for readers
	cur   *transport // nil while parked and once over
	last  *transport // the latest, for its addresses
	state struct {
		closed bool  // by this end's user
		eof    bool  // by the peer's, which has sent all
		over   bool  // no transport any more, nor ever again
		err    error // why, if neither end closed
	}
	in    inbound
	out   outbound
	pulse pulse
	park  parking
	stats Stats
	tell  func(Stats) // nil if nobody wants to know
}

// newLink makes a link. It starts with start.
func newLink(c Config, peerBuffer int, dial func(context.Context) (net.Conn, error)) *Link {
	l := &Link{
		conf: c, dial: dial, born: time.Now(), pulse: newPulse(c, dial != nil),
		dialing: make(chan struct{}, 1), parting: make(chan struct{}),
	}
	// The link is a root of its own: it ends by Close, not with whoever
	// happened to dial.
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.room.L, l.todo.L, l.news.L = &l.mu, &l.mu, &l.mu
	l.pace.reset()
	l.out.ring = ring{limit: c.Buffer, budget: c.Budget}
	// The peer never has more on its way than its ring holds; what is left over
	// is for chunks that are not full.
	l.in.spill = ring{limit: peerBuffer + 2*chunkSize}
	l.in.ackEvery = uint64(min(peerBuffer/8, gather))
	return l
}

// start takes the first transport and starts sending, unless the link was closed
// before it began.
func (l *Link) start(t *transport) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.over {
		return false
	}
	l.work.Go(l.send)
	l.takeLocked(t)
	return true
}

// Read reads what the peer has written. It returns io.EOF once the peer has
// closed the link and everything was read, and an *Error if the link was given
// up.
func (l *Link) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.state.closed {
			return 0, l.wrap("read", net.ErrClosed)
		}
		if err := l.in.deadline.err(); err != nil {
			return 0, l.wrap("read", err)
		}
		if len(p) == 0 {
			return 0, nil
		}
		if n := l.in.takeSpill(p); n > 0 {
			l.consumedLocked(n)
			return n, nil
		}
		switch {
		case l.state.eof:
			return 0, io.EOF
		case l.state.over:
			return 0, l.wrap("read", l.state.err)
		case l.cur == nil || l.in.reading:
			l.in.waiting++
			l.news.Wait()
			l.in.waiting--
		default:
			if n := l.receiveLocked(p); n > 0 {
				l.consumedLocked(n)
				return n, nil
			}
		}
	}
}

// Write puts p into the ring. It waits while the ring is full, parked or not.
func (l *Link) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total, mine := 0, false
	defer func() {
		if mine {
			l.out.writing = false
			l.room.Broadcast()
		}
	}()
	for {
		if err := l.unwritableLocked(); err != nil {
			return total, l.wrap("write", err)
		}
		if !l.out.writing { // one Write at a time, so that they do not mix
			l.out.writing, mine = true, true
		}
		if mine {
			if free := l.freeLocked(); free > 0 {
				n := l.out.ring.append(p[:min(len(p), free)])
				p, total = p[n:], total+n
				l.oweLocked()
				l.todo.Signal()
			}
			if len(p) == 0 {
				return total, nil
			}
		}
		l.out.waiting++
		l.watchLocked()
		l.room.Wait()
		l.out.waiting--
	}
}

// TryWrite puts of head and then of body as much into the ring as there is room
// for right now, and says how much that was. It does not wait, and reports no
// error: if there is one, or somebody is in Write, it takes nothing, and Write says
// why.
func (l *Link) TryWrite(head, body []byte) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out.writing || l.unwritableLocked() != nil {
		return 0
	}
	for _, p := range [...][]byte{head, body} {
		m := l.out.ring.append(p[:min(len(p), l.freeLocked())])
		if n += m; m < len(p) {
			break
		}
	}
	if n > 0 {
		l.oweLocked()
		l.todo.Signal()
	}
	return n
}

// Ahead is how many bytes there may be of what is to be written and cannot be
// unwritten, so that the next to be written need not wait for long.
func (l *Link) Ahead() int { return int(l.pace.ahead.Load()) }

// freeLocked is for how many more bytes there is room to be unsent in.
func (l *Link) freeLocked() int { return max(l.Ahead()-int(l.out.ring.end-l.out.sent), 0) }

// unwritableLocked is why nothing can be written; nil if it can.
func (l *Link) unwritableLocked() error {
	switch {
	case l.state.closed:
		return net.ErrClosed
	case l.state.eof:
		return syscall.EPIPE
	case l.state.over:
		return l.state.err
	default:
		return l.out.deadline.err()
	}
}

// Close sends what was written, tells the peer, so that it does not wait for
// another transport, and waits for the link's goroutines. That takes a second at
// most, or five while bytes get across. If there is no transport, or it breaks,
// the dialing end tries to get one for that purpose, once and for two seconds at
// most; the accepting end leaves it at that if it is parked, and the peer learns
// when it tries to resume.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closeLocked()
	l.mu.Unlock()
	l.work.Wait()
	return nil
}

func (l *Link) closeLocked() {
	if l.state.closed {
		return
	}
	l.state.closed = true
	close(l.parting)
	l.in.spill.drop()
	l.in.deadline.stop()
	l.out.deadline.stop()
	switch {
	case l.state.over:
	case l.cur == nil && l.dial == nil:
		l.finishLocked()
	case l.cur == nil:
		l.lingerLocked(lastTry)
	default:
		l.lingerLocked(lastWords)
		l.interruptLocked()
		l.pumpLocked()
	}
	l.wakeLocked()
}

// byeLocked takes note that the peer has closed the link, and sees to it that it
// hears so.
func (l *Link) byeLocked() {
	l.state.eof = true
	if l.out.bye {
		l.finishLocked()
		return
	}
	l.lingerLocked(lastWords)
	l.wakeLocked()
}

// lingerLocked bounds the link's end.
func (l *Link) lingerLocked(d time.Duration) {
	l.park.lingered = l.progressLocked() + l.out.sent
	if l.park.linger == nil {
		l.park.linger = time.AfterFunc(d, l.giveUp)
	} else {
		l.park.linger.Reset(d)
	}
}

// giveUp ends the wait for the peer to hear of Close, unless it gets nearer.
func (l *Link) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	progress := l.progressLocked() + l.out.sent
	if l.cur == nil || progress == l.park.lingered || l.park.graces >= lastGrace {
		l.finishLocked()
		return
	}
	l.park.lingered = progress
	l.park.graces++
	l.park.linger.Reset(lastWords)
}

// finishLocked makes the link over. What has come in can still be read.
func (l *Link) finishLocked() {
	if l.state.over {
		return
	}
	l.state.over = true
	l.dropTransportLocked()
	l.park.stop()
	l.in.stop()
	l.out.ring.drop()
	l.cancel()
	l.wakeLocked()
}

// failLocked makes the link over for a reason that neither user gave.
func (l *Link) failLocked(err error) {
	if l.state.over {
		return
	}
	l.state.err = err
	l.conf.Log.Info("link given up", "link", l.name(), "err", err)
	l.finishLocked()
}

func (l *Link) wakeLocked() {
	l.room.Broadcast()
	l.todo.Broadcast()
	l.news.Broadcast()
}

// name is for logs: the identifier's beginning, which is no secret.
func (l *Link) name() string { return l.id.String() }

// now is for the pulse.
func (l *Link) now() time.Duration { return time.Since(l.born) }

// LocalAddr is that of the latest transport.
func (l *Link) LocalAddr() net.Addr { return l.latest().LocalAddr() }

// RemoteAddr is that of the latest transport.
func (l *Link) RemoteAddr() net.Addr { return l.latest().RemoteAddr() }

func (l *Link) latest() net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.conn
}

func (l *Link) wrap(op string, err error) error {
	return &net.OpError{
		Op: op, Net: "link", Source: l.last.conn.LocalAddr(), Addr: l.last.conn.RemoteAddr(), Err: err,
	}
}

// SetDeadline sets both deadlines.
func (l *Link) SetDeadline(t time.Time) error {
	if err := l.SetReadDeadline(t); err != nil {
		return err
	}
	return l.SetWriteDeadline(t)
}

// SetReadDeadline bounds pending and later Reads.
func (l *Link) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.closed {
		return l.wrap("set", net.ErrClosed)
	}
	l.in.deadline.set(t, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.interruptLocked()
	})
	l.interruptLocked()
	return nil
}

// SetWriteDeadline bounds pending and later Writes.
func (l *Link) SetWriteDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.closed {
		return l.wrap("set", net.ErrClosed)
	}
	l.out.deadline.set(t, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.room.Broadcast()
	})
	l.room.Broadcast()
	return nil
}

// A deadline is a time and a wake-up call for it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) set(t time.Time, wake func()) {
	d.stop()
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, wake)
	}
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) err() error {
	if !d.at.IsZero() && !time.Now().Before(d.at) {
		return os.ErrDeadlineExceeded
	}
	return nil
}
