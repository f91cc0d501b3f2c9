// How a server stops: it says so, hands over what it does, and ends.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/server"
)

// moveTime bounds the wait for agents that have another server to have a session there.
// One that cannot reach any other is not waited for longer.
const moveTime = 5 * time.Second

// lockFile is the lock of the data directory. Its first line is the process id of the
// server. The second one is what it says of its drain once that is over, and the third, until
// then, how far it has come.
const lockFile = "server.lock"

// drainSay is how often a server that drains says how far it has come.
const drainSay = time.Second

// shutdownOptions are the flags of how the server stops.
type shutdownOptions struct {
	delay, grace time.Duration
	retryAfter   bool
}

func (o *shutdownOptions) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.delay, "shutdown-delay-duration", 0, "how long requests are answered as ever after a signal to stop, while /readyz fails and clients are told to make other connections")
	f.BoolVar(&o.retryAfter, "shutdown-send-retry-after", false, "once --shutdown-delay-duration is over, answer new requests with 429 and Retry-After until all before them are answered")
	f.DurationVar(&o.grace, "graceful-shutdown-timeout", 5*time.Second, "how long streams that are under way may go on once no connections are taken any more")
}

func (o *shutdownOptions) check() error {
	if o.delay < 0 {
		return fmt.Errorf("--shutdown-delay-duration %s is negative", o.delay)
	}
	if o.grace < 0 {
		return fmt.Errorf("--graceful-shutdown-timeout %s is negative", o.grace)
	}
	o.grace = max(o.grace, time.Millisecond) // zero would be a default below
	return nil
}

// endAtNextSignal leaves the next signal to the system, which ends the process.
func endAtNextSignal() { signal.Reset(setup.StopSignals()...) }

// leave tells agents and other servers that this one is about to stop. It returns once
// controlled is closed and the agents that are here have sessions with other servers, or
// had the time for that. With the embedded store there are no others.
func (t *tunnels) leave(controlled <-chan struct{}) {
	t.drain.follow(t.hub.Open)
	if t.peers == nil {
		<-controlled
		return
	}
	t.hub.Leave()
	t.peers.Leave()
	<-controlled
	late := time.NewTimer(moveTime)
	defer late.Stop()
	nodes := t.hub.Sessions()
	for {
		changed, here := t.peers.Changed(), t.hub.Changed()
		moved := 0
		for i := range nodes {
			s, ok := t.hub.Session(nodes[i].Node)
			if !ok || s.Draining || t.peers.Elsewhere(nodes[i].Node) {
				moved++
			}
		}
		t.drain.nodes.Store(int64(len(nodes)))
		t.drain.moved.Store(int64(moved))
		if moved == len(nodes) || len(t.peers.Connected()) == 0 {
			return
		}
		select {
		case <-changed:
		case <-here:
		case <-late.C:
			t.log.Info("some nodes have no session with another server", "nodes", len(nodes)-moved, "waited", moveTime)
			return
		}
	}
}

// A drain is what a server that stops says of it.
type drain struct {
	file  string
	grace time.Duration

	nodes, moved atomic.Int64
	streams, cut atomic.Int64
	began        atomic.Pointer[time.Time] // nil if it has not begun
	late         *time.Timer               // set by begin

	saying sync.Mutex  // guards what is in the file; is held while a disk may hang
	mu     sync.Mutex  // guards the following; may be taken with saying
	next   *time.Timer // says how far it has come; nil if it does not drain
	over   bool
}

// takeDataDir takes the data directory for this process until unlock is called, and says there
// whose it is. Once ctx is done it says that the server drains, and then the next signal ends it.
func takeDataDir(ctx context.Context, o *serverOptions) (d *drain, unlock func(), err error) {
	free, err := setup.TakeDataDir(o.dataDir, lockFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--data-dir: %w", err)
	}
	d = &drain{file: filepath.Join(o.dataDir, lockFile), grace: o.shutdown.grace}
	if err = d.say(strconv.Itoa(os.Getpid()) + "\n"); err != nil {
		free()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(drainSay, endAtNextSignal) // also if the disk hangs
		defer late.Stop()
		d.sayStill("the server has begun to drain") // for whoever would tell it to: a second signal ends it
		endAtNextSignal()
	})
	return d, func() {
		stop()
		free()
	}, nil
}

// sayStill writes how far the drain has come, unless it is over. It reports whether it goes on.
func (d *drain) sayStill(far string) bool {
	d.saying.Lock()
	defer d.saying.Unlock()
	d.mu.Lock()
	over := d.over
	d.mu.Unlock()
	if !over {
		_ = d.say(fmt.Sprintf("%d\n\n%s\n", os.Getpid(), far)) // end has the error, if it stays
	}
	return !over
}

// begin is called when no more connections are taken.
func (d *drain) begin(hub *server.Hub) {
	now := time.Now()
	hub.DrainBy(now.Add(d.grace))
	d.streams.Store(int64(hub.Open()))
	if d.nodes.Load() == 0 {
		d.nodes.Store(int64(len(hub.Sessions())))
	}
	d.late = time.AfterFunc(d.grace, func() { d.cut.Store(int64(hub.Open())) })
	d.began.Store(&now)
	d.follow(hub.Open)
}

// follow says how far the server has come, now and then until end. open is how many streams
// are open.
func (d *drain) follow(open func() int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next != nil || d.over {
		return
	}
	d.next = time.AfterFunc(drainSay, func() {
		if !d.sayStill(fmt.Sprintf("%d of %d nodes have moved to other servers, %d streams are open", d.moved.Load(), d.nodes.Load(), open())) {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.over {
			d.next.Reset(drainSay)
		}
	})
}

// end says how it went, for whoever waits for that.
func (d *drain) end(log *slog.Logger) error {
	d.mu.Lock()
	if d.over = true; d.next != nil {
		d.next.Stop()
	}
	d.mu.Unlock()
	d.saying.Lock()
	defer d.saying.Unlock()
	began := d.began.Load()
	if began == nil {
		return nil
	}
	d.late.Stop()
	took := time.Since(*began).Round(time.Millisecond)
	log.Info("drained", "nodes", d.nodes.Load(), "moved", d.moved.Load(), "streams", d.streams.Load(), "cut", d.cut.Load(), "took", took)
	streams := fmt.Sprintf("all %d streams ended within %v", d.streams.Load(), took)
	if cut := d.cut.Load(); cut > 0 {
		streams = fmt.Sprintf("of %d streams %d were cut after %v", d.streams.Load(), cut, d.grace)
	}
	return d.say(fmt.Sprintf("%d\n%d of %d nodes moved to other servers; %s\n", os.Getpid(), d.moved.Load(), d.nodes.Load(), streams))
}

// say has text in the file. What is there is written over, which a full disk allows.
func (d *drain) say(text string) error {
	f, err := os.OpenFile(d.file, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the directory is gone
	}
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
		err = errors.Join(err, f.Truncate(int64(len(text))), f.Close())
	}
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return nil
}
