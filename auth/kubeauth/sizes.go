package kubeauth

// Limits of objects of which a node can make any number: the size of each, and the bytes
// per second.

import (
	"context"
	"fmt"
	"math"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Bounds on one object, in bytes of its encoding as protobuf.
const (
	eventSize   = 16 << 10 // a kubelet includes up to 10 KiB of a probe's output
	requestSize = 8 << 10  // a request with a key of 4096 bits has less than 2 KiB
	mirrorSize  = 64 << 10
	nodeSize    = 512 << 10 // fifty images, which kubelets report by default, make less than 64 KiB
	statusSize  = 256 << 10 // of a pod
	claimSize   = 16 << 10  // of a persistent volume claim's status, with a CSI driver's error
)

// Bounds on the bytes that one node writes. Events are kept for an hour, which makes 18
// MiB; unanswered requests are kept for a day, which makes 5.3 MiB.
const (
	eventsPerSecond   = 4 << 10 // five, as kubelets make them
	eventsBurst       = 4 << 20
	requestsPerSecond = 64 // one in a quarter of a minute
	requestsBurst     = 64 << 10
	// Machines that join by one token make one request each, of less than 2 KiB: fifty thousand at
	// once, and one in a second or two.
	joinsPerSecond = 1 << 10
	joinsBurst     = 64 << 20
	// The versions of a Node, its Lease, its CSINode and its pods are kept until they are compacted, for
	// ten minutes at most, which makes 91 MiB and 214 MiB. Kubelets report every ten seconds, and of a
	// pod when it changes.
	nodePerSecond = 128 << 10
	nodeBurst     = 16 << 20
	podsPerSecond = 256 << 10
	podsBurst     = 64 << 20
)

// stored has the limits of all nodes, and of join tokens.
type stored struct{ events, requests, joins, nodes, pods *limits }

func newStored() *stored {
	return &stored{
		events: newLimits(eventsPerSecond, eventsBurst), requests: newLimits(requestsPerSecond, requestsBurst), joins: newLimits(joinsPerSecond, joinsBurst),
		nodes: newLimits(nodePerSecond, nodeBurst), pods: newLimits(podsPerSecond, podsBurst),
	}
}

// A soonError means that a node exceeds its limit. It has the time of the next try.
type soonError struct {
	text    string
	seconds int
}

func (e *soonError) Error() string { return e.text }

// take takes n bytes from the limit of a node or a user, or returns a *soonError.
func (l *limits) take(who, what string, n int) error {
	if l.allow(who, n) {
		return nil
	}
	return &soonError{
		fmt.Sprintf("%q writes more %s than %d bytes a second", who, what, int(l.perSecond)),
		int(math.Ceil(float64(n) / float64(l.perSecond))),
	}
}

// answer is 429.
func (e *soonError) answer(c *claim) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("%s; %s: %s", e.text, c.field, c.remedy), e.seconds)
}

// atMost refuses an object of more than most bytes, unless it was as large before.
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

// requestSized is also for joining machines.
func requestSized(w attempt, now, before *certificatesv1.CertificateSigningRequest) error {
	if w.node == "" && !bootstrapper(w.a.GetUserInfo()) {
		return nil
	}
	return atMost(w, "CertificateSigningRequest", requestSize, now, before)
}

// requestRate is also for the machines that join by one token, together.
func requestRate(w attempt, now, _ *certificatesv1.CertificateSigningRequest) error {
	if w.node == "" {
		if u := w.a.GetUserInfo(); bootstrapper(u) {
			return w.stored.joins.take(u.GetName(), "certificate requests", now.Size())
		}
		return nil
	}
	return w.stored.requests.take(w.node, "certificate requests", now.Size())
}

func mirrorSized(w attempt, pod, before *corev1.Pod) error {
	return atMost(w, "mirror pod", mirrorSize, pod, before)
}

func nodeSized(w attempt, now, before *corev1.Node) error {
	return atMost(w, "Node", nodeSize, now, before)
}

// nodeRate is for the objects of which a node has one each.
func nodeRate(_ context.Context, w attempt) error {
	now, ok := w.a.GetObject().(interface{ Size() int })
	if !ok {
		return nil
	}
	return w.stored.nodes.take(w.node, "of itself", now.Size())
}

func statusSized(w attempt, now, before *corev1.Pod) error {
	return atMost(w, "pod's status", statusSize, &now.Status, &before.Status)
}

func claimSized(w attempt, now, before *corev1.PersistentVolumeClaim) error {
	return atMost(w, "claim's status", claimSize, &now.Status, &before.Status)
}

// statusRate is for pods and for the claims that they mount.
func statusRate(_ context.Context, w attempt) error {
	now, ok := w.a.GetObject().(interface{ Size() int })
	if !ok {
		return unexpected(w.a.GetObject())
	}
	return w.stored.pods.take(w.node, "of its pods", now.Size())
}
