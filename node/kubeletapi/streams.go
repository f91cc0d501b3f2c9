package kubeletapi

// Exec, attach and port forwarding over SPDY or WebSocket connections.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	utilexec "k8s.io/utils/exec"

	"github.com/hawser-project/hawser/node/runtime"
)

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	argv := r.URL.Query()["command"]
	if len(argv) == 0 {
		writeError(w, errorf(http.StatusBadRequest, "you must specify a command"))
		return
	}
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		writeError(w, errorf(http.StatusBadRequest, "%v", err))
		return
	}
	c, err := s.running(r)
	if err != nil {
		writeError(w, err)
		return
	}
	j := &joiner{s: s, id: c.ID, o: o, client: newGuarded(w, r, execStreams(o), s.cfg.StreamCreationTimeout, true)}
	remotecommand.ServeExec(j.client, r, j, c.Pod.Name, string(c.Pod.UID), c.Name, argv, o,
		s.cfg.IdleTimeout, s.cfg.StreamCreationTimeout+late, remotecommand.SupportedStreamingProtocols)
	j.client.end()
	j.wg.Wait()
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		writeError(w, errorf(http.StatusBadRequest, "%v", err))
		return
	}
	c, err := s.running(r)
	if err != nil {
		writeError(w, err)
		return
	}
	j := &joiner{s: s, id: c.ID, o: o, client: newGuarded(w, r, execStreams(o), s.cfg.StreamCreationTimeout, true)}
	remotecommand.ServeAttach(j.client, r, j, c.Pod.Name, string(c.Pod.UID), c.Name, o,
		s.cfg.IdleTimeout, s.cfg.StreamCreationTimeout+late, remotecommand.SupportedStreamingProtocols)
	j.client.end()
	j.wg.Wait()
}

// A joiner joins the streams of a client to a container.
type joiner struct {
	s  *Server
	id string
	o  *remotecommand.Options
	// client is told when its streams are there.
	client *guarded
	wg     sync.WaitGroup // ends with the client's connection at the latest
}

// ExecInContainer implements remotecommand.Executor.
func (j *joiner) ExecInContainer(
	ctx context.Context, _, _, _ string, argv []string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	j.client.complete()
	st := j.stdio(ctx, in, out, errw, tty, resize)
	st.Drain = true
	code, err := j.s.cfg.Runtime.Exec(ctx, j.id, argv, st)
	if err != nil {
		return plain(err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// AttachContainer implements remotecommand.Attacher.
func (j *joiner) AttachContainer(
	ctx context.Context, _, _, _ string, in io.Reader, out, errw io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	j.client.complete()
	return plain(j.s.cfg.Runtime.Attach(ctx, j.id, j.stdio(ctx, in, out, errw, tty, resize)))
}

// plain is what a user is told of an error: about a command that cannot be run,
// the words that every container runtime uses, without where they come from.
func plain(err error) error {
	var se *runtime.StartError
	switch {
	case errors.As(err, &se):
		return se
	case errors.Is(err, runtime.ErrNotRunning):
		return errors.New("cannot exec in a stopped container")
	}
	return err
}

// stdio picks the streams that were asked for: with WebSockets all of them exist.
func (j *joiner) stdio(
	ctx context.Context, in io.Reader, out, errw io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize,
) runtime.Stdio {
	st := runtime.Stdio{TTY: tty}
	if j.o.Stdin {
		st.In = in
	}
	if j.o.Stdout {
		st.Out = out
	}
	if j.o.Stderr && !tty {
		st.Err = errw
	}
	if !tty || resize == nil {
		return st
	}
	sizes := make(chan runtime.Size)
	st.Resize = sizes
	j.wg.Go(func() {
		defer close(sizes)
		for size := range resize {
			select {
			case sizes <- runtime.Size{Width: size.Width, Height: size.Height}:
			case <-ctx.Done():
				return
			}
		}
	})
	return st
}

// run executes a command without streams and answers with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	c, err := s.running(r)
	if err != nil {
		writeError(w, err)
		return
	}
	cmd := r.URL.Query()["cmd"]
	if len(cmd) == 0 {
		writeError(w, errorf(http.StatusBadRequest, "you must specify a command"))
		return
	}
	if len(cmd) == 1 {
		cmd = []string{"/bin/sh", "-c", cmd[0]}
	}
	out := &boundedBuffer{left: maxRunOutput}
	code, err := s.cfg.Runtime.Exec(r.Context(), c.ID, cmd, runtime.Stdio{Out: out, Err: out})
	if err != nil {
		writeError(w, plain(err))
		return
	}
	if code != 0 {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = w.Write(out.b)
}

// maxRunOutput bounds the answer of run.
const maxRunOutput = 16 << 20

// A boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct {
	mu   sync.Mutex
	b    []byte
	left int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), b.left)
	b.b = append(b.b, p[:n]...)
	b.left -= n
	return len(p), nil
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	pod, err := s.pod(r)
	if err != nil {
		writeError(w, err)
		return
	}
	o, err := portforward.NewV4Options(r)
	if err != nil {
		writeError(w, errorf(http.StatusBadRequest, "%v", err))
		return
	}
	if len(o.Ports) > maxForwardedPorts {
		writeError(w, errorf(http.StatusBadRequest, "%d ports are more than the %d that one request may name", len(o.Ports), maxForwardedPorts))
		return
	}
	// The library hands out a context that never ends, and does not wait for what
	// it started.
	ctx, cancel := context.WithCancel(r.Context())
	f := &forwarder{ctx: ctx, dial: s.cfg.Runtime.DialPod, pod: pod, own: make(chan struct{}, maxForwarded), all: s.forwarded, full: s.tellFull}
	portforward.ServePortForward(newGuarded(w, r, s.forwardStreams, 0, false), r, f, pod.Name, r.PathValue("uid"), o,
		s.cfg.IdleTimeout, s.cfg.StreamCreationTimeout+late, portforward.SupportedProtocols)
	cancel()
	f.finish()
}

