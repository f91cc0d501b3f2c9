// This file has the thresholds of --eviction-hard: their syntax, and their comparison with
// the machine's resources.

package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DefaultEvictionHard is the default of --eviction-hard, as the kubelet's.
const DefaultEvictionHard = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

// A Signal is an eviction signal, by the kubelet's name.
type Signal string

// The signals. Nodefs is the file system of the node's data directory, and imagefs
// that of the runtime's.
const (
	MemoryAvailable   Signal = "memory.available"
	NodefsAvailable   Signal = "nodefs.available"
	NodefsInodesFree  Signal = "nodefs.inodesFree"
	ImagefsAvailable  Signal = "imagefs.available"
	ImagefsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
)

// condition is the node condition of s; it is empty for an unknown signal.
func (s Signal) condition() corev1.NodeConditionType {
	switch s {
	case MemoryAvailable:
		return corev1.NodeMemoryPressure
	case NodefsAvailable, NodefsInodesFree, ImagefsAvailable, ImagefsInodesFree:
		return corev1.NodeDiskPressure
	case PIDAvailable:
		return corev1.NodePIDPressure
	}
	return ""
}

// A Threshold is the minimum that must be available. Either Amount or Percent is set.
type Threshold struct {
	Signal  Signal
	Amount  int64   // bytes, inodes or processes
	Percent float64 // of all there is
}

// of is the threshold for a capacity of all.
func (t Threshold) of(all int64) int64 {
	if t.Percent > 0 {
		return int64(float64(all) * t.Percent / 100)
	}
	return t.Amount
}

// ParseThresholds reads SIGNAL<QUANTITY,… where a quantity may be a percentage, as
// --eviction-hard has it. As with the kubelet, thresholds of 0% and of 100% are none
// at all, and what is not named has none. The result is never nil.
func ParseThresholds(s string) ([]Threshold, error) {
	list := []Threshold{}
	var seen []Signal
	for _, item := range items(s) {
		name, value, ok := strings.Cut(item, "<")
		if !ok {
			return nil, fmt.Errorf("%q is not SIGNAL<QUANTITY, such as memory.available<100Mi or nodefs.available<10%%", item)
		}
		t := Threshold{Signal: Signal(strings.TrimSpace(name))}
		if t.Signal.condition() == "" {
			return nil, fmt.Errorf("signal %q is unknown, want %s", t.Signal, signalNames())
		}
		if slices.Contains(seen, t.Signal) {
			return nil, fmt.Errorf("signal %s is given twice", t.Signal)
		}
		seen = append(seen, t.Signal)
		if err := t.parse(strings.TrimSpace(value)); err != nil {
			return nil, err
		}
		if t.Amount > 0 || t.Percent > 0 && t.Percent < 100 {
			list = append(list, t)
		}
	}
	return list, nil
}

func signalNames() string {
	all := []Signal{MemoryAvailable, NodefsAvailable, NodefsInodesFree, ImagefsAvailable, ImagefsInodesFree, PIDAvailable}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = string(s)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func (t *Threshold) parse(value string) error {
	number, percent := strings.CutSuffix(value, "%")
	if !percent {
		q, err := resource.ParseQuantity(value)
		if err != nil || q.Sign() < 0 {
			return fmt.Errorf("%q is no quantity of %s", value, t.Signal)
		}
		t.Amount = q.Value()
		return nil
	}
	p, err := strconv.ParseFloat(number, 64)
	if err == nil && !(p >= 0 && p <= 100) { // written so that NaN is refused
		err = errors.New("out of range")
	}
	if err != nil {
		return fmt.Errorf("%q of %s is not 0%% to 100%%", value, t.Signal)
	}
	t.Percent = p
	return nil
}

// Thresholds decide when the machine is under pressure.
type Thresholds struct {
	// Hard are judged by every status; see ParseThresholds. Empty means that there
	// are none. Nil means those of DefaultEvictionHard, where those of imagefs hold
	// only for a runtime with a file system of its own: they are the kubelet's for a
	// disk of images, which a runtime that pulls none does not have.
	Hard []Threshold
	// Recovery is how long pressure is still reported after it has ended: 5 min.
	Recovery time.Duration

	ownImagefs bool // thresholds of imagefs are for a file system of its own only
}

func (t *Thresholds) defaults() error {
	t.Recovery = cmp.Or(t.Recovery, 5*time.Minute)
	if t.Hard != nil {
		return nil
	}
	t.ownImagefs = true
	var err error
	t.Hard, err = ParseThresholds(DefaultEvictionHard)
	return err
}

// short reports whether the machine is under the pressure of condition.
func (t *Thresholds) short(f *facts, condition corev1.NodeConditionType) bool {
	return slices.ContainsFunc(t.Hard, func(h Threshold) bool {
		if h.Signal.condition() != condition {
			return false
		}
		free, all := f.signal(h.Signal, t.ownImagefs)
		return all > 0 && free < h.of(all)
	})
}

// reserve is how much of s must be available for a capacity of all.
func (t *Thresholds) reserve(s Signal, all int64) int64 {
	for _, h := range t.Hard {
		if h.Signal == s {
			return h.of(all)
		}
	}
	return 0
}

// signal is how much is left of what s is about, and how much there is in all; that
// is 0 where it is not known, or where imagefs has to be a file system of its own
// and is not.
func (f *facts) signal(s Signal, ownImagefs bool) (free, all int64) {
	if ownImagefs && f.imagefs.device == f.nodefs.device && (s == ImagefsAvailable || s == ImagefsInodesFree) {
		return 0, 0
	}
	switch s {
	case MemoryAvailable:
		return f.available, f.memory
	case NodefsAvailable:
		return f.nodefs.free, f.nodefs.size
	case NodefsInodesFree:
		return f.nodefs.inodesFree, f.nodefs.inodes
	case ImagefsAvailable:
		return f.imagefs.free, f.imagefs.size
	case ImagefsInodesFree:
		return f.imagefs.inodesFree, f.imagefs.inodes
	case PIDAvailable:
		return f.pids - f.pidsUsed, f.pids
	}
	return 0, 0
}
