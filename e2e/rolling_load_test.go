// The load of rolling restarts: requests and streams of bounded length, through each
// server, and what became of them.

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/hawser-project/hawser/e2e/await"
)

// A stream has streamLines lines, one each lineEvery: it lasts longer than a server that is
// told nothing gives it.
const (
	streamLines = 60
	lineEvery   = 100 * time.Millisecond
)

// rolling is a load, and what it has come to.
type rolling struct {
	*cluster
	backends  []*backend
	balancers []*balancer
	nodes     []*rollingNode
	streams   []rollingStream

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex // guards the following
	done     map[string]int
	sentAway int // requests that a server told to try again
	failures []string
}

// A rollingNode has a pod of its name, and one that echoes.
type rollingNode struct {
	name      string
	port      int          // of the echo
	replacing sync.RWMutex // read while a stream to it is open, written until its agent has begun to leave
}

func (r *rolling) addNode(t *testing.T, name string) {
	t.Helper()
	n := &rollingNode{name: name, port: await.FreePort(t)}
	r.nodes = append(r.nodes, n)
	r.waitNode(t, name)
	spec := `,"nodeName":"` + name + `"`
	r.podWith(t, name, "", spec, "sh", "-c", "i=0; while :; do echo number $i; i=$((i+1)); sleep 0.1; done")
	r.roleInPodWith(t, "echo-"+name, "", spec, fmt.Sprintf("echo-server 127.0.0.1:%d", n.port))
}

// start begins the load: of each kind a client for each server.
func (r *rolling) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r.stop, r.done = stop, map[string]int{}
	t.Cleanup(func() { stop(); r.wg.Wait() })
	for i := range r.backends {
		for kind, every := range map[string]time.Duration{"h2": 300 * time.Millisecond, "http1": 400 * time.Millisecond, "idle": 1500 * time.Millisecond} {
			w := r.worker(t, i, kind)
			if kind == "http1" {
				w.config.NextProtos = []string{"http/1.1"}
			}
			var err error
			w.client, err = rest.HTTPClientFor(w.config)
			must(t, err)
			name := fmt.Sprintf("%s-%d", kind, i)
			_, err = r.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			must(t, err)
			w.repeat(ctx, every, func(ctx context.Context, n int) error { return w.readWrite(ctx, name, n) })
		}
		for kind, f := range map[string]func(*rollingWorker, context.Context, *rollingNode) error{
			"logs": (*rollingWorker).logs, "exec": (*rollingWorker).exec, "port-forward": (*rollingWorker).forward,
		} {
			w := r.worker(t, i, kind)
			w.config.QPS = -1
			var err error
			w.client, err = rest.HTTPClientFor(w.config)
			must(t, err)
			s := rollingStream{w, f}
			r.streams = append(r.streams, s)
			w.repeat(ctx, lineEvery, func(ctx context.Context, n int) error {
				node := r.nodes[(n+i)%len(r.nodes)]
				if !node.replacing.TryRLock() {
					return nil
				}
				defer node.replacing.RUnlock()
				return s.to(ctx, node)
			})
		}
	}
}

// A rollingStream is a client that has one stream after the other.
type rollingStream struct {
	*rollingWorker
	f func(*rollingWorker, context.Context, *rollingNode) error
}

func (s rollingStream) to(ctx context.Context, n *rollingNode) error {
	if err := s.f(s.rollingWorker, ctx, n); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

// each has each client have one more stream, to n. Wg is done when they are over.
func (r *rolling) each(wg *sync.WaitGroup, n *rollingNode) {
	for _, s := range r.streams {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			began := time.Now()
			s.note(began, s.to(ctx, n))
		})
	}
}

// A rollingWorker is a client, whose balancer prefers one of the servers.
type rollingWorker struct {
	*rolling
	kind   string
	config *rest.Config
	client *http.Client
}

func (r *rolling) worker(t *testing.T, first int, kind string) *rollingWorker {
	t.Helper()
	b, url := balance(t, r.backends, first)
	r.balancers = append(r.balancers, b)
	c := rest.CopyConfig(r.rest)
	c.Host = url
	return &rollingWorker{rolling: r, kind: kind, config: c}
}

// repeat does f again and again until ctx is done; what is under way then is finished.
func (w *rollingWorker) repeat(ctx context.Context, every time.Duration, f func(context.Context, int) error) {
	w.wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			began := time.Now()
			one, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			err := f(one, n)
			cancel()
			w.note(began, err)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
}

func (w *rollingWorker) note(began time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[w.kind]++
	if err != nil {
		w.failures = append(w.failures, fmt.Sprintf("%s through %s, from %s to %s: %v", w.kind, w.config.Host, began.Format("15:04:05.000"), time.Now().Format("15:04:05.000"), err))
	}
}

// readWrite writes n into a ConfigMap and wants to read it back.
func (w *rollingWorker) readWrite(ctx context.Context, name string, n int) error {
	path, value := "/api/v1/namespaces/default/configmaps/"+name, strconv.Itoa(n)
	m := corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"n": value}}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := w.ask(ctx, http.MethodPut, path, body); err != nil {
		return err
	}
	got, err := w.ask(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(got, &m); err != nil || m.Data["n"] != value {
		return fmt.Errorf("wrote %s and read %q: %w", value, m.Data["n"], err)
	}
	return nil
}

