// Tests of what becomes of a node whose disk was copied: the agents of two machines,
// with all that matters of each, at a hub.

package main

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A machine is an agent and a node as run joins them. Its API is its own and always
// within reach, so that what it does not do it has not been kept from.
type machine struct {
	t    *testing.T
	api  *fake.Clientset
	rt   *memory.Runtime
	link *agent.Agent
	stop func()
}

func boot(t *testing.T, x *tunneltest.Exchange) *machine {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "uid-a"},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
			{Name: "main", Image: "busybox", Command: []string{"/bin/main"}},
		}},
	}
	self := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-node"}}
	m := &machine{t: t, api: fake.NewSimpleClientset(pod, self), rt: memory.New(memory.Options{})}
	f := &fence.Fence{}
	n, err := node.New(node.Config{
		Name: "node-1", API: apiclienttest.From(m.api), Runtime: m.rt, DataDir: t.TempDir(), Version: kubeletVersion, Fence: f,
		IPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, StatusUpdate: 50 * time.Millisecond, LeaseDuration: time.Second,
		Thresholds: node.Thresholds{Hard: []node.Threshold{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.link, err = agent.New(agent.Config{
		Servers: []string{"hub:1"}, NodeName: "node-1", Transport: x.Transport(),
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond, Fenced: f.Set,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.stop = together(t, m.link.Run, n.Run)
	return m
}

// together runs fs until the function that it returns is called, or the test ends.
func together(t *testing.T, fs ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ends := make(chan error, len(fs))
	for _, f := range fs {
		go func() { ends <- f(ctx) }()
	}
	left := len(fs)
	stop = func() {
		cancel()
		for ; left > 0; left-- {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// running counts the containers that run.
func (m *machine) running() int {
	list, err := m.rt.Containers(m.t.Context())
	if err != nil {
		m.t.Error(err)
	}
	return len(slices.DeleteFunc(list, func(c runtime.ContainerStatus) bool { return c.State != runtime.Running }))
}

// spoken counts the calls to the API but for events, which are about what was.
func (m *machine) spoken() int {
	n := 0
	for _, a := range m.api.Actions() {
		if a.GetResource().Resource != "events" {
			n++
		}
	}
	return n
}

func TestCopiedMachine(t *testing.T) {
	utilruntime.ErrorHandlers = nil // one of them sleeps
	var x tunneltest.Exchange
	hub, err := server.New(server.Config{
		Listeners: []tunnel.Listener{x.Listen("hub:1")},
		Identify:  func(tunnel.Peer) (string, error) { return "node-1", nil },
		TakeBack:  200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	together(t, hub.Run)

	first := boot(t, &x)
	await.True(t, time.Minute, "the pod runs", func() bool { return first.link.State().Connected && first.running() == 1 })

	// The hub serves whoever has connected last; the other one leaves it the node.
	second := boot(t, &x)
	await.True(t, time.Minute, "the copy has taken over", func() bool { return second.link.State().Connected && second.running() == 1 })
	await.True(t, time.Minute, "the first machine is fenced", func() bool { return first.link.State().Fenced && first.running() == 0 })
	more := func(m *machine, n int) func() bool {
		from := m.spoken()
		return func() bool { return m.spoken() >= from+n }
	}
	await.True(t, time.Minute, "the copy speaks for the node", more(second, 5))
	said := first.spoken()
	await.True(t, time.Minute, "the copy speaks for the node for a while", more(second, 10))
	if n := first.spoken() - said; n != 0 {
		t.Errorf("the fenced machine has called the API %d times", n)
	}
	if first.running() != 0 || second.running() != 1 {
		t.Errorf("%d and %d containers run, want none and one", first.running(), second.running())
	}

	second.stop()
	await.True(t, time.Minute, "the first machine is the node again", func() bool {
		return first.link.State().Connected && !first.link.State().Fenced && first.running() == 1
	})
	await.True(t, time.Minute, "the first machine speaks for the node again", more(first, 5))
}

// TestTwoAddressesOfOneServer: an agent whose servers' addresses lead to one server has one
// session with it, and its node is not taken for another one's.
func TestTwoAddressesOfOneServer(t *testing.T) {
	var x tunneltest.Exchange
	hub, err := server.New(server.Config{
		Listeners: []tunnel.Listener{x.Listen("hub:1"), x.Listen("hub:2")},
		Identify:  func(tunnel.Peer) (string, error) { return "node-1", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	together(t, hub.Run)
	said := make(chan struct{})
	link, err := agent.NewGroup(agent.Config{
		Servers: []string{"hub:1", "hub:2"}, NodeName: "node-1", Transport: x.Transport(),
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
		Fenced: func(up bool) {
			if up {
				t.Error("the node is fenced")
			}
		},
		Log: slog.New(slog.NewTextHandler(&until{text: "no second session with one server", said: said}, nil)),
	}, 2)
	if err != nil {
		t.Fatal(err)
	}
	together(t, link.Run)
	select {
	case <-said:
	case <-time.After(time.Minute):
		t.Fatal("the second address is not recognized")
	}
	await.True(t, time.Minute, "there is one session, which is used", func() bool {
		s, there := link.State(), hub.Sessions()
		return s.Connected && len(there) == 1 && there[0].ID == s.Session
	})
}

// An until closes said when text is first written.
type until struct {
	text string
	said chan struct{}
	once sync.Once
}

func (u *until) Write(p []byte) (int, error) {
	if strings.Contains(string(p), u.text) {
		u.once.Do(func() { close(u.said) })
	}
	return len(p), nil
}
