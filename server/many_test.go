package server

// The cost of many minimal agents.

import (
	"crypto/tls"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// manyAgents connects n agents, which stay until stop is called.
func manyAgents(b *testing.B, x *tunneltest.Exchange, n int) (names []string) {
	b.Helper()
	for i := range n {
		name := fmt.Sprintf("node-%d", i)
		s, err := x.Dial(b.Context(), "hub", tunnel.Options{TLS: &tls.Config{ServerName: name}})
		for ; err != nil && i == 0 && b.Context().Err() == nil; runtime.Gosched() { // the hub does not listen yet
			s, err = x.Dial(b.Context(), "hub", tunnel.Options{TLS: &tls.Config{ServerName: name}})
		}
		if err != nil {
			b.Fatal(err)
		}
		control, _, err := tunnel.Greet(b.Context(), s, one(name))
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			_ = control.Run(b.Context(), nil)
			_ = s.Close()
		}()
		names = append(names, name)
	}
	return names
}

// cpuTime is the CPU time of the process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
