// Rules for probes and hooks of containers.

package kinds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// probes checks the three probes of a container, and that only a readiness
// probe asks for more than one success: a container is alive or it is not.
func (c *podContext) probes(ctr *corev1.Container, p *field.Path) field.ErrorList {
	errs := c.probe(ctr.LivenessProbe, p.Child("livenessProbe"))
	errs = append(errs, c.probe(ctr.ReadinessProbe, p.Child("readinessProbe"))...)
	errs = append(errs, c.probe(ctr.StartupProbe, p.Child("startupProbe"))...)
	if l := ctr.LivenessProbe; l != nil && l.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(p.Child("livenessProbe", "successThreshold"), l.SuccessThreshold, "must be 1"))
	}
	if s := ctr.StartupProbe; s != nil && s.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(p.Child("startupProbe", "successThreshold"), s.SuccessThreshold, "must be 1"))
	}
	if r := ctr.ReadinessProbe; r != nil && r.TerminationGracePeriodSeconds != nil {
		errs = append(errs, field.Invalid(p.Child("readinessProbe", "terminationGracePeriodSeconds"), *r.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
	}
	return errs
}

func (c *podContext) probe(b *corev1.Probe, p *field.Path) field.ErrorList {
	if b == nil {
		return nil
	}
	errs := c.action(actions{exec: b.Exec, httpGet: b.HTTPGet, tcpSocket: b.TCPSocket, grpc: b.GRPC}, p)
	errs = append(errs, nonNegative(b.InitialDelaySeconds, p.Child("initialDelaySeconds"))...)
	errs = append(errs, nonNegative(b.TimeoutSeconds, p.Child("timeoutSeconds"))...)
	errs = append(errs, nonNegative(b.PeriodSeconds, p.Child("periodSeconds"))...)
	errs = append(errs, nonNegative(b.SuccessThreshold, p.Child("successThreshold"))...)
	errs = append(errs, nonNegative(b.FailureThreshold, p.Child("failureThreshold"))...)
	if t := b.TerminationGracePeriodSeconds; t != nil && *t <= 0 {
		errs = append(errs, field.Invalid(p.Child("terminationGracePeriodSeconds"), *t, "must be greater than 0"))
	}
	return errs
}

func (c *podContext) lifecycle(l *corev1.Lifecycle, p *field.Path) field.ErrorList {
	if l == nil {
		return nil
	}
	var errs field.ErrorList
	if h := l.PostStart; h != nil {
		errs = append(errs, c.action(actions{exec: h.Exec, httpGet: h.HTTPGet, tcpSocket: h.TCPSocket, sleep: h.Sleep}, p.Child("postStart"))...)
	}
	if h := l.PreStop; h != nil {
		errs = append(errs, c.action(actions{exec: h.Exec, httpGet: h.HTTPGet, tcpSocket: h.TCPSocket, sleep: h.Sleep}, p.Child("preStop"))...)
	}
	return append(errs, stopSignal(l.StopSignal, c.spec.OS, p.Child("stopSignal"))...)
}

// actions are what a probe or a hook can do. Exactly one must be set.
type actions struct {
	exec      *corev1.ExecAction
	httpGet   *corev1.HTTPGetAction
	tcpSocket *corev1.TCPSocketAction
	grpc      *corev1.GRPCAction
	sleep     *corev1.SleepAction
}

func (c *podContext) action(a actions, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	n := 0
	check := func(name string, set bool, f func(*field.Path) field.ErrorList) {
		if !set {
			return
		}
		if n++; n > 1 {
			errs = append(errs, field.Forbidden(p.Child(name), "may not specify more than 1 handler type"))
			return
		}
		errs = append(errs, f(p.Child(name))...)
	}
	check("exec", a.exec != nil, func(p *field.Path) field.ErrorList {
		if len(a.exec.Command) == 0 {
			return field.ErrorList{field.Required(p.Child("command"), "")}
		}
		return nil
	})
	check("httpGet", a.httpGet != nil, func(p *field.Path) field.ErrorList { return httpGet(a.httpGet, p) })
	check("tcpSocket", a.tcpSocket != nil, func(p *field.Path) field.ErrorList {
		return portNumberOrName(a.tcpSocket.Port, p.Child("port"))
	})
	check("grpc", a.grpc != nil, func(p *field.Path) field.ErrorList { return portNumber(a.grpc.Port, p.Child("port")) })
	check("sleep", a.sleep != nil, func(p *field.Path) field.ErrorList {
		grace := deref(c.spec.TerminationGracePeriodSeconds)
		if s := a.sleep.Seconds; s < 0 || s > grace {
			return field.ErrorList{field.Invalid(p, s, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace))}
		}
		return nil
	})
	if n == 0 {
		errs = append(errs, field.Required(p, "must specify a handler type"))
	}
	return errs
}

func httpGet(a *corev1.HTTPGetAction, p *field.Path) field.ErrorList {
	errs := required(a.Path, p.Child("path"))
	errs = append(errs, portNumberOrName(a.Port, p.Child("port"))...)
	errs = append(errs, oneOf(a.Scheme, p.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for _, h := range a.HTTPHeaders {
		errs = append(errs, messages(p.Child("httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))...)
	}
	return errs
}
