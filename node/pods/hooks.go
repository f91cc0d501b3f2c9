// This file runs lifecycle hooks and probes of a container.

package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/probes"
	"github.com/hawser-project/hawser/node/runtime"
)

// target is the address for probes and hooks.
func (w *worker) target(spec *corev1.Container, id string, ips []string) probes.Target {
	t := probes.Target{
		Ports: spec.Ports,
		Exec: func(ctx context.Context, argv []string, out *probes.Output) (int, error) {
			both := &locked{to: out}
			return w.r.cfg.Runtime.Exec(ctx, id, argv, runtime.Stdio{Out: both, Err: both, Probe: true})
		},
		Dial: func(ctx context.Context, port uint16) (net.Conn, error) {
			// A probe of a port declares that port. One to which the pod's own server redirects
			// is taken for declared, too.
			return w.r.cfg.Runtime.DialProbe(ctx, w.id, port, w.nodeAddrs()...)
		},
	}
	if len(ips) > 0 {
		t.Host = ips[0]
		t.Dial = func(ctx context.Context, port uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(ips[0], strconv.Itoa(int(port))))
		}
	} else if host := w.r.cfg.HostIPs(); len(host) > 0 {
		t.Host = host[0]
	}
	return t
}

// nodeAddrs are the addresses of the node, which are those of a pod without its own.
func (w *worker) nodeAddrs() []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range w.r.cfg.HostIPs() {
		if a, err := netip.ParseAddr(ip); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// locked lets standard output and standard error share one writer.
type locked struct {
	mu sync.Mutex
	to *probes.Output
}

// Write implements io.Writer.
func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// hook runs a lifecycle hook to its end or until ctx is done.
func (w *worker) hook(ctx context.Context, ips []string, spec *corev1.Container, id string, h *corev1.LifecycleHandler) error {
	t := w.target(spec, id, ips)
	switch {
	case h.Exec != nil:
		var out probes.Output
		exit, err := t.Exec(ctx, h.Exec.Command, &out)
		switch {
		case err != nil:
			return fmt.Errorf("Exec lifecycle hook (%v) for Container %q failed - error: %w", h.Exec.Command, spec.Name, err) //nolint:staticcheck // shown to users as Kubernetes does
		case exit != 0:
			return fmt.Errorf("Exec lifecycle hook (%v) for Container %q failed - error: command exited with %d, message: %q", h.Exec.Command, spec.Name, exit, out.String()) //nolint:staticcheck // as above
		}
		return nil
	case h.HTTPGet != nil:
		hctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := w.httpHook(hctx, t, h.HTTPGet); err != nil {
			return fmt.Errorf("HTTP lifecycle hook (%s) for Container %q failed - error: %w", h.HTTPGet.Path, spec.Name, err)
		}
		return nil
	case h.Sleep != nil:
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errors.New("lifecycle hook has no action that this node supports")
}

// httpHook makes a hook's request. As with the kubelet, the status of the answer does not
// matter, and if the server does not speak TLS the request is made again without.
func (w *worker) httpHook(ctx context.Context, t probes.Target, a *corev1.HTTPGetAction) error {
	status, _, err := probes.Get(ctx, a, t)
	switch {
	case status != 0:
		return nil
	case !errors.Is(err, http.ErrSchemeMismatch):
		return err
	}
	plain := *a
	plain.Scheme = corev1.URISchemeHTTP
	plain.HTTPHeaders = slices.DeleteFunc(slices.Clone(a.HTTPHeaders), func(h corev1.HTTPHeader) bool {
		return strings.EqualFold(h.Name, "Authorization")
	})
	if status, _, _ := probes.Get(ctx, &plain, t); status == 0 {
		return err
	}
	w.event(nil, corev1.EventTypeWarning, "LifecycleHTTPFallback", fmt.Sprintf(
		"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", net.JoinHostPort(cmp.Or(a.Host, t.Host), a.Port.String())))
	return nil
}

// probe starts the probes of a running attempt; if it is being ended, only that of
// readiness, which tells clients of a Service whether it still serves them.
func (w *worker) probe(spec *corev1.Container, c *container, a *runtime.ContainerStatus, ending bool) {
	if spec.StartupProbe == nil && spec.LivenessProbe == nil && spec.ReadinessProbe == nil {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	vital, calm := context.WithCancel(ctx)
	c.probeCancel, c.calm = cancel, calm
	if ending {
		calm()
	}
	target := w.target(spec, a.ID, w.sandbox.ips)
	exec := target.Exec
	target.Exec = func(ctx context.Context, argv []string, out *probes.Output) (int, error) {
		argv, err := probeCommand(spec, argv)
		if err != nil {
			return 0, err
		}
		return exec(ctx, argv, out)
	}
	p := prober{w: w, spec: spec, c: c, id: a.ID, since: a.StartedAt, target: target}
	started := c.started
	var ready *bool // not known
	if c.ready {
		ready = ptr.To(true)
	}
	w.tasks.Go(func() { p.run(ctx, vital, started, ready) })
}

// A prober runs the probes of one attempt.
type prober struct {
	w      *worker
	spec   *corev1.Container
	c      *container
	id     string
	since  time.Time
	target probes.Target
}

// run probes until ctx is done: first the startup probe, then liveness and readiness. Startup
// and liveness end with vital.
func (p prober) run(ctx, vital context.Context, started bool, ready *bool) {
	if !started {
		if !p.startup(vital) {
			return
		}
	}
	var wg sync.WaitGroup
	if probe := p.spec.LivenessProbe; probe != nil {
		wg.Go(func() {
			probes.Run(vital, probe, p.target, p.since, nil, func(r probes.Report) bool {
				p.note("Liveness", r)
				if r.Changed && !r.OK {
					p.tell(vital, func() { p.markUnhealthy("liveness probe", probe) })
				}
				return !r.Changed || r.OK
			})
		})
	}
	if probe := p.spec.ReadinessProbe; probe != nil {
		wg.Go(func() {
			probes.Run(ctx, probe, p.target, p.since, ready, func(r probes.Report) bool {
				p.note("Readiness", r)
				if r.Changed {
					p.tell(ctx, func() { p.c.ready = r.OK })
				}
				return true
			})
		})
	}
	wg.Wait()
}

// startup reports whether the startup probe has succeeded.
func (p prober) startup(ctx context.Context) bool {
	ok := false
	probe := p.spec.StartupProbe
	probes.Run(ctx, probe, p.target, p.since, nil, func(r probes.Report) bool {
		p.note("Startup", r)
		if !r.Changed {
			return true
		}
		ok = r.OK
		if ok {
			p.tell(ctx, func() { p.c.started = true })
		} else {
			p.tell(ctx, func() { p.markUnhealthy("startup probe", probe) })
		}
		return false
	})
	return ok
}

// tell posts a result to the loop, unless the probes of this attempt were cancelled.
func (p prober) tell(ctx context.Context, f func()) {
	p.w.post(func() {
		if p.c.id == p.id && ctx.Err() == nil {
			f()
		}
	})
}

// markUnhealthy records that the attempt must be replaced.
func (p prober) markUnhealthy(what string, probe *corev1.Probe) {
	p.c.unhealthy = what
	if s := probe.TerminationGracePeriodSeconds; s != nil {
		grace := time.Duration(*s) * time.Second
		p.c.grace = &grace
	}
}

// note records an event about an attempt of a probe that has not simply succeeded.
func (p prober) note(kind string, r probes.Report) {
	event := func(reason, message string) { p.w.event(p.spec, corev1.EventTypeWarning, reason, message) }
	switch {
	case r.Failed:
		p.w.r.cfg.Metrics.probes.WithLabelValues(kind).Inc()
		event("Unhealthy", kind+" probe failed: "+r.Output)
	case r.Errored:
		event("Unhealthy", kind+" probe errored and resulted in unknown state: "+r.Output)
	case r.Warned:
		event("ProbeWarning", kind+" probe warning: "+r.Output)
	}
}
