// This file decides what to do for a pod next. Everything in it is pure.

package pods

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// kind of a container. It decides when the container runs and whether the phase counts it.
type kind int

const (
	mainContainer kind = iota
	initContainer
	sidecar // an init container with restart policy Always: runs as long as the pod
	ephemeral
)

// A fact is the observed state of one container of a pod.
type fact struct {
	spec *corev1.Container
	kind kind
	// newest is the newest attempt and previous the one before; nil if there is none. An
	// attempt that could not be started counts as one that has exited.
	newest, previous *runtime.ContainerStatus
	// recalled is whether the newest is known from the status of an earlier run of the agent alone.
	recalled bool
	// known is since when it is known that the newest attempt has ended.
	known time.Time

	starting bool      // a task is starting it, its postStart hook included
	stopping bool      // a task is stopping it
	stopBy   time.Time // when that task kills it
	// started is false from the start of an attempt until its startup probe, if
	// any, has succeeded; ready the same for its readiness probe.
	started, ready bool
	// unhealthy is why the running attempt must be replaced: a failed probe, or postStartHook;
	// empty if it need not.
	unhealthy string
	// grace of a stop for being unhealthy, where the probe has one of its own.
	grace *time.Duration
	// replaced is whether the newest attempt was stopped for another to follow, whatever its exit
	// code and its policy are.
	replaced bool
	// delay until a restart, counted from the end of the newest attempt.
	delay time.Duration
	// blocked is why the container cannot be started for now.
	blocked *blocked
}

// blocked is the reason why a container waits, and the time of the next try.
type blocked struct {
	reason, message string
	until           time.Time
}

func (f *fact) running() bool { return f.newest != nil && f.newest.State != runtime.Exited }

func (f *fact) exited() bool { return f.newest != nil && f.newest.State == runtime.Exited }

func (f *fact) succeeded() bool {
	return f.exited() && f.newest.ExitCode == 0 && f.newest.Reason == ""
}

// over reports whether the machine was rebooted after the attempt had ended, and the pod's restart
// policy is Never: as in the kubelet, which makes a new sandbox then, the pod is not begun again.
func (f *fact) over(pod *corev1.Pod) bool {
	return f.newest.Rebooted && pod.Spec.RestartPolicy == corev1.RestartPolicyNever
}

// redone reports whether the init container is to run again because the machine was
// rebooted after it had run, unless the pod is over: what it prepared in memory is gone.
func (f *fact) redone(pod *corev1.Pod) bool {
	return f.kind == initContainer && f.exited() && f.newest.Rebooted && !f.over(pod)
}

// tried reports whether there was an attempt since the machine booted, as the runtime or this run of
// the agent knows.
func (f *fact) tried() bool { return f.newest != nil && !f.newest.Rebooted && !f.recalled }

// passed reports whether the init container need not run any more.
func (f *fact) passed(pod *corev1.Pod) bool { return f.succeeded() && !f.redone(pod) }

// policy of restarting the container once it has exited.
func (f *fact) policy(pod *corev1.Pod) corev1.RestartPolicy {
	switch {
	case f.kind == sidecar:
		return corev1.RestartPolicyAlways
	case f.kind == ephemeral:
		return corev1.RestartPolicyNever
	case f.spec.RestartPolicy != nil:
		return corev1.RestartPolicy(*f.spec.RestartPolicy)
	case f.kind == initContainer && pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
		return corev1.RestartPolicyOnFailure
	case pod.Spec.RestartPolicy == "":
		return corev1.RestartPolicyAlways
	}
	return pod.Spec.RestartPolicy
}

// changed reports whether the definition of the container, which runs, has changed. As in the kubelet,
// init containers go on.
func (f *fact) changed() bool {
	return (f.kind == mainContainer || f.kind == sidecar) && f.newest.Image != f.spec.Image
}

// ruled reports whether a rule has the container, which has exited, run again whatever its
// policy is. A container without a policy of its own has no rules.
func (f *fact) ruled() bool {
	return slices.ContainsFunc(f.spec.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
		codes := r.ExitCodes
		return codes != nil && r.Action == corev1.ContainerRestartRuleActionRestart &&
			slices.Contains(codes.Values, int32(f.newest.ExitCode)) == (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) //nolint:gosec // an exit code
	})
}

// restarts reports whether the container, which has exited, is to run again.
func (f *fact) restarts(pod *corev1.Pod) bool {
	if f.replaced || f.ruled() || f.redone(pod) {
		return true
	}
	switch f.policy(pod) {
	case corev1.RestartPolicyAlways:
		return true
	case corev1.RestartPolicyOnFailure:
		return !f.succeeded()
	}
	return false
}

// A situation is the input of decide.
type situation struct {
	pod   *corev1.Pod
	now   time.Time
	facts []fact // init containers and sidecars in order, main ones, ephemeral ones
	// kill is not nil once the pod is being ended.
	kill *kill
	// prepared is whether volumes and sandbox exist.
	prepared bool
	// since is when this run of the agent took the pod up.
	since time.Time
}

