package tunnelhealth

// Tests of conditions, events and probes, on a virtual clock and a fake API.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tunneledNode is the node that has a tunnel: the name that httptest's certificate is
// for.
const tunneledNode = "example.com"

// silent is the status of a kubelet that says nothing.
const silent = "silent"

// A hub is a Source that says what it is told, and the network behind it.
type hub struct {
	server, client *tls.Config

	mu       sync.Mutex // guards the following
	sessions map[string]*evidence.Session
	unknown  evidence.Session // what is said of other nodes
	news     chan string
	refuse   error // what a dial fails with
	status   string
	asked    int
}

func newHub(t *testing.T) *hub {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &hub{
		server:   &tls.Config{MinVersion: tls.VersionTLS12, Certificates: s.TLS.Certificates},
		client:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		sessions: make(map[string]*evidence.Session), news: make(chan string, 100), status: "200 OK",
	}
}

func (h *hub) Observe(node string) (evidence.Session, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[node]
	if s == nil {
		return h.unknown, false
	}
	out := *s
	out.Changes = slices.Clone(s.Changes)
	return out, true
}

func (h *hub) Follow(ctx context.Context, f func([]string)) error {
	for {
		select {
		case n := <-h.news:
			f([]string{n})
		case <-ctx.Done():
			return nil
		}
	}
}

// turn changes a node's session.
func (h *hub) turn(node string, c evidence.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[node]
	if s == nil {
		s = &evidence.Session{Node: node, Window: time.Minute}
		h.sessions[node] = s
	}
	c.Number, c.At, c.Transport, c.Addr = uint64(len(s.Changes)+1), time.Now(), "quic", "192.0.2.1:4711"
	s.Change, s.Changes = c, append(s.Changes, c)
	h.news <- node
}

// dial answers one request on each connection.
func (h *hub) dial(_ context.Context, network, addr string) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	if network != "tcp" || addr != tunneledNode+":10250" {
		return nil, fmt.Errorf("dial %s: no such node", addr)
	}
	if h.refuse != nil {
		return nil, h.refuse
	}
	near, far := net.Pipe()
	status := h.status
	if status == silent {
		return near, nil
	}
	go func() { // ends with the connection
		defer far.Close()
		c := tls.Server(far, h.server)
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		body := strings.TrimPrefix(r.URL.Path, "/")
		fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
		_, _ = io.Copy(io.Discard, c) // until the client hangs up
	}()
	return near, nil
}

func (h *hub) answer(status string, refuse error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status, h.refuse = status, refuse
}

func (h *hub) asks() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// A bench is a controller that runs.
type bench struct {
	t      *testing.T
	hub    *hub
	client *fake.Clientset
	events *record.FakeRecorder
	ctl    *Controller
	log    bytes.Buffer // of the controller
}

// run has test use a controller over the given nodes.
func run(t *testing.T, c Config, nodes []*corev1.Node, test func(b *bench)) {
	t.Helper()
	count(t, nil, c, nodes, test)
}

// count is run with metrics.
func count(t *testing.T, reg prometheus.Registerer, c Config, nodes []*corev1.Node, test func(b *bench)) {
	t.Helper()
	h := newHub(t)
	synctest.Test(t, func(t *testing.T) {
		h.news = make(chan string, 100) // of the bubble
		b := &bench{t: t, hub: h, client: fake.NewClientset(), events: record.NewFakeRecorder(1000)}
		for _, n := range nodes {
			if _, err := b.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		f := informers.NewSharedInformerFactory(b.client, 0)
		c.Source, c.Dial, c.TLS = h, h.dial, h.client
		var err error
		if b.ctl, err = New(loop.Deps{Client: b.client, Informers: f, Events: b.events, Metrics: reg, Log: slog.New(slog.NewTextHandler(&b.log, nil))}, c); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.ctl.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		synctest.Wait()
		test(b)
		cancel()
		wg.Wait()
		f.Shutdown()
		b.ctl.http.CloseIdleConnections()
	})
}

func node(name string, conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: conditions}}
}

