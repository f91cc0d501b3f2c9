package probes

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target reaches a server whatever port is asked for.
func target(addr string) Target {
	return Target{
		Host: "127.0.0.1",
		Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
		Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
	}
}

func TestHTTP(t *testing.T) {
	var seen atomic.Pointer[http.Request]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Clone(context.WithoutCancel(r.Context())))
		switch r.URL.Path {
		case "/ok":
			_, _ = io.WriteString(w, strings.Repeat("x", 2*maxOutput))
		case "/bad":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/redirect":
			http.Redirect(w, r, "/bad", http.StatusFound)
		case "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/slow":
			select {
			case <-r.Context().Done():
			case <-t.Context().Done():
			}
		}
	}))
	defer srv.Close()
	for _, tt := range []struct {
		path   string
		port   intstr.IntOrString
		ok     bool
		output string
		err    bool
	}{
		{"/ok", intstr.FromInt32(80), true, "xxx", false},
		{"/ok?a=b", intstr.FromString("web"), true, "xxx", false},
		{"/ok", intstr.FromString("none"), false, "", true},
		{"/ok", intstr.FromInt32(70000), false, "", true},
		{"/bad", intstr.FromInt32(80), false, "HTTP probe failed with statuscode: 503", false},
		{"/redirect", intstr.FromInt32(80), false, "HTTP probe failed with statuscode: 503", false},
		{"/away", intstr.FromInt32(80), true, `Probe terminated redirects, Response body: <a href="http://elsewhere.invalid/">Found</a>.`, false},
		{"/loop", intstr.FromInt32(80), false, "stopped after 10 redirects", false},
		{"/slow", intstr.FromInt32(80), false, "deadline exceeded", false},
	} {
		t.Run(tt.path+" "+tt.port.String(), func(t *testing.T) {
			p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: tt.path, Port: tt.port, HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Probe", Value: "1"}, {Name: "Host", Value: "example.com"}},
			}}}
			ok, output, err := Once(t.Context(), p, target(srv.Listener.Addr().String()))
			if ok != tt.ok || !strings.Contains(output, tt.output) || (err != nil) != tt.err {
				t.Errorf("Once: %v, %q, %v", ok, output, err)
			}
			if len(output) > maxOutput {
				t.Errorf("output has %d bytes", len(output))
			}
		})
	}
	if last := seen.Load(); last.Header.Get("X-Probe") != "1" || last.Host != "example.com" || !strings.HasPrefix(last.UserAgent(), "kube-probe/") {
		t.Errorf("request %+v", last)
	}
}

// TestRequestHeaders: the headers of a probe take the place of those that every probe has, and an
// empty Accept leaves that out.
func TestRequestHeaders(t *testing.T) {
	for _, tt := range []struct {
		name    string
		headers []corev1.HTTPHeader
		want    http.Header
	}{
		{"none", nil, http.Header{"User-Agent": {userAgent}, "Accept": {"*/*"}}},
		{"own", []corev1.HTTPHeader{{Name: "accept", Value: "text/plain"}, {Name: "user-agent", Value: "me"}}, http.Header{"User-Agent": {"me"}, "Accept": {"text/plain"}}},
		{"two", []corev1.HTTPHeader{{Name: "Accept", Value: "a/b"}, {Name: "Accept", Value: "c/d"}}, http.Header{"User-Agent": {userAgent}, "Accept": {"a/b", "c/d"}}},
		{"no accept", []corev1.HTTPHeader{{Name: "Accept"}}, http.Header{"User-Agent": {userAgent}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := request(t.Context(), &corev1.HTTPGetAction{HTTPHeaders: tt.headers}, Target{}, 80)
			if err != nil || !maps.EqualFunc(req.Header, tt.want, slices.Equal) {
				t.Errorf("headers %v, %v; want %v", req.Header, err, tt.want)
			}
		})
	}
}

