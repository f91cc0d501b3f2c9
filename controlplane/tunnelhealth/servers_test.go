package tunnelhealth

// Tests of several servers that speak of one node.

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// A speaker is a server with its controller.
type speaker struct {
	*hub
	name string
}

// speakers runs the controllers of servers over one node.
func speakers(t *testing.T, names []string, test func(client *fake.Clientset, all map[string]*speaker)) {
	t.Helper()
	all := make(map[string]*speaker)
	for _, name := range names {
		all[name] = &speaker{newHub(t), name}
	}
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(node(tunneledNode))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, s := range all {
			s.news = make(chan string, 100) // of the bubble
			s.unknown = evidence.Session{Elsewhere: true}
			f := informers.NewSharedInformerFactory(client, 0)
			ctl, err := New(loop.Deps{Client: client, Informers: f}, Config{Source: s, Dial: s.dial, TLS: s.client})
			if err != nil {
				t.Fatal(err)
			}
			f.Start(ctx.Done())
			f.WaitForCacheSync(ctx.Done())
			wg.Go(func() {
				if err := ctl.Run(ctx); err != nil {
					t.Error(err)
				}
				ctl.http.CloseIdleConnections()
			})
			defer f.Shutdown()
		}
		synctest.Wait()
		test(client, all)
		cancel()
		wg.Wait()
	})
}

// has gives the server a session of the node, or another state of it, as s says.
func (s *speaker) has(state evidence.State, more evidence.Session) {
	s.mu.Lock()
	old := s.sessions[tunneledNode]
	if old == nil {
		old = new(evidence.Session)
	}
	more.Changes, more.Node, more.Server = old.Changes, tunneledNode, s.name
	s.sessions[tunneledNode] = &more
	s.mu.Unlock()
	s.turn(tunneledNode, evidence.Change{State: state, Session: 1})
}

// sees changes what the server knows of others.
func (s *speaker) sees(f func(*evidence.Session)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.sessions[tunneledNode])
	s.news <- tunneledNode
}

// tells is what the node says of its tunnel.
func tells(t *testing.T, client *fake.Clientset) *corev1.NodeCondition {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), tunneledNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := condition(n, evidence.TunnelConnected)
	if c == nil {
		return &corev1.NodeCondition{}
	}
	return c
}

// TestOldProbeIsForgotten: a server that speaks for a node again does not tell what it found when it
// asked the node's kubelet last.
func TestOldProbeIsForgotten(t *testing.T) {
	speakers(t, []string{"a", "b"}, func(client *fake.Clientset, all map[string]*speaker) {
		a, b := all["a"], all["b"]
		path := func() corev1.ConditionStatus {
			t.Helper()
			n, err := client.CoreV1().Nodes().Get(t.Context(), tunneledNode, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return condition(n, evidence.DataPathReady).Status
		}
		a.has(evidence.Attached, evidence.Session{})
		pass(time.Minute)
		a.sees(func(s *evidence.Session) { s.Elsewhere = true })
		b.has(evidence.Attached, evidence.Session{Also: []string{"a"}})
		pass(time.Minute)
		for _, s := range all { // the agent hangs
			s.mu.Lock()
			s.refuse = errors.New("no")
			s.mu.Unlock()
		}
		pass(5 * time.Minute)
		if got := path(); got != corev1.ConditionFalse {
			t.Fatalf("the kubelet API of an agent that hangs: %s", got)
		}
		var told []string
		client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			told = append(told, string(a.(clienttesting.PatchAction).GetPatch()))
			return false, nil, nil
		})
		b.sees(func(s *evidence.Session) { s.Elsewhere = true })
		a.sees(func(s *evidence.Session) { s.Elsewhere = false })
		pass(5 * time.Minute)
		if all := strings.Join(told, "\n"); strings.Contains(all, ProbeSucceeded) || !strings.Contains(all, "at server a") || path() != corev1.ConditionFalse {
			t.Errorf("when the other server speaks:\n%s", all)
		}
	})
}

func patches(client *fake.Clientset) int { return (&bench{client: client}).patches() }