// says is a condition of a node as text; empty if there is none.
func (b *bench) says(name string, t corev1.NodeConditionType) string {
	b.t.Helper()
	n, err := b.client.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	c := condition(n, t)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s", c.Status, c.Reason)
}

func (b *bench) expect(when, tunnel, path string) {
	b.t.Helper()
	synctest.Wait()
	if got := b.says(tunneledNode, evidence.TunnelConnected); got != tunnel {
		b.t.Errorf("%s: TunnelConnected is %q, want %q", when, got, tunnel)
	}
	if got := b.says(tunneledNode, evidence.DataPathReady); got != path {
		b.t.Errorf("%s: DataPathReady is %q, want %q", when, got, path)
	}
}

func (b *bench) told() []string {
	var out []string
	for {
		select {
		case e := <-b.events.Events:
			out = append(out, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return out
		}
	}
}

// patches is how many writes there were.
func (b *bench) patches() int {
	n := 0
	for _, a := range b.client.Actions() {
		if a.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestLifeOfASession(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	run(t, Config{}, []*corev1.Node{node(tunneledNode, ready), node("foreign", ready)}, func(b *bench) {
		b.expect("before", "", "")
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		pass(2 * time.Second)
		b.expect("attached", "True Attached", "True ProbeSucceeded")

		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Parked, Session: 1, Cause: evidence.Closed, Err: "EOF"})
		pass(500 * time.Millisecond)
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		before := b.patches()
		pass(2 * time.Second)
		b.expect("after a blink", "True Attached", "True ProbeSucceeded")
		if n := b.patches() - before; n > 1 { // of the time in the message
			b.t.Errorf("%d writes for a blink", n)
		}

		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Parked, Session: 1, Cause: evidence.Silent, Err: "nothing heard for 20s", Heard: time.Now()})
		pass(2 * time.Second)
		b.expect("parked", "False ParkedLinkSilent", "Unknown NoTunnel")
		asked := b.hub.asks()
		pass(time.Minute)
		if n := b.hub.asks() - asked; n != 0 {
			b.t.Errorf("%d probes without a connection", n)
		}
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Detached, Session: 1, Cause: evidence.Silent})
		pass(2 * time.Second)
		b.expect("over", "False LinkSilent", "Unknown NoTunnel")
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 2})
		pass(2 * time.Second)
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Detached, Session: 2, Cause: evidence.Left})
		pass(2 * time.Second)
		b.expect("stopped", "False AgentStopped", "Unknown NoTunnel")

		want := []string{
			"Normal TunnelAttached", "Warning TunnelParked", "Normal TunnelResumed", "Warning TunnelParked", "Warning TunnelDetached",
			"Normal TunnelAttached", "Normal TunnelDetached",
		}
		if got := b.told(); !slices.Equal(got, want) {
			b.t.Errorf("events %q, want %q", got, want)
		}
		if got := b.says("foreign", evidence.TunnelConnected) + b.says("foreign", evidence.DataPathReady); got != "" {
			b.t.Errorf("a node without a tunnel says %q", got)
		}
		if got := b.says(tunneledNode, corev1.NodeReady); got != "True KubeletReady" {
			b.t.Errorf("the node's own condition is %q", got)
		}
	})
}

