// Streams of nodes that are away: how much they hold, and what they are told when
// the node is back.

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/cmd/lab"
)

var parked = flag.Int("e2e.parked", 300, "how many streams TestParked parks over each transport")

const (
	// parkedAtNode is how many of them lead to one node.
	parkedAtNode = 1000
	// parkedBytes is what is said on each, each way: more than has room in sockets,
	// windows and buffers. The nodes are cut off when a part of that has been said.
	parkedBytes = 512 << 10
	cutAfter    = parkedBytes / 16
	// parkedSocket is what a socket may buffer at either end.
	parkedSocket = 16 << 10
	// parkedPort is where the targets listen, each on the loopback of its node.
	parkedPort = 18714
	// replayBudget is what a server's links may hold to say again.
	replayBudget = 256 << 20
	// perParked is what may come to that with each stream: what is being written to
	// it, which is a buffer of 64 KiB, its goroutines, and as much again for the
	// garbage that may lie about.
	perParked = 192 << 10
)

// awayArgs have sessions parked soon and for long.
var awayArgs = []string{
	"--netns", "--server-arg=--link-keepalive=1s", "--agent-arg=--link-keepalive=1s",
	"--server-arg=--detach-window=30m", "--agent-arg=--detach-window=30m",
}

// Streams that are spoken to while their nodes are away hold no more than is
// configured, however many there are, and lose nothing.
func TestParked(t *testing.T) {
	t.Parallel()
	for _, transport := range resuming {
		t.Run(transport, func(t *testing.T) {
			if !netnsHere(t) {
				t.Skip("cutting links takes network namespaces")
			}
			t.Parallel()
			nodes := (*parked + parkedAtNode - 1) / parkedAtNode
			f := startFront(t, transport, append(awayArgs, fmt.Sprintf("--nodes=%d", nodes))...)
			p := park(t, f)
			p.measure(t)
			heal(t, p.nodes...)
			p.finish(t)
		})
	}
}

// parking is a number of parked streams.
type parking struct {
	*front
	nodes   []*lab.Node
	said    atomic.Int64 // bytes, by the clients
	streams errgroup.Group
	before  map[string]usage
}