// TestOneServerSpeaks: of two with a session of the node the one with the newer speaks, and
// names both; when it is gone, the other does.
func TestOneServerSpeaks(t *testing.T) {
	speakers(t, []string{"a", "b"}, func(client *fake.Clientset, all map[string]*speaker) {
		a, b := all["a"], all["b"]
		a.has(evidence.Attached, evidence.Session{})
		pass(time.Minute)
		if c := tells(t, client); !strings.HasSuffix(c.Message, ", at server a") {
			t.Fatalf("%+v", c)
		}
		a.sees(func(s *evidence.Session) { s.Elsewhere = true })
		b.has(evidence.Attached, evidence.Session{Also: []string{"a"}})
		asked := a.asks()
		pass(time.Minute)
		if c := tells(t, client); !strings.HasSuffix(c.Message, ", at server b, also at a") {
			t.Errorf("%+v", c)
		}
		if n := a.asks() - asked; n != 0 {
			t.Errorf("the other server has asked the kubelet %d times", n)
		}
		// b is killed: as long as its Lease counts it may be there, and out of a's hearing.
		b.sees(func(s *evidence.Session) { s.Elsewhere = true })
		a.sees(func(s *evidence.Session) { s.Elsewhere, s.Unheard = false, []string{"b"} })
		pass(5 * time.Second)
		if c := tells(t, client); !strings.HasSuffix(c.Message, ", at server b, also at a") {
			t.Errorf("%+v", c)
		}
		a.mu.Lock()
		a.sessions[tunneledNode].Unheard = nil // nobody tells
		a.mu.Unlock()
		pass(unsure)
		if c := tells(t, client); c.Status != corev1.ConditionTrue || !strings.HasSuffix(c.Message, ", at server a") {
			t.Errorf("%+v", c)
		}
		if n := patches(client); n > 10 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestSpeakerGoesUntold: a node that has lost its session is said to be connected no longer,
// though the server that had to say so goes before it does and nothing tells the other.
func TestSpeakerGoesUntold(t *testing.T) {
	speakers(t, []string{"a", "b"}, func(client *fake.Clientset, all map[string]*speaker) {
		a, b := all["a"], all["b"]
		b.has(evidence.Attached, evidence.Session{})
		pass(time.Minute)
		b.sees(func(s *evidence.Session) { s.Elsewhere = true }) // it says no more
		a.has(evidence.Detached, evidence.Session{Elsewhere: true})
		pass(time.Minute)
		if c := tells(t, client); !strings.HasSuffix(c.Message, ", at server b") {
			t.Fatalf("%+v", c)
		}
		a.mu.Lock()
		a.sessions[tunneledNode].Elsewhere = false // nobody tells
		a.mu.Unlock()
		pass(unsure)
		if c := tells(t, client); c.Status != corev1.ConditionFalse || !strings.HasPrefix(c.Message, "no session since ") {
			t.Errorf("%+v", c)
		}
	})
}

// TestServersOutOfHearing: two servers that cannot hear each other do not write against
// each other. The newer session speaks, and a session does before none.
func TestServersOutOfHearing(t *testing.T) {
	speakers(t, []string{"a", "b"}, func(client *fake.Clientset, all map[string]*speaker) {
		a, b := all["a"], all["b"]
		says := func(want string, status corev1.ConditionStatus) {
			t.Helper()
			before := patches(client)
			pass(2 * time.Second)
			for range 60 { // each finds its own round trip, time and again
				a.sees(func(s *evidence.Session) { s.RTT = time.Millisecond })
				b.sees(func(s *evidence.Session) { s.RTT = time.Second })
				pass(time.Second)
			}
			if c := tells(t, client); c.Status != status || !strings.Contains(c.Message, want) {
				t.Errorf("want %s %q: %+v", status, want, c)
			}
			if n := patches(client) - before; n > 8 {
				t.Errorf("%d writes until it says %q", n, want)
			}
		}
		b.unknown = evidence.Session{Unheard: []string{"a"}}
		a.has(evidence.Attached, evidence.Session{Unheard: []string{"b"}})
		pass(5 * time.Second)
		b.has(evidence.Attached, evidence.Session{Unheard: []string{"a"}})
		says(", at server b", corev1.ConditionTrue)
		pass(5 * time.Second)
		b.has(evidence.Detached, evidence.Session{Unheard: []string{"a"}})
		says(", at server a", corev1.ConditionTrue)
		a.has(evidence.Detached, evidence.Session{Unheard: []string{"b"}})
		says("no session since", corev1.ConditionFalse)
	})
}

// TestUnknownNode: a node that no server knows is said to be gone by one server, and by none
// while one that has it cannot be heard.
func TestUnknownNode(t *testing.T) {
	speakers(t, []string{"a", "b"}, func(client *fake.Clientset, all map[string]*speaker) {
		a, b := all["a"], all["b"]
		a.has(evidence.Attached, evidence.Session{})
		pass(time.Hour)
		b.unknown = evidence.Session{Unheard: []string{"a"}}
		b.news <- tunneledNode
		pass(time.Hour)
		if c := tells(t, client); c.Status != corev1.ConditionTrue {
			t.Errorf("%+v", c)
		}
		// a is started again, and has not got the node back.
		a.mu.Lock()
		delete(a.sessions, tunneledNode)
		a.unknown = evidence.Session{Elsewhere: true}
		a.mu.Unlock()
		b.mu.Lock()
		b.unknown = evidence.Session{}
		b.mu.Unlock()
		a.news <- tunneledNode
		pass(time.Hour)
		if c := tells(t, client); c.Status != corev1.ConditionFalse || c.Reason != NotConnected {
			t.Errorf("%+v", c)
		}
		if n := patches(client); n > 5 {
			t.Errorf("%d writes", n)
		}
	})
}
