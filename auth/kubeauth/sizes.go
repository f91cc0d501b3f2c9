package kubeauth

// What a node may put into the store of things that it can make any number of: how large
// one may be, and how much of them in a second.

import (
	"fmt"
	"math"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Bounds on one object, in bytes of its encoding as protobuf.
const (
	eventSize   = 16 << 10 // a kubelet hands on up to 10 KiB of what a probe says
	requestSize = 8 << 10  // a request with a key of 4096 bits has less than 2 KiB
	mirrorSize  = 64 << 10
)

// Bounds on what one node writes, in bytes. Events are kept for an hour, which makes 18
// MiB; and requests that nobody answers for a day, which makes 5.3 MiB.
const (
	eventsPerSecond   = 4 << 10 // five, as kubelets make them
	eventsBurst       = 4 << 20
	requestsPerSecond = 64 // one in a quarter of a minute
	requestsBurst     = 64 << 10
)

// stored is how much each node has stored.
type stored struct{ events, requests *limits }

func newStored() *stored {
	return &stored{newLimits(eventsPerSecond, eventsBurst), newLimits(requestsPerSecond, requestsBurst)}
}

// A soonError says that a node stores more than it may, and when it may store the next.
type soonError struct {
	text    string
	seconds int
}

func (e *soonError) Error() string { return e.text }

// take has a node store n bytes more, or returns a *soonError.
func (l *limits) take(node, what string, n int) error {
	if l.allow(node, n) {
		return nil
	}
	return &soonError{
		fmt.Sprintf("node %q writes more %s than %d bytes a second", node, what, int(l.perSecond)),
		int(math.Ceil(float64(n) / float64(l.perSecond))),
	}
}

// answer is 429.
func (e *soonError) answer(c *claim) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("%s; %s: %s", e.text, c.field, c.remedy), e.seconds)
}

// atMost refuses an object of more than most bytes, unless it has been that large.
func atMost(w attempt, kind string, most int, now, before interface{ Size() int }) error {
	if n := now.Size(); n > most && n > before.Size() {
		return fmt.Errorf("%s is not allowed to store %d bytes as one %s, at most %d", w.a.GetUserInfo().GetName(), n, kind, most)
	}
	return nil
}

func eventSized(w attempt, now, before *corev1.Event) error {
	return atMost(w, "Event", eventSize, now, before)
}

func eventRate(w attempt, now, _ *corev1.Event) error {
	return w.stored.events.take(w.node, "events", now.Size())
}

// requestSized is for whoever is on the way to being a node, too.
func requestSized(w attempt, now, before *certificatesv1.CertificateSigningRequest) error {
	if w.node == "" && !bootstrapper(w.a.GetUserInfo()) {
		return nil
	}
	return atMost(w, "CertificateSigningRequest", requestSize, now, before)
}

// requestRate is for nodes: machines that join may share a token.
func requestRate(w attempt, now, _ *certificatesv1.CertificateSigningRequest) error {
	if w.node == "" {
		return nil
	}
	return w.stored.requests.take(w.node, "certificate requests", now.Size())
}

func mirrorSized(w attempt, pod, before *corev1.Pod) error {
	return atMost(w, "mirror pod", mirrorSize, pod, before)
}
