package kubelet

// Tests of exec, attach and port-forward, with kubectl's own clients, over SPDY
// and over WebSockets.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// silentListener takes connections and says nothing.
func silentListener(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func (b *bench) podURL(t *testing.T, pod, sub string, o any) *url.URL {
	t.Helper()
	client, err := kubernetes.NewForConfig(b.config)
	if err != nil {
		t.Fatal(err)
	}
	req := client.CoreV1().RESTClient().Post().Resource("pods").Namespace("ns").Name(pod).SubResource(sub)
	switch o := o.(type) {
	case *corev1.PodExecOptions:
		req.VersionedParams(o, scheme.ParameterCodec)
	case *corev1.PodAttachOptions:
		req.VersionedParams(o, scheme.ParameterCodec)
	}
	return req.URL()
}

// executors are the ways in which kubectl can ask for a terminal.
var executors = map[string]func(b *bench, u *url.URL) (remotecommand.Executor, error){
	"spdy": func(b *bench, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(b.config, http.MethodPost, u)
	},
	"websocket v5": func(b *bench, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(b.config, http.MethodGet, u.String())
	},
	"websocket v4": func(b *bench, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(b.config, http.MethodGet, u.String(), "v4.channel.k8s.io")
	},
}

type sizes struct {
	once chan remotecommand.TerminalSize
}

func (s sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-s.once; ok {
		return &size
	}
	return nil
}

func TestExec(t *testing.T) {
	b := start(t, nil)
	for how, executor := range executors {
		for _, tc := range []struct {
			name    string
			pod     string
			cmd     []string
			in      string
			tty     bool
			out     string
			errOut  string
			code    int
			says    string
			halfEnd bool // needs the end of stdin to come through
			stderr  bool // asked for beside a terminal
		}{
			{name: "two streams", pod: "web", cmd: []string{"both"}, out: "to out", errOut: "to err"},
			{name: "stdin to its end", pod: "web", cmd: []string{"cat"}, in: "some input", out: "some input<eof>", halfEnd: true},
			{name: "exit code", pod: "web", cmd: []string{"exit"}, code: 42, says: "command terminated with"},
			{name: "no such command", pod: "web", cmd: []string{"nosuch"}, says: `exec: "nosuch": executable file not found in $PATH`},
			{name: "terminal", pod: "web", cmd: []string{"size"}, tty: true, out: "80x24 tty=true"},
			{name: "terminal and stderr", pod: "web", cmd: []string{"size"}, tty: true, stderr: true, out: "80x24 tty=true"},
			{name: "no agent", pod: "away", cmd: []string{"both"}, says: `dial node-9:10250: no agent is connected for node "node-9"`},
			{name: "not on a node", pod: "pending", cmd: []string{"both"}, says: "pod pending does not have a host assigned"},
			{name: "no such pod", pod: "none", cmd: []string{"both"}, says: `pods "none" not found`},
			{name: "which container", pod: "two", cmd: []string{"both"}, says: "a container name must be specified for pod two"},
			{name: "another node's certificate", pod: "wrong", cmd: []string{"both"}, says: "x509: certificate is valid for node-1, not node-2"},
		} {
			if tc.halfEnd && how == "websocket v4" {
				continue // that protocol has no way to say it
			}
			t.Run(how+"/"+tc.name, func(t *testing.T) {
				if tc.pod == "wrong" {
					b.serveKubelet(t, "node-2:10250", "node-1")
				}
				e, err := executor(b, b.podURL(t, tc.pod, "exec", &corev1.PodExecOptions{
					Command: tc.cmd, Stdin: tc.in != "", Stdout: true, Stderr: !tc.tty || tc.stderr, TTY: tc.tty,
				}))
				if err != nil {
					t.Fatal(err)
				}
				var out, errOut bytes.Buffer
				o := remotecommand.StreamOptions{Stdout: &out, Tty: tc.tty}
				if tc.in != "" {
					o.Stdin = strings.NewReader(tc.in)
				}
				if tc.tty {
					q := sizes{make(chan remotecommand.TerminalSize, 1)}
					q.once <- remotecommand.TerminalSize{Width: 80, Height: 24}
					defer close(q.once)
					o.TerminalSizeQueue = q
				}
				if !tc.tty || tc.stderr {
					o.Stderr = &errOut
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				err = e.StreamWithContext(ctx, o)
				checkExec(t, err, tc.code, tc.says)
				if out.String() != tc.out || errOut.String() != tc.errOut {
					t.Errorf("got %q and %q, want %q and %q", out.String(), errOut.String(), tc.out, tc.errOut)
				}
			})
		}
	}
}

func checkExec(t *testing.T, err error, code int, says string) {
	t.Helper()
	if says == "" {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) && exit.Code != code || code != 0 && !errors.As(err, &exit) {
		t.Errorf("exit code %d (%v), want %d", exit.Code, err, code)
	}
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %q", err, says)
	}
}

func TestAttach(t *testing.T) {
	b := start(t, nil)
	for _, how := range []string{"spdy", "websocket v5"} {
		t.Run(how, func(t *testing.T) {
			e, err := executors[how](b, b.podURL(t, "web", "attach", &corev1.PodAttachOptions{Stdin: true, Stdout: true}))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if want := `attached, got "hello"`; out.String() != want {
				t.Errorf("got %q, want %q", out.String(), want)
			}
		})
	}
}

// TestUpgradeRefused: what cannot work is refused before anything is upgraded.
func TestUpgradeRefused(t *testing.T) {
	b := start(t, nil)
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"web/exec?command=x":                            {400, "you must specify at least one of stdin, stdout, stderr"},
		"web/exec?stdout=true":                          {400, "you must specify at least one command for the container"},
		"web/exec?command=x&stderr=true&tty=true":       {400, "you must specify at least one of stdin, stdout, stderr"},
		"web/exec?command=x&stdout=true&container=none": {400, "container none is not valid for pod web"},
		"web/exec?command=x&stdout=true":                {400, "Upgrade request required"},
		"web/attach":                                    {400, "you must specify at least one of stdin, stdout, stderr"},
		"pending/attach?stdout=true":                    {400, "pod pending does not have a host assigned"},
		"pending/portforward":                           {400, "pod pending does not have a host assigned"},
		"none/portforward":                              {404, `pods "none" not found`},
		"web/portforward?ports=x":                       {400, `invalid port "x"`},
		"web/portforward":                               {400, "Upgrade request required"},
		"away/exec?command=x&stdout=true&dryRun=All":    {400, "dryRun is not supported"},
		"two/exec?command=x&stdout=true":                {400, "choose one of: [c waiting lost]"},
		"stray/exec?command=x&stdout=true":              {404, `nodes "gone" not found`},
	} {
		code, body, _ := b.get(t, http.MethodPost, "/api/v1/namespaces/ns/pods/"+path)
		if code != want.code || !strings.Contains(message(t, body), want.says) {
			t.Errorf("%s: %d %s, want %d %q", path, code, message(t, body), want.code, want.says)
		}
	}
}

