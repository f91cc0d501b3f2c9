package controlplane

// An API server in memory with all the controllers of a server's life, in virtual
// time, for tests of what one life leaves to the next.

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
)

const (
	heartbeat     = 10 * time.Second
	noticed       = 20 * time.Second // after the last word a session is parked
	detached      = 80 * time.Second // and after this it is over
	reattachDelay = 2 * time.Second  // after a start of the server agents are attached again
	autonomy      = 12 * time.Minute // of a site that has lost its network
)

// A plant must be used in a bubble of synctest. Each node has one pod, of its name.
type plant struct {
	t         *testing.T
	client    *fake.Clientset // of the controllers
	own       *fake.Clientset // of nodes: nothing is refused to them
	server    *apitest.Server
	began     time.Time
	cert, key string
	log       lines
	freezes   Freezes // nil if nobody wants to know

	mu      sync.Mutex               // guards the following
	refused map[string]bool          // resources that cannot be listed
	cut     map[string]time.Time     // when nodes were cut off
	deleted map[string]time.Duration // when pods were
	links   error                    // of the server
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// with returns the lines that have all of the words.
func (l *lines) with(words ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(strings.Split(l.text.String(), "\n"), func(s string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s, w) })
	})
}

// newPlant makes nodes, given as SITE/NAME, that beat until the test ends.
func newPlant(t *testing.T, cert, key string, nodes ...string) *plant {
	t.Helper()
	client, server, err := apitest.New()
	if err != nil {
		t.Fatal(err)
	}
	p := &plant{
		t: t, client: client, own: &fake.Clientset{}, server: server, began: time.Now(), cert: cert, key: key,
		refused: map[string]bool{}, cut: map[string]time.Time{}, deleted: map[string]time.Duration{},
	}
	server.Serve(&p.own.Fake)
	refuse := func(a clienttesting.Action) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r := a.GetResource().Resource; p.refused[r] {
			return apierrors.NewInternalError(errors.New("an object of " + r + " cannot be read"))
		}
		return nil
	}
	client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		err := refuse(a)
		return err != nil, nil, err
	})
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		err := refuse(a)
		return err != nil, nil, err
	})
	client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if d, ok := a.(clienttesting.DeleteAction); ok && p.deleted[d.GetName()] == 0 {
			p.deleted[d.GetName()] = time.Since(p.began)
		}
		return false, nil, nil
	})
	for _, n := range nodes {
		site, name, _ := strings.Cut(n, "/")
		p.add(site, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.beat(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return p
}

func (p *plant) add(site, name string) {
	p.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{auth.SiteLabel: site}}}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	patience := int64(300)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: name}}
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &patience,
		})
	}
	_, err := p.client.CoreV1().Nodes().Create(p.t.Context(), n, metav1.CreateOptions{})
	_, err2 := p.client.CoreV1().Pods("ns").Create(p.t.Context(), pod, metav1.CreateOptions{})
	p.must(errors.Join(err, err2))
	p.renew(name)
}

// beat has the nodes that are not cut off renew their Leases.
func (p *plant) beat(ctx context.Context) {
	t := time.NewTicker(heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, name := range p.attached() {
			p.renew(name)
		}
	}
}

func (p *plant) renew(name string) {
	now := metav1.NewMicroTime(time.Now())
	leases := p.own.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	l, err := leases.Get(context.WithoutCancel(p.t.Context()), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		_, err = leases.Create(context.WithoutCancel(p.t.Context()), l, metav1.CreateOptions{})
	} else if err == nil {
		l.Spec.RenewTime = &now
		_, err = leases.Update(context.WithoutCancel(p.t.Context()), l, metav1.UpdateOptions{})
	}
	if err != nil {
		p.t.Error(err)
	}
}

// attached returns the nodes that are not cut off.
func (p *plant) attached() []string {
	nodes, err := p.own.CoreV1().Nodes().List(context.WithoutCancel(p.t.Context()), metav1.ListOptions{})
	if err != nil {
		p.t.Error(err)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for i := range nodes.Items {
		if n := nodes.Items[i].Name; p.cut[n].IsZero() {
			out = append(out, n)
		}
	}
	return out
}

// cutOff cuts nodes off: nothing is heard of them any more.
func (p *plant) cutOff(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range names {
		p.cut[n] = time.Now()
	}
}

// mend has a node be heard again.
func (p *plant) mend(name string) {
	p.t.Helper()
	p.mu.Lock()
	delete(p.cut, name)
	p.mu.Unlock()
	p.renew(name)
	p.post(name, corev1.ConditionTrue, metav1.Now())
}

// post has a node post whether it is ready, and since when by its own account.
func (p *plant) post(name string, ready corev1.ConditionStatus, since metav1.Time) {
	p.t.Helper()
	n := p.node(name)
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			c.Status, c.LastHeartbeatTime, c.LastTransitionTime = ready, metav1.Now(), since
		}
	}
	_, err := p.client.CoreV1().Nodes().UpdateStatus(p.t.Context(), n, metav1.UpdateOptions{})
	p.must(err)
}

