package kubeletapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/hawser-project/hawser/node/runtime"
)

// stream copies a response to w as it comes.
func (g *rig) stream(path string, w io.Writer) (int, error) {
	cert := g.ca.client(g.t, clientName, clientGroup)
	tr := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: g.ca.pool, ServerName: "node-1", Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13,
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(g.ctx, http.MethodGet, "https://"+g.addr+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return resp.StatusCode, err
}

// execute runs a command or attaches, as kubectl does over SPDY.
func (g *rig) execute(ctx context.Context, path string, argv []string, o remotecommand.StreamOptions) error {
	q := url.Values{"command": argv}
	for key, on := range map[string]bool{"input": o.Stdin != nil, "output": o.Stdout != nil, "error": o.Stderr != nil, "tty": o.Tty} {
		if on {
			q.Set(key, "1")
		}
	}
	e, err := remotecommand.NewSPDYExecutor(g.restConfig(), http.MethodPost, g.url(path, q))
	if err != nil {
		g.t.Fatal(err)
	}
	return e.StreamWithContext(ctx, o)
}

func TestExec(t *testing.T) {
	g := newRig(t)
	pod := g.addPod("p", "c", "dead", "waits")
	g.start(pod, "c", 0, idle)
	g.wait(g.start(pod, "dead", 0, "true"))
	t.Run("streams", func(t *testing.T) {
		for _, path := range []string{"/exec/default/p/c", "/exec/default/p/uid-p/c"} {
			var out, errw bytes.Buffer
			err := g.execute(g.ctx, path, []string{"sh", "-c", "cat; echo err >&2"},
				remotecommand.StreamOptions{Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errw})
			if err != nil || out.String() != "input" || errw.String() != "err\n" {
				t.Errorf("%v %q %q", err, out.String(), errw.String())
			}
		}
	})
	t.Run("exit code", func(t *testing.T) {
		var out bytes.Buffer
		err := g.execute(g.ctx, "/exec/default/p/c", []string{"sh", "-c", "exit 42"}, remotecommand.StreamOptions{Stdout: &out})
		var ee utilexec.CodeExitError
		if !errors.As(err, &ee) || ee.Code != 42 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("late output", func(t *testing.T) {
		var out bytes.Buffer
		err := g.execute(g.ctx, "/exec/default/p/c", []string{"sh", "-c", "(sleep 0.3; echo late) & echo early"}, remotecommand.StreamOptions{Stdout: &out})
		if err != nil || out.String() != "early\nlate\n" {
			t.Errorf("%v %q", err, out.String())
		}
	})
	t.Run("large", func(t *testing.T) {
		in := make([]byte, 4<<20)
		rng := rand.NewChaCha8([32]byte{1})
		_, _ = rng.Read(in)
		var out bytes.Buffer
		err := g.execute(g.ctx, "/exec/default/p/c", []string{"cat"}, remotecommand.StreamOptions{Stdin: bytes.NewReader(in), Stdout: &out})
		if err != nil || !bytes.Equal(out.Bytes(), in) {
			t.Errorf("%v, %d bytes", err, out.Len())
		}
	})
	for _, tt := range []struct {
		name, path string
		argv       []string
		want       string
	}{
		{"no command", "/exec/default/p/c", []string{"no-such"}, `exec: "no-such": executable file not found in $PATH`},
		{"no container", "/exec/default/p/no", []string{"true"}, `container not found ("no")`},
		{"waiting", "/exec/default/p/waits", []string{"true"}, `container not found ("waits")`},
		{"dead", "/exec/default/p/dead", []string{"true"}, `container not found ("dead")`},
		{"no pod", "/exec/default/no/c", []string{"true"}, `pod "default/no" does not exist`},
		{"other pod", "/exec/default/p/uid-x/c", []string{"true"}, "does not exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := g.execute(g.ctx, tt.path, tt.argv, remotecommand.StreamOptions{Stdout: &out})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if code, body := g.get("/exec/default/p/c?command=true"); code != 400 || !strings.Contains(body, "at least 1 of stdin, stdout, stderr") {
		t.Errorf("no streams: %d %q", code, body)
	}
}

type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-s; ok {
		return &size
	}
	return nil
}

func TestExecTerminal(t *testing.T) {
	g := newRig(t)
	g.start(g.addPod("p", "c"), "c", 0, idle)
	in, keys := io.Pipe()
	defer keys.Close()
	queue := make(sizes, 1)
	defer close(queue)
	queue <- remotecommand.TerminalSize{Width: 77, Height: 33}
	screen := newScreen()
	done := make(chan error, 1)
	go func() {
		done <- g.execute(g.ctx, "/exec/default/p/c", []string{"sh"},
			remotecommand.StreamOptions{Stdin: in, Stdout: screen, Tty: true, TerminalSizeQueue: queue})
	}()
	_, _ = io.WriteString(keys, "until stty size | grep '33 77'; do sleep 0.01; done\n")
	screen.wait(g, "33 77\r")
	queue <- remotecommand.TerminalSize{Width: 88, Height: 44}
	_, _ = io.WriteString(keys, "until stty size | grep '44 88'; do sleep 0.01; done\n")
	screen.wait(g, "44 88\r")
	_, _ = io.WriteString(keys, "exit 3\n")
	var ee utilexec.CodeExitError
	if err := <-done; !errors.As(err, &ee) || ee.Code != 3 {
		t.Errorf("got %v", err)
	}
}

// When the client is gone, so is what it was running, though nothing moves on the
// connection.
func TestExecClientGone(t *testing.T) {
	g := newRig(t)
	id := g.start(g.addPod("p", "c"), "c", 0, idle)
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	out := newScreen()
	done := make(chan error, 1)
	go func() {
		done <- g.execute(ctx, "/exec/default/p/c", []string{"sh", "-c", "echo started; exec sleep 54321"}, remotecommand.StreamOptions{Stdout: out})
	}()
	out.wait(g, "started")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	script := `while cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q "sleep [5]4321"; do sleep 0.01; done`
	if code, err := g.rt.Exec(g.ctx, id, []string{"sh", "-c", script}, runtime.Stdio{}); err != nil || code != 0 {
		t.Errorf("still there: %d %v", code, err)
	}
}

func TestAttach(t *testing.T) {
	g := newRig(t)
	pod := g.addPod("p", "c", "dead")
	id := g.start(pod, "c", 0, "while read x; do echo got $x; done; exit 5", func(c *runtime.Container) { c.Stdin, c.StdinOnce = true, true })
	g.wait(g.start(pod, "dead", 0, "true"))
	in, keys := io.Pipe()
	out := newScreen()
	done := make(chan error, 1)
	go func() {
		done <- g.execute(g.ctx, "/attach/default/p/c", nil, remotecommand.StreamOptions{Stdin: in, Stdout: out})
	}()
	_, _ = io.WriteString(keys, "word\n")
	out.wait(g, "got word\n")
	_ = keys.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	g.wait(id)
	err := g.execute(g.ctx, "/attach/default/p/dead", nil, remotecommand.StreamOptions{Stdout: out})
	if err == nil || !strings.Contains(err.Error(), `container not found ("dead")`) {
		t.Errorf("dead: %v", err)
	}
}

// The older WebSocket protocol, without a way to close standard input.
func TestExecWebSocket(t *testing.T) {
	g := newRig(t)
	g.start(g.addPod("p", "c"), "c", 0, idle)
	ws := g.websocket("/exec/default/p/c?command=sh&command=-c&command=read+x%3Becho+got+$x%3Becho+err+%3E%262%3Bexit+6&input=1&output=1&error=1")
	defer ws.Close()
	if err := websocket.Message.Send(ws, append([]byte{0}, "word\n"...)); err != nil {
		t.Fatal(err)
	}
	got := map[byte]string{}
	for {
		var b []byte
		if err := websocket.Message.Receive(ws, &b); err != nil {
			break
		}
		if len(b) > 0 {
			got[b[0]] += string(b[1:])
		}
	}
	var st metav1.Status
	if err := json.Unmarshal([]byte(got[3]), &st); err != nil || st.Reason != "NonZeroExitCode" || st.Details.Causes[0].Message != "6" {
		t.Errorf("status %q, %v", got[3], err)
	}
	if got[1] != "got word\n" || got[2] != "err\n" {
		t.Errorf("got %q", got)
	}
}

func (g *rig) websocket(path string) *websocket.Conn {
	g.t.Helper()
	ws, err := g.websocketConfig(path).DialContext(g.ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	return ws
}

func (g *rig) websocketConfig(path string) *websocket.Config {
	g.t.Helper()
	cfg, err := websocket.NewConfig("wss://"+g.addr+path, "https://"+g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	cfg.Protocol = []string{"v4.channel.k8s.io"}
	cfg.TlsConfig = &tls.Config{
		RootCAs: g.ca.pool, ServerName: "node-1", MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{*g.ca.client(g.t, clientName, clientGroup)},
	}
	return cfg
}

func TestRun(t *testing.T) {
	g := newRig(t)
	g.start(g.addPod("p", "c"), "c", 0, idle)
	cert := g.ca.client(t, clientName, clientGroup)
	if code, body := g.do(http.MethodPost, "/run/default/p/c?cmd=echo+hi+$((1%2B1))", cert); code != 200 || body != "hi 2\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := g.do(http.MethodPost, "/run/default/p/uid-p/c?cmd=echo+no%3Bexit+1", cert); code != 500 || body != "no\n" {
		t.Errorf("%d %q", code, body)
	}
	b := &boundedBuffer{left: 3}
	if n, err := b.Write([]byte("12345")); n != 5 || err != nil || string(b.b) != "123" {
		t.Errorf("%d %v %q", n, err, b.b)
	}
}

// forward forwards a port of the pod, as kubectl does, and returns the local one.
func (g *rig) forward(ports ...string) []portforward.ForwardedPort {
	g.t.Helper()
	rt, up, err := spdy.RoundTripperFor(g.restConfig())
	if err != nil {
		g.t.Fatal(err)
	}
	d := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, g.url("/portForward/default/p", nil))
	stop, ready := make(chan struct{}), make(chan struct{})
	errs := newScreen()
	pf, err := portforward.NewOnAddresses(d, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, errs)
	if err != nil {
		g.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pf.ForwardPorts() }()
	g.t.Cleanup(func() {
		close(stop)
		<-done
	})
	select {
	case <-ready:
	case err = <-done:
		done <- err
		g.t.Fatal(err)
	}
	fs, err := pf.GetPorts()
	if err != nil {
		g.t.Fatal(err)
	}
	return fs
}

const echoEnv = "HAWSER_TEST_ECHO"

// echoMain is the program of a container: it answers each connection with what comes
// over it, and the end with a word.
func echoMain() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println("cannot listen:", err)
		os.Exit(1)
	}
	fmt.Println("port", ln.Addr().(*net.TCPAddr).Port)
	for {
		c, err := ln.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
			_, _ = io.WriteString(c, "bye")
		}()
	}
}

