// The flags about a shutdown of the machine.

package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/node/pods"
)

// Names of the flags.
const (
	gracePeriod         = "shutdown-grace-period"
	criticalGracePeriod = "shutdown-grace-period-critical-pods"
	gracePeriods        = "shutdown-grace-period-by-pod-priority"
	featureGates        = "feature-gates"
)

// Feature gates, with the kubelet's names. Both are on by default.
const (
	gateShutdown = "GracefulNodeShutdown"
	gatePriority = "GracefulNodeShutdownBasedOnPodPriority"
)

// maxPhases bounds --shutdown-grace-period-by-pod-priority.
const maxPhases = 64

// shutdownOptions are the flags about a shutdown of the machine.
type shutdownOptions struct {
	total, critical time.Duration
	byPriority      string
	gates           []string

	phases   []pods.Phase // set by check; none if a shutdown does not wait for pods
	gatedOff bool         // set by check: a gate takes phases away
}

func (o *shutdownOptions) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.total, gracePeriod, 0, "how long a shutdown of the machine waits for pods to end, by systemd-logind; 0 for not at all (the kubelet's configuration has it as shutdownGracePeriod)")
	f.DurationVar(&o.critical, criticalGracePeriod, 0, "how much of --"+gracePeriod+" is for critical pods, which end after the others (shutdownGracePeriodCriticalPods)")
	f.StringVar(&o.byPriority, gracePeriods, "", "in place of --"+gracePeriod+" and --"+criticalGracePeriod+": how long pods of each priority and above have, PRIORITY=DURATION,…, the lowest first to end (shutdownGracePeriodByPodPriority)")
	f.StringSliceVar(&o.gates, featureGates, nil, "GATE=false,… for a shutdown that does not wait for pods, whatever times are given: "+gateShutdown+", or "+gatePriority+" for times by priority")
}

// check refuses what cannot work, naming the flag.
func (o *shutdownOptions) check() error {
	on, err := parseGates(o.gates)
	if err != nil {
		return fmt.Errorf("--%s: %w", featureGates, err)
	}
	if err = o.checkPhases(); err != nil {
		return err
	}
	if len(o.phases) > 0 && (!on[gateShutdown] || o.byPriority != "" && !on[gatePriority]) {
		o.phases, o.gatedOff = nil, true
	}
	return nil
}

// parseGates reads GATE=BOOL of each gate that is not as it is by default.
func parseGates(list []string) (map[string]bool, error) {
	on := map[string]bool{gateShutdown: true, gatePriority: true}
	for _, part := range list {
		name, value, _ := strings.Cut(part, "=")
		if _, known := on[name]; !known {
			return nil, fmt.Errorf("there is no gate %q: the agent has %s and %s", name, gateShutdown, gatePriority)
		}
		var err error
		if on[name], err = strconv.ParseBool(value); err != nil {
			return nil, fmt.Errorf("%q: want %s=true or %s=false", part, name, name)
		}
	}
	return on, nil
}

// checkPhases makes the phases of the times.
func (o *shutdownOptions) checkPhases() error {
	if o.byPriority != "" {
		if o.total != 0 || o.critical != 0 {
			return fmt.Errorf("--%s: give it without --%s and --%s", gracePeriods, gracePeriod, criticalGracePeriod)
		}
		var err error
		if o.phases, err = parsePhases(o.byPriority); err != nil {
			return fmt.Errorf("--%s: %w", gracePeriods, err)
		}
		return nil
	}
	for flag, d := range map[string]time.Duration{gracePeriod: o.total, criticalGracePeriod: o.critical} {
		if d != 0 && d < time.Second {
			return fmt.Errorf("--%s %s: want 0, or 1s or more", flag, d)
		}
	}
	if o.critical > o.total {
		return fmt.Errorf("--%s %s: want no more than --%s, which is %s", criticalGracePeriod, o.critical, gracePeriod, o.total)
	}
	if o.total > 0 {
		o.phases = []pods.Phase{{Grace: o.total - o.critical}, {Priority: pods.CriticalPriority, Grace: o.critical}}
	}
	return nil
}

// parsePhases reads PRIORITY=DURATION,….
func parsePhases(text string) ([]pods.Phase, error) {
	var list []pods.Phase
	sum := time.Duration(0)
	for part := range strings.SplitSeq(text, ",") {
		left, right, ok := strings.Cut(part, "=")
		priority, err := strconv.ParseInt(left, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q: want PRIORITY=DURATION such as 100000=20s", part)
		}
		grace, err := time.ParseDuration(right)
		if err != nil || grace < 0 || grace > 0 && grace < time.Second || grace > math.MaxInt64-sum {
			return nil, fmt.Errorf("%q: want a duration of 0, or 1s or more", part)
		}
		sum += grace
		list = append(list, pods.Phase{Priority: int32(priority), Grace: grace})
	}
	if len(list) > maxPhases {
		return nil, fmt.Errorf("%d priorities: want %d at most", len(list), maxPhases)
	}
	if sum == 0 {
		return nil, errors.New("no priority has any time: leave it out, or give one 1s or more")
	}
	slices.SortFunc(list, func(a, b pods.Phase) int { return int(int64(a.Priority) - int64(b.Priority)) })
	for i := range list[1:] {
		if list[i].Priority == list[i+1].Priority {
			return nil, fmt.Errorf("priority %d is there twice", list[i].Priority)
		}
	}
	return list, nil
}
