package pods

// Tests of hooks and probes, and of termination messages.

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestHooksAndProbes(t *testing.T) {
	var healthy, ready atomic.Bool
	healthy.Store(true)
	var hooks atomic.Int32
	o := memory.Options{Exec: func(ctx context.Context, _ runtime.Container, argv []string, s runtime.Stdio) (int, error) {
		if !s.Probe {
			t.Errorf("%q has no place of its own", argv)
		}
		switch argv[0] {
		case "alive":
			if !healthy.Load() {
				_, _ = s.Err.Write([]byte("not well"))
				return 1, nil
			}
		case "ready":
			if !ready.Load() {
				return 1, nil
			}
		case "slow": // a hook
			hooks.Add(1)
			select {
			case <-time.After(7 * time.Second):
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		case "bad":
			_, _ = s.Out.Write([]byte("no luck"))
			return 7, nil
		}
		return 0, nil
	}}
	exec := func(word string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}}
	}
	hook := func(word string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{word}}}
	}
	t.Run("probes", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				c := &p.Spec.Containers[0]
				c.StartupProbe = &corev1.Probe{ProbeHandler: exec("alive"), InitialDelaySeconds: 5, PeriodSeconds: 1, FailureThreshold: 3}
				c.LivenessProbe = &corev1.Probe{ProbeHandler: exec("alive"), PeriodSeconds: 10, FailureThreshold: 3, TerminationGracePeriodSeconds: ptr.To[int64](4)}
				c.ReadinessProbe = &corev1.Probe{ProbeHandler: exec("ready"), PeriodSeconds: 5, SuccessThreshold: 2, FailureThreshold: 1}
			}))
			advance(4 * time.Second)
			if cs := w.pod("a").Status.ContainerStatuses[0]; *cs.Started || cs.Ready {
				t.Errorf("status before the startup probe %+v", cs)
			}
			advance(2 * time.Second)
			if cs := w.pod("a").Status.ContainerStatuses[0]; !*cs.Started || cs.Ready {
				t.Errorf("status after the startup probe %+v", cs)
			}
			ready.Store(true)
			advance(11 * time.Second)
			if got := condition(w.pod("a"), corev1.PodReady); got != "True" {
				t.Errorf("Ready is %s", got)
			}
			ready.Store(false)
			advance(6 * time.Second)
			if got := condition(w.pod("a"), corev1.PodReady); got != "False ContainersNotReady" {
				t.Errorf("Ready is %s", got)
			}
			if n := len(w.rt.Calls()); n != 1 {
				t.Errorf("readiness restarted the container: %q", w.rt.Calls())
			}
			healthy.Store(false)
			advance(26 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 4s", "start a/main#1")
			w.wantEvent("a Warning Unhealthy Liveness probe failed: not well")
			w.wantEvent("a Normal Killing Container main failed liveness probe, will be restarted")
			advance(12 * time.Second) // now the startup probe fails three times
			w.wantEvent("a Normal Killing Container main failed startup probe, will be restarted")
			healthy.Store(true)
		})
	})
	t.Run("preStop", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			hooks.Store(0)
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook("slow")} }))
			advance(time.Second)
			w.remove("a", 30)
			advance(6 * time.Second)
			w.wantCalls("start a/main#0")
			advance(2 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 23s", "remove a/main#0")
			if hooks.Load() != 1 {
				t.Errorf("hook ran %d times", hooks.Load())
			}
		})
	})
	t.Run("preStop takes too long", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook("slow")} }))
			advance(time.Second)
			w.remove("a", 5)
			advance(6 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 2s", "remove a/main#0")
			w.wantEvent("a Warning FailedPreStopHook")
		})
	})
	t.Run("preStop sleep", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
			}))
			advance(time.Second)
			w.remove("a", 30)
			advance(4 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 27s", "remove a/main#0")
		})
	})
	t.Run("postStart", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("slow")}
				p.Spec.Containers = append(p.Spec.Containers, container1("second"))
			}))
			advance(5 * time.Second)
			w.wantState("a", "main", "Waiting ContainerCreating")
			w.wantCalls("start a/main#0")
			advance(3 * time.Second)
			w.wantState("a", "main", "Running")
			w.wantState("a", "second", "Running")
		})
	})
	t.Run("postStart fails", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("bad")}
			}))
			advance(time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 30s")
			w.wantEvent(`a Warning FailedPostStartHook Exec lifecycle hook ([bad]) for Container "main" failed`)
			w.wantEvent("a Normal Killing Container main failed PostStartHook")
			if w.saw("will be restarted") != 0 {
				t.Errorf("a restart is promised: %q", w.events)
			}
			w.wantPhase("a", corev1.PodSucceeded)
		})
	})
	t.Run("deleted during postStart", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("slow")} }))
			advance(time.Second)
			w.remove("a", 30)
			advance(time.Second)
			if w.find("default", "a") != nil {
				t.Error("the pod waits for its hook")
			}
		})
	})
}