// annotate sets an annotation of a node.
func (p *plant) annotate(name, key, value string) {
	p.t.Helper()
	n := p.node(name)
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, key, value)
	_, err := p.client.CoreV1().Nodes().Update(p.t.Context(), n, metav1.UpdateOptions{})
	p.must(err)
}

// refuse has resources that cannot be listed.
func (p *plant) refuse(resources ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = map[string]bool{}
	for _, r := range resources {
		p.refused[r] = true
	}
}

func (p *plant) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) until(d time.Duration) {
	p.t.Helper()
	apitest.Until(p.t, p.began, d)
}

func (p *plant) node(name string) *corev1.Node {
	p.t.Helper()
	n, err := p.client.CoreV1().Nodes().Get(p.t.Context(), name, metav1.GetOptions{})
	p.must(err)
	return n
}

// tunnel is the reason of the node's condition TunnelConnected.
func (p *plant) tunnel(name string) string {
	p.t.Helper()
	for _, c := range p.node(name).Status.Conditions {
		if c.Type == evidence.TunnelConnected {
			return c.Reason
		}
	}
	return ""
}

// tainted is when the node got its NoExecute taint; zero if it has none.
func (p *plant) tainted(name string) time.Duration {
	p.t.Helper()
	for _, t := range p.node(name).Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			return t.TimeAdded.Sub(p.began)
		}
	}
	return 0
}

// evicted is when pods were deleted.
func (p *plant) evicted() map[string]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.deleted)
}

// A life is one of the server's, from a start to a stop.
type life struct {
	*ControlPlane
	registry *prometheus.Registry
	started  chan struct{}
	stop     func()
}

// start begins a life of the server. The sessions of the one before are gone.
func (p *plant) start() *life {
	p.t.Helper()
	reg := prometheus.NewRegistry()
	cfg := Config{
		Client: &rest.Config{}, Signer: csr.SignerConfig{CertFile: p.cert, KeyFile: p.key}, Metrics: reg,
		Log: slog.New(slog.NewTextHandler(&p.log, nil)),
		Tunnel: &Tunnel{
			Source: &hub{plant: p, started: time.Now(), sessions: map[string]*evidence.Session{}}, Started: time.Now(),
			Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no way there") },
			Judge: &evidence.Config{SiteAutonomy: autonomy, Links: func() error {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.links
			}},
			Freezes: p.freezes,
		},
	}
	plane, err := New(cfg)
	p.must(err)
	l := &life{ControlPlane: plane, registry: reg, started: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	m := &scope{r: reg}
	s := &shared{
		cfg: plane.cfg, deps: loop.Deps{Client: p.client, Informers: informers.NewSharedInformerFactory(p.client, 0), Metrics: m, Log: plane.log},
		events: newEvents(), freezes: newEvents(), metrics: m,
	}
	done := make(chan error, 1)
	go func() { done <- plane.serve(ctx, s, plane.entries, func() { close(l.started) }) }()
	l.stop = func() {
		cancel()
		p.must(<-done)
		synctest.Wait()
	}
	return l
}

// A hub is the sessions of one life of the server: of the nodes that were not cut
// off when it began.
type hub struct {
	*plant
	started time.Time

	mu       sync.Mutex
	sessions map[string]*evidence.Session // guarded by mu
}

var _ tunnelhealth.Source = (*hub)(nil)

// Follow implements tunnelhealth.Source.
func (h *hub) Follow(ctx context.Context, f func(nodes []string)) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		h.look()
		h.mu.Lock()
		known := slices.Sorted(maps.Keys(h.sessions))
		h.mu.Unlock()
		f(known)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// look brings the sessions up to date.
func (h *hub) look() {
	now := time.Now()
	if now.Sub(h.started) < reattachDelay {
		return
	}
	alive := h.attached()
	h.plant.mu.Lock()
	defer h.plant.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	turn := func(s *evidence.Session, state evidence.State, heard time.Time) {
		c := evidence.Change{Number: s.Number + 1, At: now, State: state, Heard: heard, Session: 1, Transport: "qmux", Addr: "192.0.2.1:4711"}
		if state != evidence.Attached {
			c.Cause = evidence.Silent
		}
		s.Change, s.Changes = c, append(s.Changes, c)
	}
	for _, n := range alive {
		s := h.sessions[n]
		if s == nil {
			s = &evidence.Session{Node: n}
			h.sessions[n] = s
		}
		if s.State != evidence.Attached {
			turn(s, evidence.Attached, now)
		}
	}
	for n, s := range h.sessions {
		switch at := h.cut[n]; {
		case at.IsZero():
		case s.State == evidence.Attached && now.Sub(at) >= noticed:
			turn(s, evidence.Parked, at)
		case s.State == evidence.Parked && now.Sub(at) >= detached:
			turn(s, evidence.Detached, at)
		}
	}
}

// Observe implements evidence.Source.
func (h *hub) Observe(node string) (evidence.Session, bool) {
	h.plant.mu.Lock()
	cut := h.cut[node]
	h.plant.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[node]
	if s == nil {
		return evidence.Session{}, false
	}
	out := *s
	out.Changes = slices.Clone(s.Changes)
	if out.State == evidence.Attached {
		if out.Heard = cut; cut.IsZero() {
			out.Heard = time.Now()
		}
	}
	return out, true
}
