package controlplane

// Running controllers: in terms of leadership, each by itself.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/leader"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// A Controller is a loop with a name. Run returns nil when ctx is done, having
// joined all it started, and may be called again. It returns an error for a
// fault that it cannot get over by itself.
type Controller interface {
	Name() string
	Run(ctx context.Context) error
}

// Ready is closed once every controller has been started that this process is to
// run: as the leader all of them, and as one that stands by those that run everywhere.
// Each is started when the kinds that it watches have been listed. Those whose kinds
// cannot be listed within Config.ReadyBound are not waited for here; see Missing.
func (p *ControlPlane) Ready() <-chan struct{} { return p.ready }

// Run runs the controllers until ctx is done. It returns an error at once if
// they cannot be made, and nil when asked to stop.
func (p *ControlPlane) Run(ctx context.Context) error {
	if p.cfg.Leader == nil {
		return p.term(ctx, p.entries, sync.OnceFunc(func() { close(p.ready) }))
	}
	var everywhere, led []entry
	for _, e := range p.entries {
		if e.everywhere {
			everywhere = append(everywhere, e)
		} else {
			led = append(led, e)
		}
	}
	if len(led) == 0 {
		// A process that would do nothing as the leader leaves that to others.
		return p.term(ctx, everywhere, sync.OnceFunc(func() { close(p.ready) }))
	}
	client, err := clientFor(tuned(p.cfg.Client, managerAgent), "leader-election")
	if err != nil {
		return err
	}
	events := newEvents()
	defer events.Shutdown()
	elector, err := p.elector(client, events)
	if err != nil {
		return err
	}
	here, leading := make(chan struct{}), make(chan struct{})
	onceLeading := sync.OnceFunc(func() { close(leading) })
	return loop.Together(ctx,
		func(ctx context.Context) error { return p.term(ctx, everywhere, func() { close(here) }) },
		func(ctx context.Context) error {
			return elector.Run(ctx, func(ctx context.Context) error { return p.term(ctx, led, onceLeading) })
		},
		func(ctx context.Context) error {
			for _, c := range [][]<-chan struct{}{{here, nil}, {leading, elector.Follows()}} {
				select {
				case <-c[0]:
				case <-c[1]:
				case <-ctx.Done():
					return nil
				}
			}
			close(p.ready)
			return nil
		},
	)
}

// elector tells in events who leads, as from the component that Kubernetes names.
func (p *ControlPlane) elector(client kubernetes.Interface, events *events) (*leader.Elector, error) {
	c := *p.cfg.Leader
	c.Client, c.Log = client, p.log
	c.Events = events.recorder("kube-controller-manager", client)
	return leader.New(c)
}

// term makes controllers and runs them until ctx is done, also if there are none.
func (p *ControlPlane) term(ctx context.Context, entries []entry, started func()) error {
	s, err := p.share()
	if err != nil {
		return err
	}
	return p.serve(ctx, s, entries, started)
}

// serve makes controllers from s, which it uses up, and runs them until ctx is done.
func (p *ControlPlane) serve(ctx context.Context, s *shared, entries []entry, started func()) error {
	defer s.events.Shutdown()
	defer s.freezes.Shutdown()
	defer s.metrics.end()
	var ms []member
	for i := range entries {
		e := &entries[i]
		its, k, err := s.of(e)
		if err != nil {
			return err
		}
		c, err := e.make(its)
		if err != nil {
			return fmt.Errorf("make %s: %w", e.name, err)
		}
		if c != nil {
			ms = append(ms, member{c, k})
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer s.deps.Informers.Shutdown() // waits for the informers, which end with ctx
	defer cancel()
	s.deps.Informers.Start(ctx.Done())
	p.runAll(ctx, ms, started)
	return nil
}

// runAll runs controllers, each as soon as its kinds have been listed.
func (p *ControlPlane) runAll(ctx context.Context, ms []member, started func()) {
	var wg sync.WaitGroup
	running := make(chan struct{}, len(ms))
	for _, m := range ms {
		p.roster.add(m)
		wg.Go(func() {
			came := time.Now()
			ok := m.kinds.wait(ctx)
			p.roster.remove(m)
			if !ok {
				return
			}
			running <- struct{}{}
			if waited := time.Since(came); waited >= p.cfg.ReadyBound {
				p.log.Info("the controller starts: all kinds that it watches have been listed now", "controller", m.Name(), "waited", waited)
			}
			p.supervise(ctx, m)
		})
	}
	p.settle(ctx, len(ms), running, started)
	if len(ms) > 0 && ctx.Err() == nil {
		p.log.Info("controllers started", "count", len(ms)-len(p.Missing()))
	}
	wg.Wait()
	<-ctx.Done()
}

// supervise runs one controller, again and again, until ctx is done.
func (p *ControlPlane) supervise(ctx context.Context, c Controller) {
	log := p.log.With("controller", c.Name())
	for pause := time.Duration(0); ; {
		p.metrics.running(c.Name(), true)
		began := time.Now()
		err := loop.Protect(func() error { return c.Run(ctx) })
		p.metrics.running(c.Name(), false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 10*p.cfg.MaxRestart {
			pause = 0
		}
		pause = min(max(2*pause, p.cfg.MinRestart), p.cfg.MaxRestart)
		p.metrics.restart(c.Name())
		attrs := []any{"error", err, "in", pause}
		if broken := new(loop.PanicError); errors.As(err, &broken) {
			attrs = append(attrs, "stack", string(broken.Stack))
		}
		log.Error("controller ended; it will be started again", attrs...)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
