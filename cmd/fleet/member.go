// A member: one simulated node, through all its lives.

package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/fleet/fakeruntime"
	"github.com/hawser-project/hawser/node"
)

const (
	// drainTimeout is how long a node that leaves lets its streams finish.
	drainTimeout = 2 * time.Second
	// retryDelay is the pause before a node whose life has failed begins another.
	retryDelay = time.Second

	apiName   = "kubernetes"    // as the API server's certificate names it
	apiTarget = "apiserver:443" // as the tunnel does
)

// A member is one node. What survives its agent is kept here: identity, network
// and containers.
type member struct {
	fleet   *Fleet
	name    string
	zone    string
	ip      netip.Addr
	runtime *fakeruntime.Runtime
	wire    partition // below the session
	api     partition // between the node and the API server

	identity *bootstrap.Identity // set by join, before any life
	arrival  sync.Once           // of its first session
	placed   atomic.Bool         // its Node says which site it is of
	agent    atomic.Pointer[agent.Agent]
	conns    atomic.Pointer[node.Connections] // to the API server

	mu      sync.Mutex // guards the following
	faults  map[Kind]int
	changed chan struct{}      // closed, and replaced, when the number of kills or restarts changes
	end     context.CancelFunc // ends the life; nil between lives
}

func newMember(f *Fleet, i int, ip netip.Addr) *member {
	name := f.cfg.Prefix + strconv.Itoa(i+1)
	return &member{
		fleet: f, name: name, zone: zoneOf(i, f.cfg.Zones), ip: ip,
		runtime: fakeruntime.New(name), faults: map[Kind]int{}, changed: make(chan struct{}),
	}
}

// run joins and then lives, again and again, until ctx is done. It joins when
// joins has room.
func (m *member) run(ctx context.Context, joins chan struct{}) error {
	defer m.release()
	if err := m.join(ctx, joins); err != nil {
		return err
	}
	last := ""
	for m.awaken(ctx) {
		life, end := context.WithCancel(ctx)
		m.begin(end)
		err := m.live(life)
		ended := life.Err() != nil
		m.begin(nil)
		end()
		if ended {
			continue
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		if text := err.Error(); text != last {
			last = text
			m.fleet.cfg.Log.Warn("a simulated node failed, will try again", "node", m.name, "err", err)
		}
		pause(ctx, retryDelay)
	}
	return nil
}

func (m *member) join(ctx context.Context, joins chan struct{}) error {
	select {
	case joins <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-joins }()
	var err error
	m.identity, err = bootstrap.Join(ctx, m.fleet.joinConfig(m.name))
	return err
}

// release lets go of connections that a partition holds.
func (m *member) release() {
	m.api.resume()
	m.wire.resume()
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// begin notes how to end the life that begins, or nil for that there is none.
func (m *member) begin(end context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end = end
	if end != nil && m.downLocked() {
		end() // since awaken looked
	}
}

func (m *member) downLocked() bool { return m.faults[Kill]+m.faults[Restart] > 0 }

// awaken waits until the node may live. It returns false when ctx is done.
func (m *member) awaken(ctx context.Context) bool {
	for ctx.Err() == nil {
		m.mu.Lock()
		down, changed := m.downLocked(), m.changed
		m.mu.Unlock()
		if !down {
			return true
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return false
}

// apply begins or ends a fault.
func (m *member) apply(s Step) {
	kind := s.Fault.Kind
	switch kind {
	case Cut:
		m.wire.cut()
		return
	case Flap:
		kind = Silence
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if kind == Restart && s.Fault.For == 0 {
		m.endLocked()
		return
	}
	if s.Begin {
		m.faults[kind]++
	} else if m.faults[kind] > 0 {
		m.faults[kind]--
	}
	on := m.faults[kind] > 0
	switch kind {
	case Silence:
		m.wire.set(on)
	case Mute:
		m.api.set(on)
	case Sick:
		m.runtime.SetHealth(sickness(on))
	case Kill:
		m.wire.setDown(on)
		if on {
			m.wire.cut()
		}
		m.turnLocked()
	case Restart:
		m.turnLocked()
	}
}

func sickness(on bool) error {
	if !on {
		return nil
	}
	return errors.New("the simulated runtime is out of order")
}

// turnLocked ends the life of a node that is down, and tells one that waits.
func (m *member) turnLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
	if m.downLocked() {
		m.endLocked()
	}
}

func (m *member) endLocked() {
	if m.end != nil {
		m.end()
	}
}

// linkTLS is how the agent shows who it is.
func (m *member) linkTLS(context.Context) (*tls.Config, error) { return m.identity.ClientTLS(""), nil }

// moved has later requests use the session that the agent has moved to.
func (m *member) moved(stuck bool) {
	switch c := m.conns.Load(); {
	case c == nil:
	case stuck:
		c.Close()
	default:
		c.Renew()
	}
}

// dialAPI connects to the API server through the session.
func (m *member) dialAPI(a *agent.Agent) dialFunc {
	return m.api.wrapDial(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return a.DialContext(ctx, "tcp", apiTarget)
	})
}

// live is one life of the node: from the start of its agent to its end.
func (m *member) live(ctx context.Context) error {
	if m.fleet.cfg.Weight == Full {
		return m.liveFull(ctx)
	}
	return m.liveLight(ctx)
}

// together runs the parts of a node above its link, and the link, until ctx is done
// or a part fails. The link ends last.
func (m *member) together(ctx context.Context, link *agent.Agent, conns *node.Connections, parts ...func(context.Context) error) error {
	m.agent.Store(link)
	m.conns.Store(conns)
	defer m.conns.Store(nil)
	defer m.agent.Store(nil)
	below, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return link.Run(below) })
	group.Go(func() error {
		if link.Wait(ctx) == nil {
			m.arrival.Do(m.fleet.readyCounter.arrived)
			m.place(ctx)
		}
		return nil
	})
	group.Go(func() error {
		defer stop()
		upper, upperCtx := errgroup.WithContext(ctx)
		for _, part := range parts {
			upper.Go(func() error { return part(upperCtx) })
		}
		err := upper.Wait()
		conns.Close()
		return err
	})
	return group.Wait()
}

// place has the administrator say which site the node is of, its zone, once there
// is a Node: a node cannot say it itself.
func (m *member) place(ctx context.Context) {
	patch := []byte(`{"metadata":{"labels":{"` + auth.SiteLabel + `":"` + m.zone + `"}}}`)
	for ctx.Err() == nil && !m.placed.Load() {
		if _, known := m.fleet.readyCounter.of(m.name); !known {
			pause(ctx, retryDelay)
			continue
		}
		_, err := m.fleet.admin.CoreV1().Nodes().Patch(ctx, m.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			pause(ctx, retryDelay)
			continue
		}
		m.placed.Store(true)
	}
}

// nodeAddr is what the listener of a kubelet API is called: it has no port.
type nodeAddr string

func (nodeAddr) Network() string  { return "tunnel" }
func (a nodeAddr) String() string { return net.JoinHostPort(string(a), fmt.Sprint(node.KubeletPort)) }
