// What stands between clients and several servers: it sends a connection to another server
// only when its own says that it is not ready, or takes it not.

package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// readinessEvery is how often servers are asked whether they are ready.
const readinessEvery = 100 * time.Millisecond

// A backend is a server as load balancers see it.
type backend struct {
	addr  string
	ready atomic.Bool
}

// watchBackends asks the servers' /readyz until the test ends, and returns once all have
// said yes.
func watchBackends(t *testing.T, servers []*cluster) []*backend {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	var all []*backend
	for _, s := range servers {
		b := &backend{addr: fmt.Sprintf("127.0.0.1:%d", s.port)}
		all = append(all, b)
		client := &http.Client{
			Timeout:   2 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		}
		wg.Go(func() {
			tick := time.NewTicker(readinessEvery)
			defer tick.Stop()
			for {
				b.ready.Store(b.ask(ctx, client))
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	for _, b := range all {
		eventually(t, b.addr+" is ready", func() error {
			if !b.ready.Load() {
				return errNotYet
			}
			return nil
		})
	}
	return all
}

func (b *backend) ask(ctx context.Context, client *http.Client) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+b.addr+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// A balancer is a TCP load balancer whose connections go to the first of its servers, as
// long as that is ready.
type balancer struct {
	net.Listener
	backends []*backend // the preferred first
	others   atomic.Int64
}

// balance starts one that prefers the server of an index, and returns its URL.
func balance(t *testing.T, all []*backend, first int) (*balancer, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b := &balancer{Listener: l}
	for i := range all {
		b.backends = append(b.backends, all[(first+i)%len(all)])
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { b.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return b, "https://" + l.Addr().String()
}

// serve joins c to a server that answers its first bytes.
func (b *balancer) serve(c net.Conn) {
	defer c.Close()
	hello := make([]byte, 16<<10)
	n, err := c.Read(hello)
	if err != nil {
		return
	}
	up, answer, err := b.reach(hello[:n])
	if err != nil {
		_ = tunnel.Abort(c)
		return
	}
	defer up.Close()
	if _, err := c.Write(answer); err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { relay(up, c) })
	wg.Go(func() { relay(c, up) })
	wg.Wait()
}

// relay copies until the end, and passes on how it ended.
func relay(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = tunnel.Abort(to)
		return
	}
	_ = tunnel.CloseWrite(to)
}

// reach connects to the first server that is ready and answers.
func (b *balancer) reach(hello []byte) (net.Conn, []byte, error) {
	var errs []error
	for _, ready := range []bool{true, false} { // those that are not, if there is no other
		for i, s := range b.backends {
			if s.ready.Load() != ready {
				continue
			}
			up, answer, err := s.reach(hello)
			if err == nil {
				if i > 0 {
					b.others.Add(1)
				}
				return up, answer, nil
			}
			errs = append(errs, err)
		}
	}
	return nil, nil, errors.Join(errs...)
}

func (b *backend) reach(hello []byte) (net.Conn, []byte, error) {
	up, err := net.DialTimeout("tcp", b.addr, 5*time.Second)
	if err != nil {
		return nil, nil, err
	}
	answer := make([]byte, 16<<10)
	n, err := 0, up.SetReadDeadline(time.Now().Add(15*time.Second))
	if err == nil {
		_, err = up.Write(hello)
	}
	if err == nil {
		n, err = up.Read(answer)
	}
	if err == nil {
		err = up.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = up.Close()
		return nil, nil, err
	}
	return up, answer[:n], nil
}