// A kill is the end of a pod.
type kill struct {
	// by is when the containers that still run are killed.
	by time.Time
	// reason and message become the pod's where it ends for a reason of its own.
	reason, message string
	// failed is whether the pod's phase is Failed regardless of its containers, and
	// refused whether the cause is that the node did not admit it.
	failed, refused bool
	// disrupted is whether the cause is a shutdown of the node.
	disrupted bool
}

// An intent is the result of decide: the next actions.
type intent struct {
	// start is the container to be started now; nil for none. Containers are
	// started one at a time.
	start *fact
	stop  []stop
	// turn has the containers to be stopped that need not wait for others: after its preStop
	// hook a container gets SIGTERM when it is its turn.
	turn []*fact
	// waiting has the containers that are blocked, other than by the order of starting.
	waiting map[string]blocked
	// initialized is whether the init containers are done.
	initialized bool
	// finished is whether no container will be started any more, and failed whether the
	// cause is a failed init container.
	finished, failed bool
	// next is when to decide again; zero means after the next change.
	next time.Time
}

// A stop asks for a running container to be stopped.
type stop struct {
	*fact
	by     time.Time
	reason string // for the event
	// replaces is whether another attempt follows whatever the restart policy is.
	replaces bool
}

// postStartHook is the reason to replace an attempt whose postStart hook has failed.
const postStartHook = "PostStartHook"

// minGrace is the least time between SIGTERM and SIGKILL.
const minGrace = 2 * time.Second

// decide returns the actions for the pod now.
func decide(s situation) intent {
	in := intent{waiting: map[string]blocked{}}
	in.initialized = s.initialized()
	if s.kill != nil {
		in.finished = true
		s.stopAll(&in, s.kill.by)
		return in
	}
	if !in.initialized {
		in.initialized = s.decideInit(&in)
		if in.failed {
			in.finished = true
			s.stopAll(&in, s.deadline())
			return in
		}
	} else {
		for i := range s.facts {
			if f := &s.facts[i]; f.kind == sidecar {
				s.keep(&in, f)
			}
		}
	}
	if in.initialized {
		s.decideMain(&in)
	}
	for i := range s.facts {
		if f := &s.facts[i]; f.kind == ephemeral {
			s.keep(&in, f)
		}
	}
	if in.finished {
		in.start = nil
		s.stopAll(&in, s.deadline())
	}
	return in
}

// deadline is when the containers are killed that outlive a pod which ends by itself: one grace
// period after the end of the last main or init container was known. If that is over before this
// run of the agent, nobody may have asked them to end.
func (s *situation) deadline() time.Time {
	var known time.Time
	for i := range s.facts {
		f := &s.facts[i]
		if (f.kind == mainContainer || f.kind == initContainer) && f.exited() && f.known.After(known) {
			known = f.known
		}
	}
	grace := gracePeriod(s.pod)
	if known.Add(grace).Before(s.since) {
		known = s.since
	}
	if known.After(s.now) {
		known = s.now // the clock has been set back
	}
	return known.Add(grace)
}

func gracePeriod(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if p := pod.Spec.TerminationGracePeriodSeconds; p != nil {
		seconds = *p
	}
	return max(time.Duration(seconds)*time.Second, minGrace)
}

// initialized reports whether main containers may run: one was tried already since the
// machine booted, or every init container has succeeded since, and every sidecar was up. If none is
// to run again, one that was tried earlier is enough.
func (s *situation) initialized() bool {
	done, tried, wanted := true, false, false
	for i := range s.facts {
		switch f := &s.facts[i]; f.kind {
		case mainContainer:
			if f.tried() {
				return true
			}
			tried = tried || f.newest != nil
			wanted = wanted || f.newest == nil || f.restarts(s.pod)
		case initContainer:
			done = done && f.passed(s.pod)
		case sidecar:
			done = done && s.wasUp(i)
		}
	}
	return done || tried && (!wanted || s.pod.Spec.RestartPolicy == corev1.RestartPolicyNever)
}

// wasUp reports whether the sidecar at i is up, or was before a later init container or sidecar was
// tried: as in the kubelet, one that goes down after that holds up nothing.
func (s *situation) wasUp(i int) bool {
	f := &s.facts[i]
	return f.running() && f.started && !f.starting || slices.ContainsFunc(s.facts[i+1:], func(g fact) bool {
		return (g.kind == initContainer || g.kind == sidecar) && g.tried()
	})
}

// decideInit runs the init containers one after the other, and reports whether all are
// done. One that has failed for good is looked for first: sidecars before it have been stopped
// since.
func (s *situation) decideInit(in *intent) bool {
	in.failed = slices.ContainsFunc(s.facts, func(f fact) bool {
		return f.kind == initContainer && f.exited() && !f.passed(s.pod) && !f.restarts(s.pod)
	})
	if in.failed {
		return false
	}
	for i := range s.facts {
		f := &s.facts[i]
		switch f.kind {
		case initContainer:
			if f.passed(s.pod) {
				continue
			}
			s.keep(in, f)
			return false
		case sidecar:
			s.keep(in, f)
			if !s.wasUp(i) {
				return false
			}
		}
	}
	return true
}

