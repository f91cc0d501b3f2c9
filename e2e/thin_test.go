// Links that are hardly any: too thin for what is asked of them, too far away, or
// with all that can befall a packet.

package e2e

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
	"github.com/hawser-project/hawser/e2e/await"
)

var (
	// thin is a modem: 64 kbit/s, and two seconds of them in its memory.
	thin = emulator.Shape{Delay: 50 * time.Millisecond, Rate: 64_000 / 8, Queue: 16 << 10}
	// remote is far away, 3 s there and back.
	remote = emulator.Shape{Delay: 1500 * time.Millisecond}
)

// farLoss is what leaves heartbeats well within the 40 s of grace. With 0.1 most are
// 12 to 25 s apart, but chance may lose so many packets in a row that a link is given
// up, and 50 s have been seen: no test can rule that out.
var farLoss = flag.Float64("e2e.loss", 0.02, "share of packets that TestThinLinks loses each way on a path of 3 s")

// renewed is how many heartbeats of a node are waited for on each such link, 10 s of
// time for each: with 60 the links are full for ten minutes.
var renewed = flag.Int("e2e.heartbeats", 5, "heartbeats that TestThinLinks waits for on each link")

// With all defaults a node stays Ready though its link is full of other things, or
// takes for ever, and whoever types on it is answered. It runs alone: what a modem leaves
// for heartbeats leaves nothing for a machine that has no time.
func TestThinLinks(t *testing.T) {
	m := startMixed(t)
	m.load(t, startKeys, startDownload)
	for _, n := range m.nodes {
		eventually(t, "the download's own connection of "+n.Name, func() error {
			if got := m.metric(t, "hawser_hub_link_connections{transport=\""+n.transport+"\"}"); got < 2 {
				return fmt.Errorf("%v connections", got)
			}
			return nil
		})
	}
	h := m.watch(t)
	m.beatOver(t, h, "64 kbit per second", thin)
	far := remote
	far.Loss = *farLoss
	m.beatOver(t, h, "3 s there and back", far)
	m.finish(t)
}

// beatOver gives the nodes' links a shape, waits for heartbeats, and heals them. The
// first of each node's loads types.
func (m *mixed) beatOver(t *testing.T, h *history, name string, s emulator.Shape) {
	t.Helper()
	before, typed := map[string]int{}, map[string]int64{}
	for _, n := range m.nodes {
		must(t, n.Shape(t.Context(), s, s))
		before[n.Name], typed[n.Name] = len(h.versions(n.Name)), n.loads[0].count()
	}
	times := m.heartbeats(t, *renewed)
	m.each(t, name, func(t *testing.T, n nodeOver) {
		answered := n.loads[0].count() - typed[n.Name]
		out, in, _ := n.Shaped()
		must(t, n.Shape(t.Context(), emulator.Shape{}, emulator.Shape{}))
		t.Logf("heartbeats after %v, %d lines answered; out %+v, in %+v", times[n.Name], answered, out, in)
		if out.Sent == 0 || in.Sent == 0 {
			t.Error("nothing went over that link")
		}
		if answered < int64(*renewed) {
			t.Errorf("in all that time %d lines were answered", answered)
		}
	}, func(t *testing.T, n nodeOver) {
		n.goOn(t, "on a good link again")
		for _, v := range h.versions(n.Name)[before[n.Name]-1:] {
			if !is(corev1.NodeReady, corev1.ConditionTrue)(v) || shunned(v) {
				t.Fatalf("%s is %v, %v", n.Name, condition(v, corev1.NodeReady), v.Spec.Taints)
			}
		}
	})
}

// heartbeats waits for n heartbeats of each node that are yet to come, and returns
// by how much each came after the one before.
func (m *mixed) heartbeats(t *testing.T, n int) map[string][]time.Duration {
	t.Helper()
	last, after := map[string]time.Time{}, map[string][]time.Duration{}
	began := time.Now()
	for missing := n * len(m.nodes); missing > 0; missing-- {
		eventually(t, fmt.Sprintf("the last %d heartbeats", missing), func() error {
			for _, node := range m.nodes {
				if len(after[node.Name]) == n {
					continue
				}
				lease, err := m.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), node.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				at := lease.Spec.RenewTime.Time
				from := last[node.Name]
				if from.IsZero() {
					from = began
				}
				if at.After(from) {
					last[node.Name] = at
					after[node.Name] = append(after[node.Name], at.Sub(from).Round(100*time.Millisecond))
					return nil
				}
			}
			return errNotYet
		})
	}
	return after
}

// startDownload reads what a server on the node sends, as fast as it comes.
func startDownload(t *testing.T, c *cluster, node string) load {
	t.Helper()
	pod, spec := on(node, "download")
	port := await.FreePort(t)
	c.roleInPodWith(t, pod, "", spec, fmt.Sprintf("download-server 127.0.0.1:%d", port))
	conn, err := net.Dial("tcp", c.forward(t, pod, port))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	var n atomic.Int64
	var wrong atomic.Bool
	ended := make(chan error, 1)
	go func() {
		want, got, wanted := rand.NewChaCha8([32]byte{2}), make([]byte, 4096), make([]byte, 4096)
		for {
			size, err := conn.Read(got)
			_, _ = want.Read(wanted[:size]) // never fails
			if !bytes.Equal(got[:size], wanted[:size]) {
				wrong.Store(true)
			}
			n.Add(int64(size))
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	return load{
		name: "download", count: n.Load,
		finish: func() error {
			_ = conn.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("after %d bytes: %w", n.Load(), err)
			}
			if wrong.Load() {
				return fmt.Errorf("among %d bytes are some that were not sent", n.Load())
			}
			return nil
		},
		done: func() string { return fmt.Sprintf("%d bytes", n.Load()) },
	}
}

// download sends bytes of chance for as long as somebody reads.
func download(c *net.TCPConn) error {
	defer c.Close()
	_, err := io.Copy(c, rand.NewChaCha8([32]byte{2}))
	return err
}