// park opens the streams, has both ends of each speak, and cuts the nodes off.
func park(t *testing.T, f *front) *parking {
	t.Helper()
	p := &parking{front: f, nodes: f.lab(t).Nodes(), before: map[string]usage{}}
	var conns []*net.UnixConn
	for i, node := range p.nodes {
		t.Cleanup(startRole(t, node, fmt.Sprintf("noise-server 127.0.0.1:%d", parkedPort)))
		for range min(parkedAtNode, *parked-i*parkedAtNode) {
			c, err := f.connectTo(fmt.Sprintf("%s:%d", node.Name, parkedPort))
			must(t, err)
			t.Cleanup(func() { _ = c.Close() })
			conns = append(conns, c)
		}
	}
	for _, program := range f.bothEnds() {
		p.before[program] = f.usage(t, program)
	}
	for _, c := range conns {
		p.streams.Go(func() error {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			return converse(c, &p.said)
		})
	}
	eventually(t, "a part has been said", func() error {
		if n := p.said.Load(); n < cutAfter*int64(*parked) {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
	cut(t, p.nodes...)
	return p
}

// A halfCloser is a TCP connection or one over a unix socket.
type halfCloser interface {
	net.Conn
	CloseWrite() error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// answerNoise is the target's part, once the client has begun.
func answerNoise(c *net.TCPConn) error {
	defer c.Close()
	err := skip(c, 1)
	if err == nil {
		err = converse(c, new(atomic.Int64))
	}
	if err != nil {
		_ = c.SetLinger(0) // the client hears of it
	}
	return err
}

// converse says what is to be said, and counts it, and wants the other end to say
// the same.
func converse(c halfCloser, said *atomic.Int64) error {
	if err := errors.Join(c.SetReadBuffer(parkedSocket), c.SetWriteBuffer(parkedSocket)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.MultiWriter(c, counter{said}), noise(), parkedBytes)
		sent <- errors.Join(err, c.CloseWrite())
	}()
	err := wants(c, noise(), parkedBytes)
	return errors.Join(err, <-sent)
}

// measure waits until nobody can say any more, and wants that to be within bounds.
func (p *parking) measure(t *testing.T) {
	t.Helper()
	var away, queued float64
	still, last := 0, int64(-1)
	eventually(t, "all sessions are parked and all streams stand still", func() error {
		away, queued = 0, 0
		for name, v := range p.metrics(t) {
			if metricIs(name, "hawser_hub_sessions_parked") {
				away += v
			}
			if metricIs(name, "hawser_hub_link_queued_bytes") {
				queued += v
			}
		}
		if now := p.said.Load(); now != last || int(away) < len(p.nodes) {
			still, last = 0, now
		}
		if still++; still < 20 {
			return fmt.Errorf("%v of %d nodes are away, %d bytes have been said", away, len(p.nodes), last)
		}
		return nil
	})
	is, was := p.usage(t, "server"), p.before["server"]
	grown := is.memory - was.memory
	if last >= parkedBytes*int64(*parked) {
		t.Errorf("everything had been said when the nodes were cut off")
	}
	t.Logf("%d streams of %d nodes: %d MiB said by the clients, %.0f MiB kept to say again by the server, whose memory grew from %d to %d MiB: %d KiB a stream",
		*parked, len(p.nodes), last>>20, queued/(1<<20), was.memory>>20, is.memory>>20, grown/int64(*parked)>>10)
	if queued > replayBudget+float64(len(p.nodes)*64<<10) {
		t.Errorf("%.0f bytes are kept to say again", queued)
	}
	if most := replayBudget + int64(*parked)*perParked; memoryTells(t) && grown > most {
		t.Errorf("the server's memory has grown by %d MiB; the bound is %d MiB", grown>>20, most>>20)
	}
}

// finish wants every stream to come to its end, and the programs to be what they
// were.
func (p *parking) finish(t *testing.T) {
	t.Helper()
	healed := time.Now()
	must(t, p.streams.Wait())
	t.Logf("all streams were at their end %v after the nodes were back", time.Since(healed).Round(time.Second))
	for program, was := range p.before {
		was.memory += int64(*parked) * perParked // what is free may be kept for a while
		p.settled(t, program, was)
	}
}

// What is closed while the node is away is closed at the other end when it is back:
// once, after what was said before, and in the way in which it was.
func TestClosedWhileParked(t *testing.T) {
	t.Parallel()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	overEachFront(t, resuming, testClosedWhileParked, awayArgs...)
}

// An ending is what one end of a stream has heard: the last it was told, and how it
// came to its end.
type ending struct {
	words string
	err   error
}

func hear(c net.Conn) ending {
	words, err := io.ReadAll(c)
	return ending{string(words), err}
}

func testClosedWhileParked(t *testing.T, f *front, _ string) {
	node, err := f.lab(t).Node(f.node)
	must(t, err)
	was := map[string]usage{}
	for _, program := range f.bothEnds() {
		was[program] = f.usage(t, program)
	}
	away, targetHeard := make(chan struct{}), make(chan ending, 2)
	listening := newTarget(t, node, func(c *net.TCPConn) { targetHeard <- hear(c) })
	leaving := newTarget(t, node, func(c *net.TCPConn) {
		<-away
		_, _ = io.WriteString(c, "the target's last words")
	})
	breaking := newTarget(t, node, func(c *net.TCPConn) {
		<-away
		_ = c.SetLinger(0)
	})
	var client [4]*net.UnixConn
	for i, g := range []*target{listening, listening, leaving, breaking} {
		client[i], err = f.connect(g.port)
		must(t, err)
		defer client[i].Close()
	}
	cut(t, node)
	eventually(t, "the session is parked", func() error {
		for name, v := range f.metrics(t) {
			if metricIs(name, "hawser_hub_sessions_parked") && v == 1 {
				return nil
			}
		}
		return errNotYet
	})
	close(away)
	for i, words := range []string{"the client's last words", ""} {
		_, err := io.WriteString(client[i], words)
		must(t, errors.Join(err, client[i].Close()))
	}
	select {
	case e := <-targetHeard:
		t.Errorf("the target of a node that is away heard %q, %v", e.words, e.err)
	default:
	}
	heal(t, node)
	heard := map[string]int{}
	for range 2 {
		e := <-targetHeard
		if e.err != nil {
			t.Errorf("the target read %q and then %v", e.words, e.err)
		}
		heard[e.words]++
	}
	if heard["the client's last words"] != 1 || heard[""] != 1 {
		t.Errorf("the targets heard %v", heard)
	}
	if e := hear(client[2]); e.words != "the target's last words" || e.err != nil {
		t.Errorf("the client of the target that left heard %q, %v", e.words, e.err)
	}
	if e := hear(client[3]); e.words != "" {
		t.Errorf("the client of the target that broke off heard %q, %v", e.words, e.err)
	}
	for _, g := range []*target{listening, leaving, breaking} {
		g.deserted(t)
	}
	for program, was := range was {
		f.settled(t, program, was)
	}
}

// metricIs says whether a series is of that metric.
func metricIs(series, name string) bool {
	of, _, _ := strings.Cut(series, "{")
	return of == name
}