// TestProbeOfAddress: a probe reaches a container that listens at an address of the node only.
func TestProbeOfAddress(t *testing.T) {
	o := memory.Options{Dial: func(_ context.Context, _ runtime.PodID, port uint16, also []netip.Addr) (net.Conn, error) {
		if port != 80 || !slices.Equal(also, []netip.Addr{netip.MustParseAddr("10.1.1.1")}) {
			return nil, errors.New("connection refused")
		}
		c, _ := net.Pipe()
		return c, nil
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}, PeriodSeconds: 1,
			}
		}))
		advance(2 * time.Second)
		if got := condition(w.pod("a"), corev1.PodReady); got != "True" {
			t.Errorf("Ready is %s", got)
		}
	})
}

// TestProbesOfEnding: while a container is being ended, readiness is probed on, and liveness is
// not.
func TestProbesOfEnding(t *testing.T) {
	var ready, alive atomic.Bool
	var asked atomic.Int32
	o := memory.Options{
		Start: func(runtime.Container) memory.Behaviour { return memory.Behaviour{TermDelay: 20 * time.Second} },
		Exec: func(_ context.Context, _ runtime.Container, argv []string, _ runtime.Stdio) (int, error) {
			ok := ready.Load()
			if argv[0] == "alive" {
				asked.Add(1)
				ok = alive.Load()
			}
			if !ok {
				return 1, nil
			}
			return 0, nil
		},
	}
	probe := func(word string, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}},
			PeriodSeconds: 1, FailureThreshold: failures,
		}
	}
	for name, end := range map[string]func(w *world){
		"pod": func(w *world) { w.remove("a", 30) },
		"container": func(*world) {
			alive.Store(false)
			advance(3 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, o, func(w *world) {
				ready.Store(true)
				alive.Store(true)
				w.create(newPod("a", func(p *corev1.Pod) {
					c := &p.Spec.Containers[0]
					c.ReadinessProbe, c.LivenessProbe = probe("ready", 1), probe("alive", 3)
					c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 9}}}
				}))
				advance(2500 * time.Millisecond)
				end(w)
				before := asked.Load()
				w.wantEvent("a Normal Killing")
				advance(time.Second)
				if got := condition(w.pod("a"), corev1.PodReady); got != "True" {
					t.Errorf("Ready is %s", got)
				}
				ready.Store(false)
				advance(10 * time.Second)
				if got := condition(w.pod("a"), corev1.PodReady); got != "False ContainersNotReady" {
					t.Errorf("Ready is %s", got)
				}
				w.wantState("a", "main", "Running")
				if n := asked.Load() - before; n != 0 {
					t.Errorf("liveness was probed %d times", n)
				}
				w.wantEvent("a Warning Unhealthy Readiness probe failed")
			})
		})
	}
}