// TestWebSocketNeedsCreate: a GET that upgrades needs what a POST does.
func TestWebSocketNeedsCreate(t *testing.T) {
	asked := make(chan string, 100)
	b := start(t, func(o *Options) {
		o.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked <- fmt.Sprintf("%s %s %s/%s %s/%s", a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName())
			return authorizer.DecisionNoOpinion, "because", nil
		})
	})
	for _, tc := range []struct{ sub, query string }{
		{"exec", "?command=both&stdout=true"}, {"attach", "?stdout=true"}, {"portforward", ""},
	} {
		path := "/api/v1/namespaces/ns/pods/web/" + tc.sub + tc.query
		code, body, _ := b.get(t, http.MethodGet, path)
		if want := `pods/` + tc.sub; code != 403 || !strings.Contains(message(t, body), `cannot create resource "`+want+`"`) || !strings.Contains(message(t, body), "because") {
			t.Errorf("%s by GET: %d %s", tc.sub, code, body)
		}
		if got, want := <-asked, "alice create pods/"+tc.sub+" ns/web"; got != want {
			t.Errorf("asked %q, want %q", got, want)
		}
		if code, body, _ := b.get(t, http.MethodPost, path); code != 400 || len(asked) != 0 {
			t.Errorf("%s by POST: %d %s, asked %d times more", tc.sub, code, body, len(asked))
		}
	}
}