func TestProbes(t *testing.T) {
	reg := prometheus.NewRegistry()
	count(t, reg, Config{}, []*corev1.Node{node(tunneledNode)}, func(b *bench) {
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		pass(2 * time.Second)
		b.expect("at first", "True Attached", "True ProbeSucceeded")
		writes := b.patches()
		pass(10 * time.Minute)
		if n := b.hub.asks(); n < 18 || n > 24 {
			b.t.Errorf("%d probes in ten minutes", n)
		}
		if n := b.patches() - writes; n != 0 {
			b.t.Errorf("%d writes although nothing changed", n)
		}
		b.hub.answer("", errors.New("dial example.com:10250: connection refused"))
		pass(40 * time.Second)
		b.expect("refused", "True Attached", "False ProbeFailed")
		n, err := b.client.CoreV1().Nodes().Get(b.t.Context(), tunneledNode, metav1.GetOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		if c := condition(n, evidence.DataPathReady); !strings.HasSuffix(c.Message, ": dial example.com:10250: connection refused") ||
			time.Since(c.LastTransitionTime.Time) > 40*time.Second {
			b.t.Errorf("got %+v", c)
		}
		b.hub.answer("500 Internal Server Error", nil)
		pass(40 * time.Second)
		b.expect("ill", "True Attached", "False ProbeFailed")
		b.hub.answer("200 OK", nil)
		pass(40 * time.Second)
		b.expect("well again", "True Attached", "True ProbeSucceeded")
		if n := testutil.ToFloat64(b.ctl.metrics.probes.WithLabelValues("failed")); n < 3 {
			b.t.Errorf("%v failures counted", n)
		}
	})
}

// TestProbesOfAStranger: a kubelet that says 401 or 403 has answered, if it does not know
// who asks.
func TestProbesOfAStranger(t *testing.T) {
	for stranger, want := range map[bool]string{true: "True ProbeSucceeded", false: "False ProbeFailed"} {
		for _, answer := range []string{"401 Unauthorized", "403 Forbidden"} {
			run(t, Config{Stranger: stranger}, []*corev1.Node{node(tunneledNode)}, func(b *bench) {
				b.hub.answer(answer, nil)
				b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
				pass(time.Minute)
				b.expect(answer, "True Attached", want)
			})
		}
	}
}

// TestLostIsAsked: a node that has been found silent is asked at once, once.
func TestLostIsAsked(t *testing.T) {
	run(t, Config{ProbePeriod: time.Hour}, []*corev1.Node{node(tunneledNode)}, func(b *bench) {
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		pass(time.Minute)
		b.hub.answer("", errors.New("nothing comes back"))
		n, err := b.client.CoreV1().Nodes().Get(b.t.Context(), tunneledNode, metav1.GetOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.Now(),
		})
		before := b.hub.asks()
		if _, err = b.client.CoreV1().Nodes().UpdateStatus(b.t.Context(), n, metav1.UpdateOptions{}); err != nil {
			b.t.Fatal(err)
		}
		pass(10 * time.Second)
		b.expect("silent", "True Attached", "False ProbeFailed")
		if n := b.hub.asks() - before; n != 2 {
			b.t.Errorf("asked %d times, want twice: only two failures are believed", n)
		}
	})
}

// A node of which only conditions are left, from before the server was started.
func TestMissing(t *testing.T) {
	was := corev1.NodeCondition{Type: evidence.TunnelConnected, Status: corev1.ConditionTrue, Reason: Attached}
	run(t, Config{}, []*corev1.Node{node(tunneledNode, was)}, func(b *bench) {
		pass(59 * time.Second)
		b.expect("in time", "True Attached", "")
		pass(2 * time.Second)
		b.expect("too late", "False NotConnected", "Unknown NoTunnel")
	})
}

// A session may be there before its Node is.
func TestNodeAfterSession(t *testing.T) {
	run(t, Config{}, nil, func(b *bench) {
		b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		pass(time.Minute)
		if n := b.hub.asks(); n != 0 {
			b.t.Errorf("%d probes of a node that does not exist", n)
		}
		if _, err := b.client.CoreV1().Nodes().Create(b.t.Context(), node(tunneledNode), metav1.CreateOptions{}); err != nil {
			b.t.Fatal(err)
		}
		pass(2 * time.Second)
		b.expect("created", "True Attached", "True ProbeSucceeded")
		if err := b.client.CoreV1().Nodes().Delete(b.t.Context(), tunneledNode, metav1.DeleteOptions{}); err != nil {
			b.t.Fatal(err)
		}
		pass(time.Minute)
		if n := len(b.ctl.memos); n != 0 {
			b.t.Errorf("%d nodes are remembered", n)
		}
	})
}

