// This file repeats a probe.

package probes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// tries is how often an attempt that cannot be made is tried at once, as by the kubelet.
const tries = 3

// A Report is what Run tells of one attempt.
type Report struct {
	// OK is the verdict so far, with the thresholds applied.
	OK bool
	// Changed says that the verdict is another than that of the report before, or
	// the first one.
	Changed bool
	// Failed says that this attempt failed, whether or not the verdict did, Errored that it could
	// not be made, and Warned that it succeeded with a warning. Output says why.
	Failed, Errored, Warned bool
	Output                  string
}

// Run probes until ctx is done or tell returns false. started is when the
// container started: the probe's initial delay counts from there. first, when not
// nil, is a verdict known beforehand; without one there is no verdict until a
// threshold is reached. An attempt that cannot be made is tried three times in all, and
// then counts towards no threshold.
func Run(ctx context.Context, p *corev1.Probe, t Target, started time.Time, first *bool, tell func(Report) bool) {
	c := counter{success: int(max(p.SuccessThreshold, 1)), failure: int(p.FailureThreshold)}
	if c.failure <= 0 {
		c.failure = 3
	}
	if first != nil {
		c.verdict, c.known = *first, true
	}
	period := time.Duration(p.PeriodSeconds) * time.Second
	if period <= 0 {
		period = 10 * time.Second
	}
	delay := time.Duration(p.InitialDelaySeconds) * time.Second
	wait := min(max(time.Until(started.Add(delay)), 0), delay) // the clock may have been set back since
	for ctx.Err() == nil {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		began := time.Now()
		v, err := once(ctx, p, t)
		for i := 1; i < tries && err != nil && ctx.Err() == nil; i++ {
			v, err = once(ctx, p, t)
		}
		if ctx.Err() != nil {
			return
		}
		r := Report{OK: c.verdict, Errored: true}
		if err != nil {
			r.Output = err.Error()
		} else {
			changed := c.add(v.ok)
			r = Report{Changed: changed, OK: c.verdict, Failed: !v.ok, Warned: v.warned, Output: v.output}
		}
		if !tell(r) {
			return
		}
		wait = max(period-time.Since(began), 0)
	}
}

// A counter turns single results into a verdict.
type counter struct {
	success, failure int // thresholds
	verdict, known   bool
	last             bool
	run              int // how many results like last came in a row
}

// add counts a result and reports whether the verdict changed.
func (c *counter) add(ok bool) bool {
	if ok != c.last {
		c.last, c.run = ok, 0
	}
	c.run++
	need := c.failure
	if ok {
		need = c.success
	}
	if c.run < need || c.known && c.verdict == ok {
		return false
	}
	c.verdict, c.known = ok, true
	return true
}
