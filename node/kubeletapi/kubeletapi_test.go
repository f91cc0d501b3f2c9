package kubeletapi

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/process"
)

func TestNewChecks(t *testing.T) {
	ca := newAuthority(t)
	good := Config{NodeName: "n", Pods: &pods{}, Runtime: (*process.Runtime)(nil), TLS: ca.serverTLS(t)}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, edit := range map[string]func(*Config){
		"name": func(c *Config) { c.NodeName = "" }, "pods": func(c *Config) { c.Pods = nil }, "runtime": func(c *Config) { c.Runtime = nil },
		"tls": func(c *Config) { c.TLS = nil }, "ca": func(c *Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS13} },
	} {
		c := good
		edit(&c)
		if _, err := New(c); err == nil {
			t.Errorf("without %s: no error", name)
		}
	}
}

func TestWhoMayAsk(t *testing.T) {
	g := newRig(t)
	stranger := newAuthority(t)
	for _, tt := range []struct {
		name string
		cert *tls.Certificate
		code int
	}{
		{"api server", g.ca.client(t, clientName, clientGroup), 200},
		{"administrator", g.ca.client(t, "kubernetes-admin", "system:masters"), 200},
		{"nobody", nil, 401},
		{"node", g.ca.client(t, "system:node:node-1", "system:nodes"), 403},
		{"name without group", g.ca.client(t, clientName), 403},
		{"group without name", g.ca.client(t, "someone", clientGroup), 403},
	} {
		for _, path := range []string{"/healthz", "/pods", "/containerLogs/default/p/c", "/exec/default/p/c?command=x&output=1"} {
			code, body := g.do(http.MethodGet, path, tt.cert)
			if tt.code == 200 && path != "/healthz" && path != "/pods" {
				if code != 404 {
					t.Errorf("%s %s: %d %q", tt.name, path, code, body)
				}
				continue
			}
			if code != tt.code {
				t.Errorf("%s %s: %d %q, want %d", tt.name, path, code, body, tt.code)
			}
		}
	}
	conn, err := tls.Dial("tcp", g.addr, &tls.Config{
		RootCAs: g.ca.pool, ServerName: "node-1", MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{*stranger.client(t, clientName, clientGroup)},
	})
	if err == nil {
		// In TLS 1.3 the refusal of a client's certificate comes with the first read.
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("certificate of another authority: %v", err)
	}
}

func TestRoutes(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "hawser_test_total"}, func() float64 { return 3 }))
	g := newRig(t, func(c *Config) { c.Gatherer = reg })
	pod := g.addPod("p", "c")
	id := g.start(pod, "c", 0, idle)
	if code, body := g.get("/healthz"); code != 200 || body != "ok" {
		t.Errorf("healthz: %d %q", code, body)
	}
	if code, _ := g.get("/nothing"); code != 404 {
		t.Errorf("unknown path: %d", code)
	}
	for _, path := range []string{"/pods", "/runningpods/"} {
		code, body := g.get(path)
		var list corev1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || list.Kind != "PodList" || len(list.Items) != 1 ||
			list.Items[0].Name != "p" || list.Items[0].UID != pod.UID || list.Items[0].Spec.Containers[0].Name != "c" {
			t.Errorf("%s: %d %v %s", path, code, err, body)
		}
	}
	if code, body := g.get("/metrics"); code != 200 || !strings.Contains(body, "hawser_test_total 3") {
		t.Errorf("metrics: %d %q", code, body)
	}
	code, body := g.get("/metrics/resource")
	for _, want := range []string{
		`container_memory_working_set_bytes{container="c",namespace="default",pod="p"}`, `pod_cpu_usage_seconds_total{namespace="default",pod="p"}`,
		"node_cpu_usage_seconds_total", "resource_scrape_error 0",
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("metrics/resource: %d, no %s in %s", code, want, body)
		}
	}
	if err := g.rt.Stop(g.ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	if code, body := g.get("/runningpods/"); code != 200 || !strings.Contains(body, `"items":[]`) {
		t.Errorf("runningpods: %d %s", code, body)
	}
}

