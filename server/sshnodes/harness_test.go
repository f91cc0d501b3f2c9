// The harness of the fleet's tests: a network in memory with sshds of nodes.

package sshnodes

import (
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/auth/hostkeys/hostkeystest"
	"github.com/hawser-project/hawser/tunnel/overssh"
	"github.com/hawser-project/hawser/tunnel/overssh/oversshtest"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lab is a network, and the host key of the sshds on it.
type lab struct {
	net     tunneltest.Network
	keyFile string // of the user
	signer  ssh.Signer
	host    ssh.PublicKey
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{keyFile: filepath.Join(t.TempDir(), "id")}
	l.signer = hostkeystest.WriteKey(t, l.keyFile)
	l.host = l.signer.PublicKey()
	return l
}

// config is that of a fleet for the lab's user.
func (l *lab) config() Config {
	return Config{SSH: overssh.Config{User: "tester", KeyFile: l.keyFile, HostKeys: oversshtest.Pinned(l.host), Dial: l.net.Dial}}
}

// serve runs an sshd at addr, which serves channels by answer, until the test ends or until
// stop.
func (l *lab) serve(t *testing.T, addr string, answer func(ssh.NewChannel)) (stop func()) {
	t.Helper()
	ln, err := l.net.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	conf := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return &ssh.Permissions{}, nil
	}}
	conf.AddHostKey(l.signer)
	var (
		mu    sync.Mutex
		conns []net.Conn // guarded by mu
		wg    sync.WaitGroup
	)
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				conn, channels, requests, err := ssh.NewServerConn(c, conf)
				if err != nil {
					_ = c.Close()
					return
				}
				wg.Go(func() { ssh.DiscardRequests(requests) })
				for ch := range channels {
					wg.Go(func() { answer(ch) })
				}
				_ = conn.Close()
			})
		}
	})
	stop = sync.OnceFunc(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// hello accepts a channel, sends hello, and waits until the channel is closed.
func hello(nc ssh.NewChannel) {
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	_, _ = ch.Write([]byte("hello"))
	ssh.DiscardRequests(requests)
	_ = ch.Close()
}

// gathered are the counters and gauges, without their labels.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return got
}
