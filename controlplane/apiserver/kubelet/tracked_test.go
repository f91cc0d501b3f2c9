package kubelet

// Tests of what is told when the way to a node is lost.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/hawser-project/hawser/auth/spdyframes"
)

var (
	errLost = errors.New("session lost")
	// errBelow is of a connection that this end has closed, but not the client's
	// part of it: what carries it was given up.
	errBelow = fmt.Errorf("session closed: %w", net.ErrClosed)
)

// A weak network loses all its connections when it is told to.
type weak struct {
	dial DialFunc
	err  error // what reads fail with

	mu    sync.Mutex
	conns []*weakConn
}

func (n *weak) open(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := n.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	w := &weakConn{Conn: c, net: n}
	n.conns = append(n.conns, w)
	return w, nil
}

func (n *weak) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
}

type weakConn struct {
	net.Conn
	net *weak
}

func (c *weakConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.net.err
	}
	return n, err
}

// starts tells when something is written to it, and keeps what.
type starts struct {
	once  sync.Once
	began chan struct{}

	mu  sync.Mutex
	all bytes.Buffer
}

func (s *starts) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Write(p)
	s.once.Do(func() { close(s.began) })
	return len(p), nil
}

// TestCutExec: no client takes a command for one that succeeded when the way to
// the node is lost, and what it was given is a beginning of what was said.
func TestCutExec(t *testing.T) {
	for how, executor := range executors {
		for what, err := range map[string]error{"lost": errLost, "closed": io.EOF, "closed below": errBelow} {
			t.Run(how+"/"+what, func(t *testing.T) {
				n := &weak{err: err}
				b := start(t, func(o *Options) {
					n.dial = o.DialEarly
					o.DialEarly = n.open
				})
				e, err := executor(b, b.podURL(t, "web", "exec", &corev1.PodExecOptions{Command: []string{"endless"}, Stdout: true}))
				if err != nil {
					t.Fatal(err)
				}
				out := &starts{began: make(chan struct{})}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out}) }()
				<-out.began
				n.cut()
				err = <-ended
				if err == nil || ctx.Err() != nil {
					t.Fatalf("the command seems to have succeeded: %v", err)
				}
				if how != "websocket v4" && !strings.Contains(err.Error(), "the connection to node node-1 was lost before the result was known") {
					t.Errorf("told of it as %v", err)
				}
				for i, line := range strings.SplitAfter(out.all.String(), "\n") {
					if want := fmt.Sprintf("%07d\n", i); line != want && (!strings.HasPrefix(want, line) || strings.HasSuffix(line, "\n")) {
						t.Fatalf("line %d is %q", i, line)
					}
				}
			})
		}
	}
}

// TestMuchIsWhole: nothing is lost or changed on the way through a trackedConn.
func TestMuchIsWhole(t *testing.T) {
	b := start(t, nil)
	want := sha256.New()
	if _, err := io.CopyN(want, rand.NewChaCha8([32]byte{1}), much); err != nil {
		t.Fatal(err)
	}
	for how, executor := range executors {
		e, err := executor(b, b.podURL(t, "web", "exec", &corev1.PodExecOptions{Command: []string{"much"}, Stdout: true}))
		if err != nil {
			t.Fatal(err)
		}
		got := sha256.New()
		if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: got}); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Errorf("%s: something else arrived", how)
		}
	}
}