func TestEventsAreBounded(t *testing.T) {
	run(t, Config{EventRate: 1}, []*corev1.Node{node(tunneledNode)}, func(b *bench) {
		for range 90 {
			b.hub.turn(tunneledNode, evidence.Change{State: evidence.Attached, Session: 1})
		}
		pass(2 * time.Second)
		if n := len(b.told()); n < 10 || n > 14 {
			b.t.Errorf("%d events", n)
		}
		if n := testutil.ToFloat64(b.ctl.metrics.dropped); n < 76 || n > 80 {
			b.t.Errorf("%v dropped", n)
		}
	})
}

func TestReasons(t *testing.T) {
	at := time.Date(2026, 11, 22, 14, 2, 11, 0, time.UTC)
	for _, tc := range []struct {
		state   evidence.State
		cause   evidence.Cause
		status  corev1.ConditionStatus
		reason  string
		message string
	}{
		{evidence.Attached, "", corev1.ConditionTrue, "Attached", "session 3 over h2 from 192.0.2.1:1, attached since 2026-11-22T14:02:11Z, round trip about 20ms"},
		{evidence.Parked, evidence.Silent, corev1.ConditionFalse, "ParkedLinkSilent", "session 3 over h2 from 192.0.2.1:1 waits for another connection since 2026-11-22T14:02:11Z, until 2026-11-22T14:03:11Z; last heard at 2026-11-22T14:01:51Z; said"},
		{evidence.Parked, evidence.Closed, corev1.ConditionFalse, "ParkedConnectionClosed", ""},
		{evidence.Detached, evidence.Silent, corev1.ConditionFalse, "LinkSilent", "no session since 2026-11-22T14:02:11Z; last heard at 2026-11-22T14:01:51Z; said"},
		{evidence.Detached, evidence.Closed, corev1.ConditionFalse, "ConnectionClosed", ""},
		{evidence.Detached, evidence.Left, corev1.ConditionFalse, "AgentStopped", ""},
		{evidence.Detached, evidence.Refused, corev1.ConditionFalse, "AgentRefused", ""},
		{evidence.Detached, evidence.Failed, corev1.ConditionFalse, "TunnelFailed", ""},
	} {
		s := evidence.Session{Window: time.Minute, Change: evidence.Change{
			State: tc.state, Cause: tc.cause, At: at, Heard: at.Add(-20 * time.Second), Session: 3, Transport: "h2", Addr: "192.0.2.1:1", Err: "said",
		}}
		c := connected(&s, 20*time.Millisecond)[0]
		if c.Status != tc.status || c.Reason != tc.reason || tc.message != "" && c.Message != tc.message {
			t.Errorf("%s %s: %s %s %q", tc.state, tc.cause, c.Status, c.Reason, c.Message)
		}
	}
}

func TestShownRoundTrip(t *testing.T) {
	ms := time.Millisecond
	for _, tc := range []struct{ so, rtt, want time.Duration }{
		{0, 0, 0},
		{0, 40 * time.Microsecond, 100 * time.Microsecond},
		{0, ms, ms},
		{0, 18 * ms, 20 * ms},
		{0, 33 * ms, 50 * ms},
		{20 * ms, 55 * ms, 20 * ms},
		{20 * ms, 61 * ms, 50 * ms},
		{20 * ms, 7 * ms, 20 * ms},
		{20 * ms, 6 * ms, 5 * ms},
		{20 * ms, 0, 20 * ms},
		{0, time.Hour, 60 * time.Minute},
	} {
		if got := shown(tc.so, tc.rtt); got != tc.want && tc.rtt < time.Hour || got <= 0 && tc.rtt > 0 {
			t.Errorf("%v after %v: %v, want %v", tc.rtt, tc.so, got, tc.want)
		}
	}
}