// decideMain runs the main containers and sets finished once all have ended and are not
// restarted.
func (s *situation) decideMain(in *intent) {
	in.finished = true
	for i := range s.facts {
		f := &s.facts[i]
		if f.kind != mainContainer {
			continue
		}
		if !f.exited() || f.restarts(s.pod) {
			in.finished = false
		}
		s.keep(in, f)
	}
}

// keep starts a container that should run and does not, and stops one that must be
// replaced.
func (s *situation) keep(in *intent, f *fact) {
	switch {
	case f.starting || f.stopping:
	case f.running():
		if st := s.replace(f); st.fact != nil {
			in.stop = append(in.stop, st)
			in.turn = append(in.turn, f)
		}
	case f.exited() && !f.restarts(s.pod):
	default:
		s.start(in, f)
	}
}

// start starts a container now, or sets when to try again.
func (s *situation) start(in *intent, f *fact) {
	at := s.now
	if f.exited() && f.delay > 0 {
		if at = f.newest.EndedAt.Add(f.delay); f.newest.EndedAt.After(s.now) {
			at = s.now // the clock has been set back
		}
	}
	switch {
	case at.After(s.now):
		in.waiting[f.spec.Name] = blocked{
			reason: "CrashLoopBackOff", until: at,
			message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
				f.delay, f.spec.Name, s.pod.Name, s.pod.Namespace, s.pod.UID),
		}
	case f.blocked != nil && f.blocked.until.After(s.now):
		at = f.blocked.until
		in.waiting[f.spec.Name] = *f.blocked
	default:
		if f.blocked != nil {
			in.waiting[f.spec.Name] = *f.blocked
		}
		if in.start == nil && s.prepared && !s.startingAny() {
			in.start = f
		}
		return
	}
	if in.next.IsZero() || at.Before(in.next) {
		in.next = at
	}
}

func (s *situation) startingAny() bool {
	for i := range s.facts {
		if s.facts[i].starting {
			return true
		}
	}
	return false
}

// replace returns the stop of a running container that must be replaced by a new attempt, or the
// zero stop. As in the kubelet, one that fails a probe runs again unless its policy is Never, also
// if it ends with 0.
func (s *situation) replace(f *fact) stop {
	st := stop{fact: f, by: s.now.Add(gracePeriod(s.pod))}
	policy := f.policy(s.pod)
	switch {
	case f.changed():
		st.replaces = true
		st.reason = fmt.Sprintf("Container %s definition changed, will be restarted", f.spec.Name)
		return st
	case f.unhealthy == "":
		return stop{}
	case f.unhealthy == postStartHook:
		st.reason = fmt.Sprintf("Container %s failed %s", f.spec.Name, f.unhealthy)
	case policy != corev1.RestartPolicyNever:
		st.replaces = policy == corev1.RestartPolicyOnFailure
		st.reason = fmt.Sprintf("Container %s failed %s, will be restarted", f.spec.Name, f.unhealthy)
	case s.last(f):
		st.reason = stopping(f)
	default:
		st.reason = fmt.Sprintf("Container %s failed %s", f.spec.Name, f.unhealthy)
	}
	if f.grace != nil {
		st.by = s.now.Add(max(*f.grace, minGrace))
	}
	return st
}

// last reports whether every other main container has ended and is not restarted.
func (s *situation) last(f *fact) bool {
	return !slices.ContainsFunc(s.facts, func(g fact) bool {
		return g.kind == mainContainer && g.spec.Name != f.spec.Name && (!g.exited() || g.restarts(s.pod))
	})
}

func stopping(f *fact) string { return "Stopping container " + f.spec.Name }

// stopAll stops all running containers: their preStop hooks run at once, and they get SIGTERM in
// turn. All share one deadline. A stop under way with a later deadline is started again.
func (s *situation) stopAll(in *intent, by time.Time) {
	in.stop, in.turn = nil, s.turn()
	if by.Before(s.now.Add(minGrace)) {
		by = s.now.Add(minGrace)
	}
	for i := range s.facts {
		f := &s.facts[i]
		if !f.running() || f.starting || f.stopping && !f.stopBy.After(by) {
			continue
		}
		in.stop = append(in.stop, stop{fact: f, by: by, reason: stopping(f)})
	}
}

// turn lists the running containers that are the next to end: all but the sidecars, and the last
// sidecar once no main container runs. As in the kubelet, sidecars wait neither for ephemeral
// containers nor for init containers.
func (s *situation) turn() []*fact {
	var next []*fact
	var last *fact
	mains := false
	for i := range s.facts {
		switch f := &s.facts[i]; {
		case !f.running():
		case f.kind == sidecar:
			last = f
		default:
			next = append(next, f)
			mains = mains || f.kind == mainContainer
		}
	}
	if last != nil && !mains {
		next = append(next, last)
	}
	return next
}

// quiet reports whether no container of the pod runs or is being started.
func (s *situation) quiet() bool {
	for i := range s.facts {
		if f := &s.facts[i]; f.running() || f.starting || f.stopping {
			return false
		}
	}
	return true
}