// TestHTTPHook: a hook needs an answer, whatever its status, and one that asks for HTTPS takes an
// answer by HTTP.
func TestHTTPHook(t *testing.T) {
	for name, tt := range map[string]struct {
		scheme corev1.URIScheme
		answer string
		state  string
		event  string
	}{
		"404":             {corev1.URISchemeHTTP, "HTTP/1.0 404 Not Found\r\n\r\nno", "Running", "a Normal Started"},
		"body is cut off": {corev1.URISchemeHTTP, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno", "Running", "a Normal Started"},
		"no answer":       {corev1.URISchemeHTTP, "", "Terminated Completed 0", "a Warning FailedPostStartHook HTTP lifecycle hook (/x) for Container \"main\" failed"},
		"plain HTTP": {
			corev1.URISchemeHTTPS, "HTTP/1.0 500 Internal Server Error\r\n\r\n", "Running",
			"a Warning LifecycleHTTPFallback request to HTTPS lifecycle hook 10.1.1.1:80 got HTTP response, retry with HTTP succeeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := memory.Options{Dial: func(context.Context, runtime.PodID, uint16, []netip.Addr) (net.Conn, error) {
				client, server := net.Pipe()
				go func() {
					request := make([]byte, 8192)
					n, _ := server.Read(request)
					switch text := string(request[:n]); {
					case !strings.HasPrefix(text, "GET "): // TLS
						_, _ = io.WriteString(server, "HTTP/1.0 400 Bad Request\r\n\r\n")
					case strings.Contains(text, "Authorization") == (tt.scheme == corev1.URISchemeHTTP):
						_, _ = io.WriteString(server, tt.answer)
					}
					_ = server.Close()
				}()
				return client, nil
			}}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					p.Spec.RestartPolicy = corev1.RestartPolicyNever
					p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
						Path: "/x", Port: intstr.FromInt32(80), Scheme: tt.scheme,
						HTTPHeaders: []corev1.HTTPHeader{{Name: "authorization", Value: "secret"}},
					}}}
				}))
				advance(time.Second)
				w.wantState("a", "main", tt.state)
				w.wantEvent(tt.event)
			})
		})
	}
}

func TestTerminationMessage(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		switch c.Name {
		case "file":
			_ = os.WriteFile(c.TerminationLog, []byte("last words"), 0o600)
		case "logs":
			_ = os.WriteFile(c.LogPath, []byte("2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:00.0Z stderr P tw\n2026-01-01T00:00:00.0Z stderr F o\nnonsense\n"), 0o600)
		}
		return memory.Behaviour{ExitAfter: time.Second, ExitCode: 1}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = []corev1.Container{container1("file"), container1("logs"), container1("none")}
			p.Spec.Containers[1].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}))
		advance(3 * time.Second)
		want := map[string]string{"file": "last words", "logs": "one\ntwo\n", "none": ""}
		for _, cs := range w.pod("a").Status.ContainerStatuses {
			if cs.State.Terminated == nil || cs.State.Terminated.Message != want[cs.Name] {
				t.Errorf("container %s: %+v, want message %q", cs.Name, cs.State.Terminated, want[cs.Name])
			}
		}
	})
}

// TestFailedProbeAndPolicy: a container that fails a probe runs again unless its policy is Never,
// whatever its exit code is, and the event promises no other restart.
func TestFailedProbeAndPolicy(t *testing.T) {
	never, always := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyAlways
	for _, tt := range []struct {
		name      string
		pod       corev1.RestartPolicy
		own       *corev1.ContainerRestartPolicy
		others    int
		startup   bool
		event     string
		restarted bool
	}{
		{"on failure", corev1.RestartPolicyOnFailure, nil, 0, false, "Container main failed liveness probe, will be restarted", true},
		{"on failure, startup", corev1.RestartPolicyOnFailure, nil, 0, true, "Container main failed startup probe, will be restarted", true},
		{"always", corev1.RestartPolicyAlways, nil, 0, false, "Container main failed liveness probe, will be restarted", true},
		{"never", corev1.RestartPolicyNever, nil, 0, false, "Stopping container main", false},
		{"never, others run", corev1.RestartPolicyNever, nil, 1, false, "Container main failed liveness probe", false},
		{"never of its own", corev1.RestartPolicyAlways, &never, 1, false, "Container main failed liveness probe", false},
		{"always of its own", corev1.RestartPolicyNever, &always, 0, false, "Container main failed liveness probe, will be restarted", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := memory.Options{Exec: func(context.Context, runtime.Container, []string, runtime.Stdio) (int, error) { return 1, nil }}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					p.Spec.RestartPolicy = tt.pod
					c := &p.Spec.Containers[0]
					c.RestartPolicy = tt.own
					c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}, InitialDelaySeconds: 2, FailureThreshold: 1}
					if tt.startup {
						c.StartupProbe, c.LivenessProbe = c.LivenessProbe, nil
					}
					for range tt.others {
						p.Spec.Containers = append(p.Spec.Containers, container1("other"))
					}
				}))
				advance(3 * time.Second)
				if n := w.saw("Killing"); n != 1 || w.saw("a Normal Killing "+tt.event) != 1 || w.saw("will be restarted") == 1 != tt.restarted {
					t.Errorf("%d ends, want one event %q of %q", n, tt.event, w.events)
				}
				if got := w.saw("Created container: main") == 2; got != tt.restarted {
					t.Errorf("restarted %v, want %v; it is %s", got, tt.restarted, state(w.pod("a"), "main"))
				}
				if phase := w.pod("a").Status.Phase; !tt.restarted && tt.others == 0 && phase != corev1.PodSucceeded || tt.restarted && phase != corev1.PodRunning {
					t.Errorf("phase %s", phase)
				}
			})
		})
	}
}

