package tunnelhealth

// Tests of when conditions are written.

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// TestFirstWrite: the first conditions of a node are one write, if its kubelet has an
// answer soon.
func TestFirstWrite(t *testing.T) {
	for _, tc := range []struct {
		name, status string
		refuse       error
		then         string // status
		tunnel, path string
	}{
		{"not at once", "", errors.New("not yet"), "200 OK", "True Attached", "True ProbeSucceeded"},
		{"refused", "", errors.New("no"), "", "True Attached", "False ProbeFailed"},
		{"no answer", silent, nil, silent, "True Attached", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, Config{ProbeTimeout: time.Minute}, []*corev1.Node{node(tunneledNode)}, func(b *bench) {
				b.hub.answer(tc.status, tc.refuse)
				b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
				pass(2 * time.Second)
				b.expect("before an answer", "", "")
				if tc.then != "" {
					b.hub.answer(tc.then, nil)
				}
				pass(together)
				b.expect("afterwards", tc.tunnel, tc.path)
				if n := b.patches(); n != 1 {
					b.t.Errorf("%d writes, want one", n)
				}
			})
		})
	}
}

func TestServerOf(t *testing.T) {
	for server, also := range map[string][]string{"": nil, "a": nil, "b": {"a", "c"}} {
		c := connected(&evidence.Session{Change: evidence.Change{State: evidence.Attached}, Server: server, Also: also}, time.Millisecond)[0]
		if id, only := ServerOf(c.Message); id != server || only != (also == nil) {
			t.Errorf("%q is of %q, only %v", c.Message, id, only)
		}
	}
}

// TestOutageIsToldOnce: a node of which nothing is to be written says nothing of whether the
// API server answers.
func TestOutageIsToldOnce(t *testing.T) {
	run(t, Config{}, []*corev1.Node{node(tunneledNode), node("other")}, func(b *bench) {
		var away atomic.Bool
		away.Store(true)
		b.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, io.EOF
		})
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		for range 60 {
			b.hub.news <- "other"
			pass(time.Second)
		}
		if log := b.log.String(); strings.Contains(log, "answers again") || strings.Count(log, "will retry") != 1 {
			b.t.Errorf("in an outage the log says\n%s", log)
		}
		away.Store(false)
		pass(5 * time.Minute)
		b.expect("afterwards", "True Attached", "True ProbeSucceeded")
		if log := b.log.String(); strings.Count(log, "answers again") != 1 {
			b.t.Errorf("after an outage the log says\n%s", log)
		}
	})
}
