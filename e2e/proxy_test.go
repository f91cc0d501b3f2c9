// Nodes that reach the server through an HTTP proxy only, which is no better than
// most.

package e2e

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// proxyUser is who may use the proxy.
const proxyUser = "node:p%40ss" // as in a URL; the password is p@ss

// idleFor is how long a connection through the proxy may be idle at first.
const idleFor = 1500 * time.Millisecond

// A node behind a proxy that drops what is idle is as good as any, and when the
// proxy itself breaks down, what is open goes on through whichever comes next.
func TestProxy(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("no proxy is asked for what is on this machine")
	}
	t.Parallel()
	c := startUp(t, "--nodes", "1", "--netns")
	l := c.lab(t)
	node, err := l.Node("node-1")
	must(t, err)
	p := &proxy{}
	p.idle.Store(int64(idleFor))
	p.open(t, net.JoinHostPort(l.HostIP(), "0"))
	t.Cleanup(p.breakDown)

	mark := c.mark(t, "node-1")
	args := c.kill(t, "node-1")
	via := node.Command(t.Context(), "env", append([]string{"HTTPS_PROXY=http://" + proxyUser + "@" + p.addr}, args...)...)
	run(t, via.Args, filepath.Join(c.dir, "nodes", "node-1", "agent"))
	mark.until(t, patience, "msg=connected", "transport=qmux")
	c.waitNode(t, "node-1")
	c.settle(t)

	h := c.watch(t)
	const parks = `hawser_hub_link_parks_total{transport="qmux"}`
	from := c.metric(t, parks)
	eventually(t, "the proxy drops what is idle", func() error {
		if n := c.metric(t, parks) - from; n < 3 {
			return fmt.Errorf("%v times", n)
		}
		return nil
	})
	loads := startLoads(t, c)
	loads.goOn(t, "through a proxy that drops what is idle")
	p.idle.Store(0)
	for i := range 3 {
		p.cut()
		loads.goOn(t, fmt.Sprintf("after cut %d", i+1))
	}
	mark = c.mark(t, "node-1")
	p.breakDown()
	mark.until(t, patience, agentParked)
	p.open(t, p.addr)
	loads.goOn(t, "with the next proxy")
	loads.finish(t)
	for _, v := range h.versions("node-1") {
		if !is(corev1.NodeReady, corev1.ConditionTrue)(v) || shunned(v) {
			t.Fatalf("node-1 is %v, %v", condition(v, corev1.NodeReady), v.Spec.Taints)
		}
	}
	if p.refused.Load() != 0 || p.joined.Load() < 7 {
		t.Errorf("the proxy has made %d connections and refused %d", p.joined.Load(), p.refused.Load())
	}
}

// A proxy knows CONNECT and one user.
type proxy struct {
	direct          string // where everybody is led to without being asked; empty: nowhere
	addr            string
	idle            atomic.Int64 // how long a connection may be idle; 0: for ever
	joined, refused atomic.Int64

	mu       sync.Mutex // guards the following
	listener net.Listener
	conns    map[net.Conn]bool
}

// open begins to listen at addr, which breakDown ends.
func (p *proxy) open(t *testing.T, addr string) {
	t.Helper()
	var l net.Listener
	eventually(t, "the proxy listens", func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	p.addr = l.Addr().String()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.conns = l, map[net.Conn]bool{}
	go func() { // ends with l
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c) // ends with c
		}
	}()
}

// breakDown ends all, as if the proxy's machine had lost its power and come back.
func (p *proxy) breakDown() {
	p.mu.Lock()
	_ = p.listener.Close()
	p.mu.Unlock()
	p.cut()
}

// cut resets all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	clear(p.conns)
}

// keep has cut reset a connection.
func (p *proxy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	p.keep(c)
	in := bufio.NewReader(c)
	if p.direct != "" {
		far, err := net.Dial("tcp", p.direct)
		if err != nil {
			return
		}
		defer far.Close()
		p.keep(far)
		p.join(c, in, far)
		return
	}
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("node:p@ss"))
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != want {
		p.refused.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return
	}
	far, err := net.Dial("tcp", r.Host)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer far.Close()
	p.keep(far)
	p.joined.Add(1)
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	p.join(c, in, far)
}

// join passes bytes on, both ways, until one end has closed or neither has said
// anything for too long.
func (p *proxy) join(near net.Conn, in io.Reader, far net.Conn) {
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	pass := func(to io.Writer, from io.Reader, limit net.Conn) {
		defer near.Close()
		defer far.Close()
		buf := make([]byte, 32<<10)
		for {
			_ = limit.SetReadDeadline(time.Now().Add(idleFor / 4))
			n, err := from.Read(buf)
			if n > 0 {
				last.Store(time.Now().UnixNano())
				if _, werr := to.Write(buf[:n]); werr != nil {
					return
				}
			}
			var slow net.Error
			idle := time.Duration(p.idle.Load())
			switch {
			case err == nil:
			case !errors.As(err, &slow) || !slow.Timeout(), idle > 0 && time.Since(time.Unix(0, last.Load())) > idle:
				return
			}
		}
	}
	var ways sync.WaitGroup
	ways.Go(func() { pass(far, in, near) })
	ways.Go(func() { pass(near, far, far) })
	ways.Wait()
}