// TestCutLog: a log that breaks off does not look complete.
func TestCutLog(t *testing.T) {
	n := &weak{err: errLost}
	b := start(t, func(o *Options) {
		n.dial = o.DialEarly
		o.DialEarly = n.open
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/api/v1/namespaces/ns/pods/web/log?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.config.BearerToken)
	b.kubelet.more <- "number 1"
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	if line, err := in.ReadString('\n'); err != nil || line != "number 1\n" {
		t.Fatalf("%q, %v", line, err)
	}
	n.cut()
	if rest, err := io.ReadAll(in); err == nil {
		t.Errorf("the log seems to have ended after %q", rest)
	}
}

// A tape is a connection with what one end says on it, in pieces.
type tape struct {
	net.Conn
	pieces [][]byte
	err    error
}

func (t *tape) Read(p []byte) (int, error) {
	for len(t.pieces) > 0 {
		if len(t.pieces[0]) == 0 {
			t.pieces = t.pieces[1:]
			continue
		}
		n := copy(p, t.pieces[0])
		t.pieces[0] = t.pieces[0][n:]
		return n, nil
	}
	return 0, t.err
}

func (t *tape) Write(p []byte) (int, error) { return len(p), nil }

// cutUp cuts b into pieces whose sizes cuts tells.
func cutUp(b, cuts []byte) [][]byte {
	var out [][]byte
	for _, n := range cuts {
		k := min(int(n), len(b))
		out = append(out, b[:k])
		b = b[k:]
	}
	return append(out, b)
}

const (
	clientHeader  = "POST /exec HTTP/1.1\r\nHost: node-1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
	kubeletHeader = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
)

// open sends what a client does to have stream 3 be that of the status.
func openStreams(t *testing.T, w io.Writer, cuts []byte) {
	t.Helper()
	var b bytes.Buffer
	f, err := spdy.NewFramer(&b, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, kind := range map[spdy.StreamId]string{1: corev1.StreamTypeStdout, 3: corev1.StreamTypeError} {
		if err := f.WriteFrame(&spdy.SynStreamFrame{StreamId: id, Headers: http.Header{"Streamtype": {kind}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range cutUp(b.Bytes(), cuts) {
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzWitness: whatever the pieces in which bytes come and wherever they break
// off, what is handed out consists of whole frames, of the same data, and a status
// if there was none.
func FuzzWitness(f *testing.F) {
	f.Add([]byte("stdout"), []byte(nil), []byte{1, 2, 3}, uint16(1000), true)
	f.Add([]byte("stdout"), []byte(`{"status":"Success"}`), []byte{200, 9}, uint16(1000), false)
	f.Add(bytes.Repeat([]byte("x"), 500), []byte("{}"), []byte{255, 1}, uint16(300), true)
	f.Fuzz(func(t *testing.T, out, status, cuts []byte, end uint16, lost bool) {
		var stream []byte
		stream = append(stream, kubeletHeader...)
		stream = binary.BigEndian.AppendUint32(stream, 0x80030006) // PING
		stream = binary.BigEndian.AppendUint32(stream, 4)
		stream = binary.BigEndian.AppendUint32(stream, 1)
		stream = spdyframes.AppendData(stream, 1, 0, out)
		if status != nil {
			stream = spdyframes.AppendData(stream, 3, spdyframes.FinFlag, status)
		}
		whole := int(end) >= len(stream)
		stream = stream[:min(int(end), len(stream))]
		err := io.EOF
		if lost {
			err = errLost
		}
		// No kubelet sends a frame before the client's.
		head := min(len(kubeletHeader), len(stream))
		pieces := append(cutUp(stream[:head], cuts), cutUp(stream[head:], cuts)...)
		w := newTrackedConn(&tape{pieces: pieces, err: err}, "node-1", 2)
		if _, werr := io.WriteString(w, clientHeader); werr != nil {
			t.Fatal(werr)
		}
		got, opened := []byte(nil), false
		buf := make([]byte, 100)
		for {
			n, rerr := w.Read(buf)
			got = append(got, buf[:n]...)
			if !opened && len(got) >= len(kubeletHeader) {
				opened = true
				openStreams(t, w, cuts)
			}
			if rerr != nil {
				if !errors.Is(rerr, err) {
					t.Fatalf("read: %v", rerr)
				}
				break
			}
		}
		if len(stream) < len(kubeletHeader) {
			if !bytes.Equal(got, stream) {
				t.Fatalf("%q came out as %q", stream, got)
			}
			return
		}
		data := map[uint32][]byte{}
		for rest := got[len(kubeletHeader):]; len(rest) > 0; {
			const frameHeader = 8
			if len(rest) < frameHeader {
				t.Fatalf("a frame is incomplete: %q", rest)
			}
			n := int(binary.BigEndian.Uint32(rest[4:])&0xffffff) + frameHeader
			if len(rest) < n {
				t.Fatalf("a frame is incomplete: %q", rest)
			}
			if id := binary.BigEndian.Uint32(rest); id&0x80000000 == 0 {
				data[id] = append(data[id], rest[frameHeader:n]...)
			}
			rest = rest[n:]
		}
		if !bytes.HasPrefix(out, data[1]) || whole && !bytes.Equal(out, data[1]) {
			t.Errorf("stdout %q came out as %q", out, data[1])
		}
		switch {
		case whole && len(status) > 0:
			if !bytes.Equal(data[3], status) {
				t.Errorf("status %q came out as %q", status, data[3])
			}
		case bytes.Contains(data[3], []byte("was lost before the result was known")):
		case len(data[3]) == 0 || !bytes.HasPrefix(status, data[3]):
			t.Errorf("no status but %q", data[3])
		}
	})
}

// frameOf is a frame that opens a stream, with these headers.
func frameOf(t *testing.T, id spdy.StreamId, h http.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	f, err := spdy.NewFramer(&b, nil)
	if err == nil {
		err = f.WriteFrame(&spdy.SynStreamFrame{StreamId: id, Headers: h})
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestHostileNode: what a node sends that no kubelet does ends the connection, before the library
// that reads it here keeps streams and headers without end.
func TestHostileNode(t *testing.T) {
	large := http.Header{}
	for i := range 40 {
		large.Set(fmt.Sprint("x-", i), strings.Repeat("\x00", 1000))
	}
	for what, frame := range map[string][]byte{
		"a stream": frameOf(t, 2, http.Header{"Streamtype": {"stdout"}}), "headers": frameOf(t, 2, large),
		"a large frame": binary.BigEndian.AppendUint32([]byte{0x80, 3, 0, 2}, 1<<20),
	} {
		w := newTrackedConn(&tape{pieces: [][]byte{[]byte(kubeletHeader), frame}, err: io.EOF}, "node-1", 0)
		if _, err := io.WriteString(w, clientHeader); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(w)
		if err == nil || string(got) != kubeletHeader {
			t.Errorf("%s of the node's: read %d bytes, %v", what, len(got), err)
		}
	}
}

// TestLargeHeaders: to find the stream of the status, the API server does not unpack what a client
// has packed into a small frame.
func TestLargeHeaders(t *testing.T) {
	frame := frameOf(t, 1, http.Header{"Streamtype": {strings.Repeat("\x00", 1<<20)}})
	if len(frame) > 4<<10 {
		t.Fatalf("the frame has %d bytes", len(frame))
	}
	w := newTrackedConn(&tape{pieces: [][]byte{[]byte(kubeletHeader)}, err: io.EOF}, "node-1", 1)
	if _, err := io.WriteString(w, clientHeader); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Read(make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := w.Write(frame); err != nil {
		t.Fatal(err)
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 1<<20 {
		t.Errorf("%d bytes of memory for a frame of %d", after.TotalAlloc-before.TotalAlloc, len(frame))
	}
	if !w.sent.lost {
		t.Error("the frame was read")
	}
}

// TestTrackedEndsWithRequest: a connection is closed when its request is over, whoever is writing.
func TestTrackedEndsWithRequest(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := tracked(func(context.Context, string, string) (net.Conn, error) { return near, nil })(ctx, "tcp", "node-1:10250")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = c.Write([]byte("x"))
		close(ended)
	}()
	cancel()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the write goes on")
	}
}