// TestMetricsOfNamesakes: a static pod and a pod of the API with its name do not keep the metrics of
// the others back.
func TestMetricsOfNamesakes(t *testing.T) {
	g := newRig(t)
	first, second, other := g.addPod("p", "c"), g.addPod("p", "c"), g.addPod("q", "c")
	second.UID = "uid-static"
	for _, p := range []*corev1.Pod{first, second, other} {
		g.start(p, "c", 0, idle)
	}
	code, body := g.get("/metrics/resource")
	for _, pod := range []string{"p", "q"} {
		if line := fmt.Sprintf(`pod_memory_working_set_bytes{namespace="default",pod=%q}`, pod); code != 200 || strings.Count(body, line) != 1 {
			t.Errorf("metrics/resource: %d, not one %s in %s", code, line, body)
		}
	}
}

func TestSummary(t *testing.T) {
	g := newRig(t)
	p, q := g.addPod("p", "a", "b"), g.addPod("q", "a")
	for pod, names := range map[*corev1.Pod][]string{p: {"a", "b"}, q: {"a"}} {
		for _, n := range names {
			g.start(pod, n, 0, idle)
		}
	}
	code, body := g.get("/stats/summary")
	var s stats.Summary
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 {
		t.Fatalf("%d %v %s", code, err, body)
	}
	n := s.Node
	if n.NodeName != "node-1" || *n.CPU.UsageCoreNanoSeconds == 0 || *n.Memory.WorkingSetBytes == 0 || *n.Fs.CapacityBytes == 0 || n.StartTime.After(time.Now()) {
		t.Errorf("node %+v", n)
	}
	if len(s.Pods) != 2 || s.Pods[0].PodRef.Name != "p" || len(s.Pods[0].Containers) != 2 || s.Pods[1].PodRef.UID != "uid-q" {
		t.Fatalf("pods %+v", s.Pods)
	}
	for _, pod := range s.Pods {
		var memory uint64
		for _, c := range pod.Containers {
			if c.StartTime.IsZero() || *c.Memory.WorkingSetBytes == 0 {
				t.Errorf("container %+v", c)
			}
			memory += *c.Memory.WorkingSetBytes
		}
		if *pod.Memory.WorkingSetBytes != memory || *pod.Memory.UsageBytes < memory || *pod.ProcessStats.ProcessCount < uint64(len(pod.Containers)) {
			t.Errorf("pod %+v", pod)
		}
	}
}

