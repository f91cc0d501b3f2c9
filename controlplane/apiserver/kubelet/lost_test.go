package kubelet

// Tests of what a client is told that is still opening its streams when the way to the node is lost.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
)

// A cutConn is lost at a write, of those to it, and what is written then does not arrive.
type cutConn struct {
	net.Conn
	at     int32
	writes atomic.Int32
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.writes.Add(1) == c.at {
		return len(p), c.Close()
	}
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.writes.Load() >= c.at {
		err = errBelow
	}
	return n, err
}

// TestCutWhileOpening: wherever the way to the node is lost, the client is told, and before its own
// patience with streams ends, which is 30 s.
func TestCutWhileOpening(t *testing.T) {
	const first, last = 4, 44 // the writes before are of the handshake and the request
	for _, how := range []string{"spdy", "websocket v5"} {
		for at := int32(first); at < last; at++ {
			t.Run(fmt.Sprintf("%s/%d", how, at), func(t *testing.T) {
				t.Parallel()
				b := start(t, func(o *Options) {
					dial := o.DialEarly
					o.DialEarly = func(ctx context.Context, network, addr string) (net.Conn, error) {
						c, err := dial(ctx, network, addr)
						return &cutConn{Conn: c, at: at}, err
					}
				})
				e, err := executors[how](b, b.podURL(t, "web", "exec", &corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true, Stderr: true}))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var out, errOut bytes.Buffer
				err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errOut})
				if err == nil && out.String() == "hello<eof>" {
					return // the way was lost later
				}
				if err == nil || !strings.Contains(err.Error(), "was lost before the result was known") {
					t.Errorf("after %q told of it as %v", out.String(), err)
				}
			})
		}
	}
}

// TestAnswersGoOn: a client reads the answers from here in one sequence with those of the kubelet, if
// there are any.
func TestAnswersGoOn(t *testing.T) {
	for byKubelet := range 3 {
		var stream bytes.Buffer
		f, err := spdy.NewFramer(&stream, &stream)
		if err != nil {
			t.Fatal(err)
		}
		for i := range byKubelet {
			if err := f.WriteFrame(&spdy.SynReplyFrame{StreamId: spdy.StreamId(2*i + 1), Headers: http.Header{"A": {"b"}}}); err != nil { //nolint:gosec // small
				t.Fatal(err)
			}
		}
		pieces := [][]byte{[]byte(kubeletHeader), stream.Bytes()}
		w := newTrackedConn(&tape{pieces: pieces, err: errLost}, "node-1", 2)
		if _, err := io.WriteString(w, clientHeader); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w, make([]byte, len(kubeletHeader))); err != nil {
			t.Fatal(err)
		}
		openStreams(t, w, nil)
		all, err := io.ReadAll(w)
		if !bytes.Contains(all, []byte("was lost before the result was known")) {
			t.Errorf("%d answers of the kubelet's: %q, %v", byKubelet, all, err)
		}
		in, err := spdy.NewFramer(io.Discard, bytes.NewReader(all))
		if err != nil {
			t.Fatal(err)
		}
		replied := map[spdy.StreamId]int{}
		for range 2 {
			frame, err := in.ReadFrame()
			reply, ok := frame.(*spdy.SynReplyFrame)
			if !ok {
				t.Fatalf("%d answers of the kubelet's: got %#v, %v", byKubelet, frame, err)
			}
			replied[reply.StreamId]++
		}
		if replied[1] != 1 || replied[3] != 1 {
			t.Errorf("%d answers of the kubelet's: answered %v", byKubelet, replied)
		}
		if frame, err := in.ReadFrame(); err != nil || frame.(*spdy.DataFrame).StreamId != 3 {
			t.Errorf("%d answers of the kubelet's: then %#v, %v", byKubelet, frame, err)
		}
	}
}

// TestNeverOpened: the end of a connection waits a bounded time for streams that a client does not open.
func TestNeverOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := newTrackedConn(&tape{pieces: [][]byte{[]byte(kubeletHeader)}, err: errLost}, "node-1", 5)
		if _, err := io.WriteString(w, clientHeader); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w, make([]byte, len(kubeletHeader))); err != nil {
			t.Fatal(err)
		}
		openStreams(t, w, nil)
		all, err := io.ReadAll(w)
		if took := time.Since(began); err == nil || !bytes.Contains(all, []byte("was lost")) || took != openPatience {
			t.Errorf("%q, %v, after %v", all, err, took)
		}
		if n, err := w.Write([]byte("x")); err == nil {
			t.Errorf("wrote %d bytes after the end", n)
		}
	})
}

// TestOpensSlowly: a client that is far away opens all its streams after the loss, and is told.
func TestOpensSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTrackedConn(&tape{pieces: [][]byte{[]byte(kubeletHeader)}, err: errLost}, "node-1", 4)
		if _, err := io.WriteString(w, clientHeader); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w, make([]byte, len(kubeletHeader))); err != nil {
			t.Fatal(err)
		}
		in, far := io.Pipe() // what the client reads
		defer in.Close()
		go func() {
			_, err := io.Copy(far, w)
			_ = far.CloseWithError(err)
		}()
		var sent bytes.Buffer
		f, err := spdy.NewFramer(&sent, in)
		if err != nil {
			t.Fatal(err)
		}
		for i, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeStdin, corev1.StreamTypeStdout, corev1.StreamTypeStderr} {
			<-time.After(800 * time.Millisecond)
			id := spdy.StreamId(2*i + 1) //nolint:gosec // small
			if err := f.WriteFrame(&spdy.SynStreamFrame{StreamId: id, Headers: http.Header{"Streamtype": {kind}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := sent.WriteTo(w); err != nil {
				t.Fatalf("open stream %d: %v", id, err)
			}
			if frame, err := f.ReadFrame(); err != nil || frame.(*spdy.SynReplyFrame).StreamId != id {
				t.Fatalf("answer to stream %d: %#v, %v", id, frame, err)
			}
			<-time.After(800 * time.Millisecond)
		}
		if frame, err := f.ReadFrame(); err != nil || frame.(*spdy.DataFrame).StreamId != 1 {
			t.Errorf("then %#v, %v", frame, err)
		}
		if _, err := in.Read(make([]byte, 1)); err == nil {
			t.Error("it does not end")
		}
	})
}