func (w *rollingWorker) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	resp, err := w.open(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// open makes a request. It is made again, as it was, only if a server says that.
func (w *rollingWorker) open(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	for range len(w.backends) {
		req, err := http.NewRequestWithContext(ctx, method, w.config.Host+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := w.client.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusOK {
			return resp, nil
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
			return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		}
		w.mu.Lock()
		w.sentAway++
		w.mu.Unlock()
	}
	return nil, fmt.Errorf("%s %s: every server said to try again", method, path)
}

// logs follows a log for some lines, none of which may be missing.
func (w *rollingWorker) logs(ctx context.Context, n *rollingNode) error {
	resp, err := w.open(ctx, http.MethodGet, "/api/v1/namespaces/default/pods/"+n.name+"/log?follow=true&tailLines=1", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	in, next := bufio.NewScanner(resp.Body), -1
	for range streamLines {
		if !in.Scan() {
			return fmt.Errorf("the log ended before number %d: %w", next, errors.Join(in.Err(), io.ErrUnexpectedEOF))
		}
		number, err := strconv.Atoi(strings.TrimPrefix(in.Text(), "number "))
		if err != nil || next >= 0 && number != next {
			return fmt.Errorf("%q in place of number %d", in.Text(), next)
		}
		next = number + 1
	}
	return nil
}

// exec runs a command that writes some lines.
func (w *rollingWorker) exec(ctx context.Context, n *rollingNode) error {
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep %v; done", streamLines, lineEvery.Seconds())
	q := url.Values{"command": {"sh", "-c", script}, "stdout": {"true"}, "container": {"main"}}
	e, err := remotecommand.NewWebSocketExecutor(w.config, http.MethodGet, w.config.Host+"/api/v1/namespaces/default/pods/"+n.name+"/exec?"+q.Encode())
	if err != nil {
		return err
	}
	var out, want bytes.Buffer
	for i := range streamLines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out}); err != nil {
		return fmt.Errorf("after %q: %w", out.String(), err)
	}
	if out.String() != want.String() {
		return fmt.Errorf("the command wrote %q", out.String())
	}
	return nil
}

// forward exchanges some lines with an echo through a port-forward.
func (w *rollingWorker) forward(ctx context.Context, n *rollingNode) error {
	u, err := url.Parse(w.config.Host + "/api/v1/namespaces/default/pods/echo-" + n.name + "/portforward")
	if err != nil {
		return err
	}
	d, err := portforward.NewSPDYOverWebsocketDialer(u, w.config)
	if err != nil {
		return err
	}
	conn, _, err := d.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	h := http.Header{}
	h.Set(corev1.StreamType, corev1.StreamTypeError)
	h.Set(corev1.PortHeader, strconv.Itoa(n.port))
	h.Set(corev1.PortForwardRequestIDHeader, "0")
	errs, err := conn.CreateStream(h)
	if err != nil {
		return err
	}
	_ = errs.Close() // nothing is written to it
	h.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(h)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	tick, back := time.NewTicker(lineEvery), bufio.NewReader(data)
	defer tick.Stop()
	for i := range streamLines {
		line := fmt.Sprintf("line %d\n", i)
		if _, err := io.WriteString(data, line); err != nil {
			return fmt.Errorf("write line %d: %w", i, err)
		}
		if got, err := back.ReadString('\n'); err != nil || got != line {
			text, _ := io.ReadAll(io.LimitReader(errs, 1<<10))
			return fmt.Errorf("line %d came back as %q: %w %s", i, got, err, text)
		}
		<-tick.C
	}
	return nil
}

// pass lets time pass.
func (r *rolling) pass(d time.Duration) { <-time.After(d) }

// check fails the test if anything has failed; after says when.
func (r *rolling) check(t *testing.T, after string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("after %s was restarted: %s, %d failed", after, r.countsLocked(), len(r.failures))
	if len(r.failures) > 0 {
		t.Errorf("after %s was restarted:\n%s", after, strings.Join(r.failures, "\n"))
		r.failures = nil
	}
}

func (r *rolling) countsLocked() string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(r.done)) {
		all = append(all, fmt.Sprintf("%s %d", kind, r.done[kind]))
	}
	return strings.Join(all, ", ")
}

// finish ends the load, and wants each kind to have done something, and each server to have
// sent clients to others.
func (r *rolling) finish(t *testing.T) {
	t.Helper()
	r.stop()
	r.wg.Wait()
	r.check(t, "everything")
	others := int64(0)
	for _, b := range r.balancers {
		others += b.others.Load()
	}
	t.Logf("%d connections went to another server, %d requests were told to try again", others, r.sentAway)
	if others == 0 {
		t.Error("no client has ever used another server")
	}
	for _, kind := range []string{"h2", "http1", "idle", "logs", "exec", "port-forward"} {
		if r.done[kind] < len(r.backends)*len(r.nodes) {
			t.Errorf("%s: %d, which is no load", kind, r.done[kind])
		}
	}
}