// echo starts a container of pod p that echoes, and returns its port.
func (g *rig) echo() int {
	g.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		g.t.Fatal(err)
	}
	g.start(g.addPod("p", "c"), "c", 0, "exec "+exe, func(c *runtime.Container) { c.Env = []string{echoEnv + "=1"} })
	for {
		if _, log := g.get("/containerLogs/default/p/c"); strings.HasSuffix(log, "\n") {
			port, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(log, "port")))
			if err != nil {
				g.t.Fatalf("%q: %v", log, err)
			}
			return port
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-g.ctx.Done():
			g.t.Fatal("the pod does not listen")
		}
	}
}

func TestPortForward(t *testing.T) {
	g := newRig(t)
	port := g.echo()
	local := g.forward(fmt.Sprintf("0:%d", port))[0].Local
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			data := make([]byte, 3<<20)
			_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
			if err := g.roundTrip(int(local), data); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// roundTrip sends data, closes that half of the connection, and compares what comes
// back.
func (g *rig) roundTrip(port int, data []byte) error {
	c, err := (&net.Dialer{}).DialContext(g.ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	sent := make(chan error, 1)
	go func() {
		_, werr := c.Write(data)
		sent <- errors.Join(werr, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err != nil {
		return err
	}
	if want := append(data[:len(data):len(data)], "bye"...); sha256.Sum256(got) != sha256.Sum256(want) {
		return fmt.Errorf("%d bytes came back for %d", len(got), len(data))
	}
	return nil
}

// A port that nobody listens on, or somebody who is not the pod, is an error of that
// connection, and the next one works.
func TestPortForwardRefused(t *testing.T) {
	g := newRig(t)
	good := g.echo()
	// Somebody else on the machine, who must not be reached.
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	other := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	rt, up, err := spdy.RoundTripperFor(g.restConfig())
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, g.url("/portForward/default/p/uid-p", nil)).Dial("portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i, tt := range []struct{ port, errText, data string }{
		{"1", "error forwarding port 1 to pod p, uid uid-p: connect to port 1 of pod default/p", ""},
		{other, "error forwarding port " + other + " to pod p, uid uid-p: connect to port " + other + " of pod default/p: what listens there is not a process of the pod", ""},
		{strconv.Itoa(good), "", "xbye"},
	} {
		h := http.Header{}
		h.Set("port", tt.port)
		h.Set("requestID", strconv.Itoa(i))
		h.Set("streamType", "error")
		es, err := conn.CreateStream(h)
		if err != nil {
			t.Fatal(err)
		}
		h.Set("streamType", "data")
		ds, err := conn.CreateStream(h)
		if err != nil {
			t.Fatal(err)
		}
		if tt.errText == "" {
			if _, err := io.WriteString(ds, "x"); err != nil {
				t.Fatal(err)
			}
		}
		_ = ds.Close()
		msg, _ := io.ReadAll(es)
		if !strings.HasPrefix(string(msg), tt.errText) || (tt.errText == "" && len(msg) > 0) {
			t.Errorf("port %s: error %q", tt.port, msg)
		}
		if b, _ := io.ReadAll(ds); string(b) != tt.data {
			t.Errorf("port %s: data %q", tt.port, b)
		}
	}
}

func TestPortForwardWebSocket(t *testing.T) {
	g := newRig(t)
	port := g.echo()
	ws := g.websocket(fmt.Sprintf("/portForward/default/p?port=%d&port=1", port))
	defer ws.Close()
	if err := websocket.Message.Send(ws, append([]byte{0}, "word"...)); err != nil {
		t.Fatal(err)
	}
	got := map[byte]string{}
	for !strings.HasSuffix(got[0], "word") || !strings.Contains(got[3], "error forwarding port 1") {
		var b []byte
		if err := websocket.Message.Receive(ws, &b); err != nil {
			t.Fatalf("%v, after %q", err, got)
		}
		got[b[0]] += string(b[1:])
	}
	if code, body := g.get("/portForward/default/no"); code != 404 || !strings.Contains(body, "does not exist") {
		t.Errorf("%d %q", code, body)
	}
}