// A forwarder connects streams of one client to ports of one pod.
type forwarder struct {
	ctx  context.Context //nolint:containedctx // see portForward
	dial func(ctx context.Context, id runtime.PodID, port uint16, declared bool) (net.Conn, error)
	pod  *corev1.Pod
	own  chan struct{} // a place for each of its connections
	all  chan struct{} // and one among those of all clients
	full func(error)   // is told of a connection for which there is none

	mu   sync.Mutex // guards the following
	over bool
	wg   sync.WaitGroup
}

// finish returns when nothing is being forwarded any more, and nothing will be.
func (f *forwarder) finish() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.wg.Wait()
}

// PortForward implements portforward.PortForwarder. An error ends this stream
// only; the client reads it on the stream's error channel.
func (f *forwarder) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	f.mu.Lock()
	if f.over {
		f.mu.Unlock()
		return errClientGone
	}
	f.wg.Add(1)
	f.mu.Unlock()
	defer f.wg.Done()
	conn, leave, err := f.connect(port)
	if errors.Is(err, errNoPlace) {
		// kubectl ends all its connections upon an error of one.
		if s, ok := stream.(httpstream.Stream); ok {
			f.full(err)
			_, _ = s.Write(nil) // waits as below
			_ = s.Reset()
			return nil
		}
	}
	if err != nil {
		// An error resets the stream. That must not reach the client before the
		// reply that opens it does, which the library sends when it gets to it;
		// writing waits for that.
		if s, ok := stream.(httpstream.Stream); ok {
			_, _ = s.Write(nil)
		}
		return err
	}
	defer leave()
	defer conn.Close()
	defer context.AfterFunc(f.ctx, func() { _ = conn.Close() })()
	if err := splice(conn, stream); err != nil && f.ctx.Err() == nil {
		return err
	}
	return nil
}

// errNoPlace is why a connection is not forwarded.
var errNoPlace = errors.New("as much is forwarded as may be at a time")

// connect takes the places of a connection, until leave, and dials. It does not wait for places.
func (f *forwarder) connect(port int32) (conn net.Conn, leave func(), err error) {
	taken := []chan struct{}{f.own, f.all}
	for i, places := range taken {
		select {
		case places <- struct{}{}:
			continue
		default:
		}
		for _, t := range taken[:i] {
			<-t
		}
		return nil, nil, fmt.Errorf("%w: %d connections", errNoPlace, cap(places))
	}
	leave = func() {
		for _, t := range taken {
			<-t
		}
	}
	if conn, err = f.dial(f.ctx, podID(f.pod), uint16(port), declares(f.pod, port)); err != nil {
		leave()
	}
	return conn, leave, err
}

// splice copies both ways until both have ended, or what comes from the pod has
// failed. The end of one direction is passed on where the other side can be told.
func splice(conn net.Conn, stream io.ReadWriteCloser) error {
	var up sync.WaitGroup
	defer up.Wait()
	up.Go(func() {
		// A failure shows on the way down too, if it matters to anybody.
		if _, err := io.Copy(conn, stream); err != nil {
			// What still comes holds up the client's other streams until it is read.
			_, _ = io.Copy(io.Discard, stream)
		} else if cw, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = cw.CloseWrite()
		}
	})
	_, err := io.Copy(stream, conn)
	s, halves := stream.(httpstream.Stream)
	switch {
	case !halves:
		// A WebSocket channel has no half to be closed: it ends here.
		_ = stream.Close()
	case err != nil:
		_ = s.Reset()
	default:
		// The client reads the end now, and closes its side when it has no more to
		// say.
		_ = s.Close()
		return nil
	}
	_ = conn.Close()
	return err
}