// TestReports: a report tells a failure, an attempt that could not be made and a warning apart.
func TestReports(t *testing.T) {
	srv := httptest.NewServer(http.RedirectHandler("http://elsewhere.invalid/", http.StatusFound))
	defer srv.Close()
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	for _, tt := range []struct {
		name    string
		handler corev1.ProbeHandler
		exit    int
		err     error
		want    string // failed errored warned
	}{
		{"ok", exec, 0, nil, "false false false"},
		{"fails", exec, 1, nil, "true false false"},
		{"cannot be run", exec, 0, errors.New("no such file"), "false true false"},
		{"no such port", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("none")}}, 0, nil, "false true false"},
		{"redirected", corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}, 0, nil, "false false true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := target(srv.Listener.Addr().String())
			pod.Exec = func(context.Context, []string, *Output) (int, error) { return tt.exit, tt.err }
			Run(t.Context(), &corev1.Probe{ProbeHandler: tt.handler}, pod, time.Now(), nil, func(r Report) bool {
				if got := fmt.Sprint(r.Failed, r.Errored, r.Warned); got != tt.want || (r.Errored || r.Warned) && r.Output == "" {
					t.Errorf("report %+v, want %s", r, tt.want)
				}
				return false
			})
		})
	}
}

// TestBrokenBody: an answer whose body cannot be read is no verdict, whatever its status is.
func TestBrokenBody(t *testing.T) {
	for name, answer := range map[string]string{
		"breaks": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno",
		"failed": "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 9\r\n\r\nno",
		"hangs":  "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tried := 0
				pod := target("")
				pod.Dial = func(ctx context.Context, _ uint16) (net.Conn, error) {
					tried++
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
							t.Error(err)
						}
						_, _ = io.WriteString(theirs, answer)
						if name == "hangs" {
							_, _ = io.Copy(io.Discard, theirs)
						}
					}()
					return ours, nil
				}
				p := &corev1.Probe{FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}}
				Run(t.Context(), p, pod, time.Now(), nil, func(r Report) bool {
					if !r.Errored || r.Failed || r.Changed || r.Output == "" || tried != tries {
						t.Errorf("report %+v after %d tries", r, tried)
					}
					return false
				})
			})
		})
	}
}

// TestRedirectToAnotherPort: the same host at another port, with or without TLS, is followed,
// and through the pod's own dial, which knows whose the port is.
func TestRedirectToAnotherPort(t *testing.T) {
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer secure.Close()
	srv := httptest.NewServer(http.RedirectHandler("https://127.0.0.1:8443/", http.StatusFound))
	defer srv.Close()
	at := map[uint16]string{8080: srv.Listener.Addr().String(), 8443: secure.Listener.Addr().String()}
	pod := target("")
	pod.Dial = func(ctx context.Context, port uint16) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at[port])
	}
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}}}
	if ok, output, err := Once(t.Context(), p, pod); ok || output != "HTTP probe failed with statuscode: 418" || err != nil {
		t.Errorf("Once: %v, %q, %v", ok, output, err)
	}
}

func TestHTTPSIsNotVerified(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(443), Scheme: corev1.URISchemeHTTPS}}}
	ok, output, err := Once(t.Context(), p, target(srv.Listener.Addr().String()))
	if ok || output != "HTTP probe failed with statuscode: 404" || err != nil {
		t.Errorf("Once: %v, %q, %v", ok, output, err)
	}
}

func TestTCP(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}}
	if ok, output, err := Once(t.Context(), p, target(l.Addr().String())); !ok || err != nil {
		t.Errorf("Once: %v, %q, %v", ok, output, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if ok, output, err := Once(t.Context(), p, target(l.Addr().String())); ok || err != nil || !strings.Contains(output, "refused") {
		t.Errorf("Once: %v, %q, %v", ok, output, err)
	}
}

func TestExec(t *testing.T) {
	for _, tt := range []struct {
		name   string
		exec   func(ctx context.Context, out *Output) (int, error)
		ok     bool
		output string
		err    bool
	}{
		{"ok", func(context.Context, *Output) (int, error) { return 0, nil }, true, "", false},
		{"fails", func(_ context.Context, out *Output) (int, error) {
			_, err := out.Write([]byte("why"))
			return 1, err
		}, false, "why", false},
		{"cannot", func(context.Context, *Output) (int, error) { return 0, errors.New("no such container") }, false, "", true},
		{"hangs", func(ctx context.Context, _ *Output) (int, error) { <-ctx.Done(); return 0, ctx.Err() }, false, `command timed out: ["x"] timed out`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}, TimeoutSeconds: 3}
				ok, output, err := Once(t.Context(), p, Target{Exec: func(ctx context.Context, _ []string, out *Output) (int, error) { return tt.exec(ctx, out) }})
				if ok != tt.ok || output != tt.output || (err != nil) != tt.err {
					t.Errorf("Once: %v, %q, %v", ok, output, err)
				}
			})
		})
	}
}

