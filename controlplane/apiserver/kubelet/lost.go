package kubelet

// What a client is told on SPDY after the connection to the kubelet was lost.
//
// A client opens one stream after the other, and waits for the answer to each: 30 s, since the end
// of the connection does not end that wait in its library. So each stream that the kubelet has not
// answered is answered here, until all are open. Then the client takes the status.

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/spdyframes"
)

// openPatience bounds how long a client may take to open its next stream, after the loss or after the
// answer to the one before. No more are answered than the request has.
const openPatience = 5 * time.Second

// streamsKey is where a request's context has how many streams its client opens.
type streamsKey struct{}

// withStreams has the connections that h dials expect so many streams.
func withStreams(h http.Handler, streams int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), streamsKey{}, streams)))
	})
}

func streamsOf(ctx context.Context) int {
	n, _ := ctx.Value(streamsKey{}).(int)
	return n
}

// openedStreams are the streams that the client has opened. The writer adds them, the reader
// answers them.
type openedStreams struct {
	expected int           // by the request; no more are looked at
	changed  chan struct{} // has one after a stream was opened, or by Close

	mu   sync.Mutex // guards the following
	seen int
	due  []uint32 // those that have not been answered
}

// add notes that the client has opened a stream.
func (o *openedStreams) add(id uint32) {
	o.mu.Lock()
	o.seen++
	o.due = append(o.due, id)
	o.mu.Unlock()
	o.wake()
}

// all says whether the client has opened all that are expected.
func (o *openedStreams) all() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen >= o.expected
}

// answered notes that the kubelet has answered a stream.
func (o *openedStreams) answered(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.due, id); i >= 0 {
		o.due = slices.Delete(o.due, i, i+1)
	}
}

// take returns the streams that have not been answered, which the caller answers.
func (o *openedStreams) take() []uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	due := o.due
	o.due = nil
	return due
}

func (o *openedStreams) wake() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// wait returns true after a change, and false at a time.
func (o *openedStreams) wait(until time.Time) bool {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-o.changed:
		return true
	case <-t.C:
		return false
	}
}

// answerAlone does the next of what is left to do after the loss: it answers streams, waits for
// the client to open more, or gives the status and ends.
func (w *trackedConn) answerAlone() {
	g := &w.got
	cut := w.cutShort(g.lost)
	if cut {
		all := w.opened.all() // before take, so that none is opened between the two
		for _, id := range w.opened.take() {
			g.out = appendReply(g.out, id, !g.headers)
			g.headers, g.patience = true, time.Now().Add(openPatience)
		}
		if len(g.out) > 0 || !all && w.opened.wait(g.patience) {
			return
		}
		w.conclude(g.lost)
	}
	g.err = g.lost
	w.ended.Store(true)
}

// appendReply appends a SYN_REPLY without headers. The compressed headers of all frames of a
// connection are one zlib stream, which the kubelet may have begun: first says that it has not.
// Its library flushes after each frame, so the stream goes on at a whole byte.
func appendReply(out []byte, id uint32, first bool) []byte {
	const synReply = 0x80030002 // control frame, version 3, type 2
	var block []byte
	if first {
		block = append(block, 0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2) // zlib, with the dictionary of SPDY/3
	}
	block = append(block, 0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0) // stored: the four bytes of a count of 0 headers
	block = append(block, 0, 0, 0, 0xff, 0xff)             // stored, empty: a flush
	out = binary.BigEndian.AppendUint32(out, synReply)
	out = binary.BigEndian.AppendUint32(out, uint32(4+len(block))) //nolint:gosec // flags, none, and the length
	out = binary.BigEndian.AppendUint32(out, id)
	return append(out, block...)
}

// hasStatus says whether the protocol on the streams always ends with a status.
func (w *trackedConn) hasStatus() bool {
	return strings.HasPrefix(w.got.version, "v4.") || strings.HasPrefix(w.got.version, "v5.")
}

// cutShort says whether the client lacks the kubelet's word on how it ended. A connection that was
// lost is always cut short, also when it was given up at this end, with all that a session
// carried; one that the kubelet closed is if the protocol always has a status.
func (w *trackedConn) cutShort(err error) bool {
	g := &w.got
	return w.spdy.Load() && !g.plain && !g.told && !w.closed.Load() && (w.hasStatus() || !errors.Is(err, io.EOF))
}

// conclude says how it ended, on the stream of the status if there is one.
func (w *trackedConn) conclude(err error) {
	stream := w.errorStream.Load()
	if stream == 0 {
		return
	}
	why := err.Error()
	if errors.Is(err, io.EOF) {
		why = "the node closed it"
	}
	text := fmt.Sprintf("the connection to node %s was lost before the result was known: %s", w.node, why)
	message := []byte(text)
	if w.hasStatus() {
		var merr error
		if message, merr = json.Marshal(&metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
			Code: http.StatusInternalServerError, Message: text,
		}); merr != nil {
			message = []byte(text) // which no client takes for success either
		}
	}
	w.got.out = spdyframes.AppendData(w.got.out, stream, spdyframes.FinFlag, message)
}