// TestMachineStats: what cannot be read, or cannot be, is left out.
func TestMachineStats(t *testing.T) {
	for _, tt := range []struct {
		stat, meminfo string
		cpu, free     uint64 // zero: left out
	}{
		{"cpu  1 2 3 400 500 6 7 8 0 0\ncpu0 1 2 3 400 500 6 7 8 0 0\n", "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   40 kB\n", 190_000_000, 40960},
		{"cpu a b c d e f g h\n", "MemTotal: x\nMemAvailable: y\n", 0, 0},
		{"cpu  1 0 0 0 0 0 0 0 0 0\n", "MemTotal:  100 kB\n", 10_000_000, 0},
		{"cpu  1 0 0 0 0 0 0 0 0 0\n", "MemTotal:  100 kB\nMemAvailable:  101 kB\n", 10_000_000, 0},
	} {
		proc := t.TempDir()
		for name, text := range map[string]string{"stat": tt.stat, "meminfo": tt.meminfo} {
			if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cpu, memory := machineStats(proc)
		if (cpu != nil) != (tt.cpu > 0) || cpu != nil && *cpu.UsageCoreNanoSeconds != tt.cpu {
			t.Errorf("%q: %+v", tt.stat, cpu)
		}
		if (memory != nil) != (tt.free > 0) || memory != nil && (*memory.AvailableBytes != tt.free || *memory.UsageBytes != 102400-tt.free) {
			t.Errorf("%q: %+v", tt.meminfo, memory)
		}
	}
	if cpu, memory := machineStats(filepath.Join(t.TempDir(), "none")); cpu != nil || memory != nil {
		t.Errorf("without proc: %+v, %+v", cpu, memory)
	}
}

func TestLoggedChoosesAttempt(t *testing.T) {
	st := func(attempt int, state runtime.State) runtime.ContainerStatus {
		return runtime.ContainerStatus{Attempt: attempt, State: state}
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	for _, tt := range []struct {
		name     string
		state    corev1.ContainerState
		list     []runtime.ContainerStatus
		previous bool
		want     int
		err      string
	}{
		{"running", corev1.ContainerState{}, []runtime.ContainerStatus{st(0, runtime.Running)}, false, 0, ""},
		{"second attempt", corev1.ContainerState{}, []runtime.ContainerStatus{st(1, runtime.Running), st(0, runtime.Exited)}, false, 1, ""},
		{"previous", corev1.ContainerState{}, []runtime.ContainerStatus{st(1, runtime.Running), st(0, runtime.Exited)}, true, 0, ""},
		{"crash loop", waiting("CrashLoopBackOff"), []runtime.ContainerStatus{st(3, runtime.Exited), st(2, runtime.Exited)}, false, 3, ""},
		{"crash loop previous", waiting("CrashLoopBackOff"), []runtime.ContainerStatus{st(3, runtime.Exited), st(2, runtime.Exited)}, true, 3, ""},
		{"no previous", corev1.ContainerState{}, []runtime.ContainerStatus{st(0, runtime.Running)}, true, 0, `previous terminated container "c" in pod "p" not found`},
		{"creating", waiting(""), nil, false, 0, `container "c" in pod "p" is waiting to start: ContainerCreating`},
		{"bad config", waiting("CreateContainerConfigError"), nil, false, 0, `container "c" in pod "p" is waiting to start: CreateContainerConfigError`},
		{"gone", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, nil, false, 0, `container "c" in pod "p" is terminated`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: tt.state}}}}
			pod.Name = "p"
			got, err := logged(pod, "c", tt.previous, tt.list)
			if (err != nil || tt.err != "") && fmt.Sprint(err) != tt.err {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if err == nil && got.Attempt != tt.want {
				t.Errorf("attempt %d, want %d", got.Attempt, tt.want)
			}
		})
	}
}