// healthServer answers gRPC health checks with a status for each service.
func healthServer(t *testing.T, status map[string]byte) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || len(b) < 5 || r.ProtoMajor != 2 || r.Header.Get("Content-Type") != "application/grpc" || r.Header.Get("TE") != "trailers" {
			t.Errorf("request %+v with body %x, %v", r, b, err)
			return
		}
		service := ""
		if msg := b[5:]; len(msg) > 2 {
			service = string(msg[2:])
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		st, ok := status[service]
		if !ok {
			w.Header().Set("Grpc-Status", "5")
			w.Header().Set("Grpc-Message", "unknown service")
			return
		}
		msg := []byte{1 << 3, st}
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...))
		w.Header().Set("Grpc-Status", "0")
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestGRPC(t *testing.T) {
	addr := healthServer(t, map[string]byte{"": 1, "down": 2})
	for _, tt := range []struct {
		service *string
		ok      bool
		output  string
	}{
		{nil, true, ""},
		{ptr.To("down"), false, "service unhealthy (responded with status 2)"},
		{ptr.To("none"), false, "error: health rpc failed: status 5 unknown service"},
	} {
		p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 5000, Service: tt.service}}}
		ok, output, err := Once(t.Context(), p, target(addr))
		if ok != tt.ok || output != tt.output || err != nil {
			t.Errorf("service %v: %v, %q, %v", tt.service, ok, output, err)
		}
	}
}

func FuzzHealthStatus(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1})
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 4, 0x12, 2, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		status, err := healthStatus(b)
		if err == nil && status != 0 && len(b) < 7 {
			t.Errorf("status %d out of %x", status, b)
		}
	})
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name    string
		probe   corev1.Probe
		first   *bool
		results string // of attempts: . ok, x failed, e error
		want    string // reports: SECOND verdict, ! when changed
	}{
		{"ready after delay", corev1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 10}, nil, "..", "5 true!, 15 true"},
		{"success threshold", corev1.Probe{PeriodSeconds: 1, SuccessThreshold: 3}, nil, ".x...", "0 false, 1 false, 2 false, 3 false, 4 true!"},
		{"failure threshold", corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3}, nil, ".xx.xxx", "0 true!, 1 true, 2 true, 3 true, 4 true, 5 true, 6 false!"},
		{"default threshold is 3", corev1.Probe{PeriodSeconds: 1}, nil, "xxx", "0 false, 1 false, 2 false!"},
		{"known before", corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1}, ptr.To(true), ".x", "0 true, 1 false!"},
		{"errors do not count", corev1.Probe{PeriodSeconds: 1, FailureThreshold: 2}, nil, "xeeex", "0 false, 1 false, 2 false!"},
		{"errors are tried again at once", corev1.Probe{PeriodSeconds: 1, FailureThreshold: 2}, nil, "eexe.", "0 false, 1 true!"},
		{"default period is 10 s", corev1.Probe{}, nil, "..", "0 true!, 10 true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				i := 0
				target := Target{Exec: func(context.Context, []string, *Output) (int, error) {
					defer func() { i++ }()
					switch tt.results[i] {
					case 'x':
						return 1, nil
					case 'e':
						return 0, errors.New("cannot")
					}
					return 0, nil
				}}
				p := tt.probe
				p.Exec = &corev1.ExecAction{Command: []string{"x"}}
				var got []string
				Run(t.Context(), &p, target, began, tt.first, func(r Report) bool {
					mark := ""
					if r.Changed {
						mark = "!"
					}
					got = append(got, fmt.Sprintf("%d %v%s", int(time.Since(began).Seconds()), r.OK, mark))
					return i < len(tt.results)
				})
				if s := strings.Join(got, ", "); s != tt.want {
					t.Errorf("reports %s, want %s", s, tt.want)
				}
			})
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Run(ctx, &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}, InitialDelaySeconds: 3600},
				Target{}, time.Now(), nil, func(Report) bool { t.Error("a probe was made"); return false })
		}()
		synctest.Wait()
		cancel()
		<-done
	})
}

// TestRunAfterClockWasSetBack: a container that started in the future is probed after the delay.
func TestRunAfterClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := corev1.Probe{InitialDelaySeconds: 5}
		p.Exec = &corev1.ExecAction{Command: []string{"x"}}
		ok := Target{Exec: func(context.Context, []string, *Output) (int, error) { return 0, nil }}
		Run(t.Context(), &p, ok, began.Add(5*time.Hour), nil, func(Report) bool { return false })
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("first probed after %v", d)
		}
	})
}