// TestProbeEvents: a probe that cannot be made is no failure, and a redirect to another host is a
// warning.
func TestProbeEvents(t *testing.T) {
	o := memory.Options{
		Exec: func(context.Context, runtime.Container, []string, runtime.Stdio) (int, error) {
			return 0, errors.New("no such file")
		},
		Dial: func(context.Context, runtime.PodID, uint16, []netip.Addr) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				_, _ = there.Read(make([]byte, 4096))
				_, _ = io.WriteString(there, "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.invalid/\r\nContent-Length: 4\r\n\r\naway")
			}()
			return here, nil
		},
	}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}, FailureThreshold: 1}
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}}
		}))
		advance(time.Minute)
		w.wantEvent("a Warning Unhealthy Liveness probe errored and resulted in unknown state: run probe command: no such file")
		w.wantEvent("a Warning ProbeWarning Readiness probe warning: Probe terminated redirects, Response body: away")
		if n := w.saw("probe failed") + w.saw("Killing"); n != 0 || condition(w.pod("a"), corev1.PodReady) != "True" {
			t.Errorf("a failure: %q", w.events)
		}
	})
}

// TestVariablesOfProbe: the command of a probe has the variables that the definition gives a value,
// one whose value is elsewhere is empty, and a hook's command stays as it is. So does workingDir.
func TestVariablesOfProbe(t *testing.T) {
	var mu sync.Mutex
	got := map[string]bool{}
	o := memory.Options{Exec: func(_ context.Context, c runtime.Container, argv []string, _ runtime.Stdio) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		got[c.WorkingDir+" "+strings.Join(argv, " ")] = true
		return 0, nil
	}}
	inWorld(t, o, func(w *world) {
		exec := func(word string) *corev1.ExecAction {
			return &corev1.ExecAction{Command: []string{word, "$(A)", "$(NAME)", "$(NONE)", "$$(A)"}}
		}
		w.create(newPod("a", func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.WorkingDir = "/$(A)"
			c.Env = []corev1.EnvVar{
				{Name: "A", Value: "a"},
				{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			}
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: exec("probe")}}
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: exec("hook")}}
		}))
		advance(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := map[string]bool{"/$(A) probe a  $(NONE) $(A)": true, "/$(A) hook $(A) $(NAME) $(NONE) $$(A)": true}
		if !maps.Equal(got, want) {
			t.Errorf("commands %v, want %v", got, want)
		}
	})
}

// TestTerminationMessageOfLongLine: the end of a log's last line is the message, however long the
// line is and wherever the log cuts it.
func TestTerminationMessageOfLongLine(t *testing.T) {
	for n, words := range map[int]string{7_000: "words ", crilog.MaxText + 5: "a b c ", 40_000: "words "} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			line := strings.Repeat(words, n/6+1)[:n]
			o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
				data := crilog.Line{Time: time.Now(), Stream: crilog.Stdout, Text: []byte("first")}.Append(nil)
				for rest := line; rest != ""; {
					text := rest[:min(len(rest), crilog.MaxText)]
					rest = rest[len(text):]
					data = crilog.Line{Time: time.Now(), Stream: crilog.Stdout, Partial: rest != "", Text: []byte(text)}.Append(data)
				}
				_ = os.WriteFile(c.LogPath, data, 0o600)
				return memory.Behaviour{ExitAfter: time.Second, ExitCode: 1}
			}}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					p.Spec.RestartPolicy = corev1.RestartPolicyNever
					p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
				}))
				advance(3 * time.Second)
				want := line[n-maxTerminationLog+1:] + "\n"
				if got := w.pod("a").Status.ContainerStatuses[0].State.Terminated.Message; got != want {
					t.Errorf("message of %d bytes %.40q, want the last %d", len(got), got, len(want))
				}
			})
		})
	}
}