func TestParseLogQuery(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	parse := func(q string) (logQuery, error) {
		v, err := url.ParseQuery(q)
		if err != nil {
			t.Fatal(err)
		}
		return parseLogQuery(v, now)
	}
	o, err := parse("follow=true&previous=1&timestamps=true&tailLines=0&limitBytes=5&sinceSeconds=60&stream=Stderr")
	if err != nil || !o.follow || !o.previous || !o.Timestamps || *o.Tail != 0 || o.LimitBytes != 5 || !o.Since.Equal(now.Add(-time.Minute)) || o.Stream != "stderr" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = parse("sinceTime=2026-01-01T00:00:00%2B02:00&stream=All"); err != nil || !o.Since.Equal(time.Date(2025, 12, 31, 22, 0, 0, 0, time.UTC)) || o.Tail != nil {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []string{
		"follow=maybe", "tailLines=-1", "tailLines=x", "limitBytes=0", "sinceSeconds=0", "sinceTime=yesterday", "stream=console",
		"sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
	} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestLogErrors(t *testing.T) {
	g := newRig(t)
	pod := g.addPod("p", "c", "waits")
	g.wait(g.start(pod, "c", 0, "echo x"))
	for path, want := range map[string]string{
		"/containerLogs/default/no/c":               `404 pod "default/no" does not exist`,
		"/containerLogs/default/p/no":               `404 container "no" not found in pod "p"`,
		"/containerLogs/default/p/waits":            `400 container "waits" in pod "p" is waiting to start: ContainerCreating`,
		"/containerLogs/default/p/c?previous=true":  `400 previous terminated container "c" in pod "p" not found`,
		"/containerLogs/default/p/c?tailLines=-1":   `422 invalid request: tailLines: "-1" is not a number of 0 or more`,
		"/containerLogs/default/p/c":                "200 x\n",
		"/containerLogs/default/p/c?timestamps=1":   "200 20",
		"/containerLogs/default/p/c?limitBytes=1":   "200 x",
		"/containerLogs/default/p/c?follow=true":    "200 x\n",
		"/containerLogs/default/p/c?sinceSeconds=1": "200 ",
	} {
		code, body := g.get(path)
		if got := fmt.Sprintf("%d %s", code, body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestLogOfOneContainer: an answer names its container, and a request that names it gets its log
// also once the pod has started another, which has a log of its own. No other container is found.
func TestLogOfOneContainer(t *testing.T) {
	g := newRig(t)
	pod, other := g.addPod("p", "c", "d"), g.addPod("q", "c")
	first := g.start(pod, "c", 0, "echo fatal")
	g.wait(first)
	const path = "/containerLogs/default/p/c?follow=true"
	if id := g.header(path).Get("Hawser-Container-Id"); id != first {
		t.Errorf("the answer is of %q, want %q", id, first)
	}
	second := g.start(pod, "c", 1, idle)
	sibling, stranger := g.start(pod, "d", 0, "echo d"), g.start(other, "c", 0, "echo q")
	if id := g.header(path + "&containerID=" + first).Get("Hawser-Container-Id"); id != first {
		t.Errorf("the second answer is of %q, want %q", id, first)
	}
	for of, want := range map[string]string{
		path + "&containerID=" + first:                                   "200 fatal\n",
		path + "&containerID=" + first + "&previous=true":                "200 fatal\n",
		path + "&containerID=" + sibling:                                 "410 ",
		path + "&containerID=" + stranger:                                "410 ",
		path + "&containerID=none":                                       "410 ",
		"/containerLogs/default/p/no?containerID=" + first:               `404 container "no" not found in pod "p"`,
		path + "&limitBytes=5&containerID=" + second:                     "200 ready",
		"/containerLogs/default/q/c?follow=true&containerID=" + stranger: "200 q\n",
		"/containerLogs/default/q/c?follow=true&containerID=" + first:    "410 ",
		path + "&limitBytes=5&containerID=":                              "200 ready",
	} {
		code, body := g.get(of)
		if got := fmt.Sprintf("%d %s", code, body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", of, got, want)
		}
	}
	if err := os.Remove(filepath.Join(g.logs, "p-c-0.log")); err != nil {
		t.Fatal(err)
	}
	if code, body := g.get(path + "&containerID=" + first); code != http.StatusGone {
		t.Errorf("without its log: %d %s", code, body)
	}
}

// A follower sees lines as they come, and the end when the container has ended.
func TestFollow(t *testing.T) {
	g := newRig(t)
	pod := g.addPod("p", "c")
	g.start(pod, "c", 0, "read x; echo $x; read y; echo $y", func(c *runtime.Container) { c.Stdin = true })
	out := newScreen()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, body := g.stream("/containerLogs/default/p/c?follow=true", out)
		if body != nil {
			t.Error(body)
		}
	}()
	list, err := g.rt.Containers(g.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		go func() { _ = g.rt.Attach(g.ctx, list[0].ID, runtime.Stdio{In: strings.NewReader(word + "\n")}) }()
		out.wait(g, word+"\n")
	}
	<-done
	if out.String() != "one\ntwo\n" {
		t.Errorf("got %q", out.String())
	}
}

// The server ends when it is told to, whoever is still connected.
func TestServeEnds(t *testing.T) {
	g := newRig(t)
	pod := g.addPod("p", "c")
	g.start(pod, "c", 0, idle)
	out := newScreen()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := g.stream("/containerLogs/default/p/c?follow=true", out); err == nil {
			t.Error("a log that was cut off ended as if it were complete")
		}
	}()
	idleConn, err := (&net.Dialer{}).DialContext(g.ctx, "tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idleConn.Close()
	out.wait(g, "ready\n")
	g.stop()
	<-done
}

// TestDeclares: which ports a pod names itself.
func TestDeclares(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 1, Protocol: corev1.ProtocolTCP}}}},
		Containers:     []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 2}, {ContainerPort: 3, Protocol: corev1.ProtocolUDP}}}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Ports: []corev1.ContainerPort{{ContainerPort: 4}},
		}}},
	}}
	for port, want := range map[int32]bool{1: true, 2: true, 3: false, 4: true, 5: false} {
		if got := declares(pod, port); got != want {
			t.Errorf("port %d: %v, want %v", port, got, want)
		}
	}
}
