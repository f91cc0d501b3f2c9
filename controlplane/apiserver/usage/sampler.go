package usage

// Asking nodes: each once at a time, few at a time, and not too often.

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// A sampler remembers what nodes said.
type sampler struct {
	Config
	slots chan struct{}   // one a node that is being asked
	end   context.Context //nolint:containedctx // done when the storages are destroyed
	stop  context.CancelFunc

	mu    sync.Mutex // guards the following
	nodes map[string]*memory
	under sync.WaitGroup // questions; none is added once end is done
}

// memory is what is known of one node.
type memory struct {
	asking chan struct{} // closed once the question under way is answered; nil if there is none
	asked  time.Time     // when the last question was answered, or failed
	last   *reading      // what it said last; nil if nothing
	used   *amounts      // nil if the last question failed
}

func newSampler(c Config) *sampler {
	s := &sampler{Config: c, slots: make(chan struct{}, MaxAsked), nodes: map[string]*memory{}}
	s.end, s.stop = context.WithCancel(context.Background())
	return s
}

// Destroy ends what is under way, and waits for it. Nothing is asked after that.
func (s *sampler) Destroy() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.under.Wait()
}

// all returns what each of the nodes uses that can be asked, by name.
func (s *sampler) all(ctx context.Context, nodes []string) map[string]*amounts {
	ctx, cancel := context.WithTimeout(ctx, ListTimeout)
	defer cancel()
	s.forget()
	out := make(map[string]*amounts, len(nodes))
	waits := make(map[string]<-chan struct{})
	for _, name := range nodes {
		if a, wait := s.look(ctx, name); wait != nil {
			waits[name] = wait
		} else if a != nil {
			out[name] = a
		}
	}
	for name, wait := range waits {
		select {
		case <-wait:
		case <-ctx.Done():
			return out
		}
		if a := s.known(name); a != nil {
			out[name] = a
		}
	}
	return out
}

// look returns what is known of a node if that is fresh. Otherwise the node is being
// asked until wait is closed.
func (s *sampler) look(ctx context.Context, node string) (a *amounts, wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.nodes[node]
	if m == nil {
		m = &memory{}
		s.nodes[node] = m
	}
	if m.asking != nil {
		return nil, m.asking
	}
	if !m.asked.IsZero() && time.Since(m.asked) < Fresh {
		return m.used, nil
	}
	if s.end.Err() != nil {
		return nil, nil
	}
	m.asking = make(chan struct{})
	before := m.last
	// Others may wait for the answer too, so it does not end with this request.
	s.under.Go(func() { s.ask(context.WithoutCancel(ctx), node, m, before) })
	return nil, m.asking
}

func (s *sampler) known(node string) *amounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.nodes[node]; m != nil {
		return m.used
	}
	return nil
}

// forget drops what is too old to be of use, so that nodes that are gone are.
func (s *sampler) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range s.nodes {
		if m.asking == nil && time.Since(m.asked) > maxSpan {
			delete(s.nodes, name)
		}
	}
}

// ask asks a node, twice if that is needed, and notes the outcome in m.
func (s *sampler) ask(ctx context.Context, node string, m *memory, before *reading) {
	ctx, cancel := context.WithTimeout(ctx, ListTimeout)
	defer cancel()
	defer context.AfterFunc(s.end, cancel)()
	last, used, err := s.measure(ctx, node, before)
	if err != nil {
		s.Log.Debug("a node does not say what it uses", "node", node, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.asked, m.last, m.used = time.Now(), last, used
	close(m.asking)
	m.asking = nil
}

func (s *sampler) measure(ctx context.Context, node string, before *reading) (*reading, *amounts, error) {
	if before != nil && time.Since(before.at) > maxSpan {
		before = nil
	}
	first, err := s.read(ctx, node)
	if err != nil {
		return before, nil, err
	}
	used := first.since(before)
	if used.complete {
		return first, used, nil
	}
	t := time.NewTimer(again)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return first, used, context.Cause(ctx)
	}
	second, err := s.read(ctx, node)
	if err != nil {
		return first, used, err
	}
	return second, second.since(first), nil
}

// read asks a node once.
func (s *sampler) read(ctx context.Context, node string) (*reading, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.slots }()
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	said, err := s.Ask(ctx, node)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	pods, err := s.Pods(request.WithNamespace(ctx, metav1.NamespaceAll), &metainternalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node), ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	return newReading(said, node, pods.Items, now), nil
}

// nodesOf are the nodes of pods that run, each once.
func nodesOf(pods []corev1.Pod) []string {
	var out []string
	seen := map[string]bool{}
	for i := range pods {
		if n := pods[i].Spec.NodeName; runs(&pods[i]) && !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

func runs(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.Status.Phase == corev1.PodRunning
}