// TestExecWebSocketTooMuch: a terminal size without an end and a large frame end a connection that is
// translated.
func TestExecWebSocketTooMuch(t *testing.T) {
	b := start(t, nil)
	for what, send := range map[string]struct {
		channel     byte
		size, times int
	}{"a size": {4, 100, 20}, "a large frame": {0, 16 << 20, 1}} {
		ws := b.websocket(t, "exec?command=cat&stdin=true&stdout=true&tty=true", "v5.channel.k8s.io")
		for range send.times {
			if websocket.Message.Send(ws, append([]byte{send.channel}, strings.Repeat("[", send.size)...)) != nil {
				break
			}
		}
		if _, err := io.Copy(io.Discard, ws); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection goes on", what)
		}
	}
}

// dialers are the ways in which kubectl can ask for ports.
var dialers = map[string]func(b *bench, u *url.URL) (httpstream.Dialer, error){
	"spdy": func(b *bench, u *url.URL) (httpstream.Dialer, error) {
		rt, up, err := spdy.RoundTripperFor(b.config)
		if err != nil {
			return nil, err
		}
		return spdy.NewDialerForStreaming(up, &http.Client{Transport: rt}, http.MethodPost, u), nil
	},
	"websocket": func(b *bench, u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialerForStreaming(u, b.config)
	},
}

func TestPortForward(t *testing.T) {
	b := start(t, nil)
	for how, dialer := range dialers {
		t.Run(how, func(t *testing.T) {
			d, err := dialer(b, b.podURL(t, "web", "portforward", nil))
			if err != nil {
				t.Fatal(err)
			}
			stop, ready := make(chan struct{}), make(chan struct{})
			var errOut bytes.Buffer
			f, err := portforward.NewOnAddressesForStreaming(d, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, &errOut)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- f.ForwardPorts() }()
			select {
			case <-ready:
			case err = <-done:
				t.Fatalf("ended: %v", err)
			}
			ports, err := f.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				echo(t, ports[0].Local, 1<<20, uint64(i))
			}
			close(stop)
			if err := <-done; err != nil {
				t.Errorf("ForwardPorts: %v", err)
			}
		})
	}
}

// echo sends n random bytes through a port, ends its half, and compares what
// comes back.
func echo(t *testing.T, port uint16, n int64, seed uint64) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent, got := sha256.New(), sha256.New()
	var key [32]byte
	key[0] = byte(seed)
	failed := make(chan error, 1)
	go func() {
		_, fault := io.CopyN(io.MultiWriter(conn, sent), rand.NewChaCha8(key), n)
		if tcp, ok := conn.(*net.TCPConn); ok {
			fault = errors.Join(fault, tcp.CloseWrite())
		}
		failed <- fault
	}()
	m, err := io.Copy(got, conn)
	if err = errors.Join(err, <-failed); err != nil {
		t.Error(err)
	}
	if m != n || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("sent %d bytes, got %d, same: %v", n, m, bytes.Equal(sent.Sum(nil), got.Sum(nil)))
	}
}

// TestPortForwardNoAgent: the reason reaches kubectl, whichever way it asks.
func TestPortForwardNoAgent(t *testing.T) {
	b := start(t, nil)
	for how, dialer := range dialers {
		d, err := dialer(b, b.podURL(t, "away", "portforward", nil))
		if err != nil {
			t.Fatal(err)
		}
		conn, _, err := d.Dial("portforward.k8s.io")
		if err == nil {
			conn.Close()
			t.Errorf("%s: connected", how)
			continue
		}
		if !strings.Contains(err.Error(), "500") && !strings.Contains(err.Error(), "no agent is connected") {
			t.Errorf("%s: %v", how, err)
		}
	}
	// Whatever a client makes of it, this is what it is told.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/api/v1/namespaces/ns/pods/away/portforward", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer secret"}, "Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"portforward.k8s.io"}}
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := message(t, string(body)); resp.StatusCode != 500 || !strings.Contains(got, `dial node-9:10250: no agent is connected for node "node-9"`) {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
}
