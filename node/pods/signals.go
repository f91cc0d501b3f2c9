// This file reads the signal by which a container wants to be stopped.

package pods

import (
	"cmp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// stopSignal is the stop signal of c; empty means SIGTERM.
func stopSignal(c *corev1.Container) corev1.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return ""
	}
	return *c.Lifecycle.StopSignal
}

// Signals of real time, as programs that use glibc number them.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// signalNumber is the number of a signal, 0 if there is none of the name.
func signalNumber(name corev1.Signal) int {
	switch name {
	case corev1.SIGCLD:
		return int(unix.SIGCHLD)
	case corev1.SIGIOT:
		return int(unix.SIGABRT)
	case corev1.SIGPOLL:
		return int(unix.SIGIO)
	}
	for prefix, from := range map[string]int{"SIGRTMIN": firstRealTime, "SIGRTMAX": lastRealTime} {
		if s, ok := strings.CutPrefix(string(name), prefix); ok {
			n, err := strconv.Atoi(cmp.Or(s, "0"))
			if n += from; err != nil || n < firstRealTime || n > lastRealTime {
				return 0
			}
			return n
		}
	}
	return int(unix.SignalNum(string(name)))
}
