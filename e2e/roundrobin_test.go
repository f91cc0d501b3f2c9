// Several servers behind one address of a TCP load balancer that takes them in turn.

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
)

// A roundRobin leads each connection to the next server.
type roundRobin struct {
	net.Listener
	to []*cluster

	mu    sync.Mutex // guards the following
	conns []net.Conn
	next  int
}

// newRoundRobin serves until the test ends.
func newRoundRobin(t *testing.T, to ...*cluster) *roundRobin {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	r := &roundRobin{Listener: l, to: to}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { r.carry(t.Context(), c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.cut()
		work.Wait()
	})
	return r
}

// carry connects c to the next server, until either ends.
func (r *roundRobin) carry(ctx context.Context, c net.Conn) {
	defer c.Close()
	r.mu.Lock()
	server := r.to[r.next%len(r.to)]
	r.next++
	r.mu.Unlock()
	s, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.port)))
	if err != nil {
		return
	}
	defer s.Close()
	r.mu.Lock()
	r.conns = append(r.conns, c, s)
	r.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { relay(s, c) })
	wg.Go(func() { relay(c, s) })
	wg.Wait()
}

// cut ends all connections.
func (r *roundRobin) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// TestRoundRobin: a command outlives lost connections, though each new one reaches another server
// first.
func TestRoundRobin(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	st := startStore(t)
	a := startUp(t, st.upArgs("--nodes=0", "--server-arg=--server-id=a")...)
	b := a.another(t, "b", st)
	balancer := newRoundRobin(t, a, b)
	_, port, err := net.SplitHostPort(balancer.Addr().String())
	must(t, err)
	address := &cluster{}
	address.port, err = strconv.Atoi(port)
	must(t, err)
	a.agent(t, "roamer", []*cluster{address}, "--server-count=1")
	a.waitNode(t, "roamer")
	a.podWith(t, "counter", "", `,"nodeName":"roamer"`, "sleep", "100000")
	const lines = 60
	cmd := a.startKubectl(t, "exec", "counter", "--", "sh", "-c",
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo number $i; sleep 0.1; done; exit 7", lines))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	sc := bufio.NewScanner(out)
	for i := 1; i <= lines; i++ {
		if want := fmt.Sprintf("number %d", i); !sc.Scan() || sc.Text() != want {
			t.Fatalf("got %q (%v), want %q", sc.Text(), sc.Err(), want)
		}
		if i%15 == 5 {
			balancer.cut()
		}
	}
	_ = cmd.Wait() // its exit code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d", code)
	}
}
