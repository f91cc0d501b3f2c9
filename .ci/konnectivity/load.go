// Loads: what is measured of one system at a time.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// warmUp is how long bulk moves before it is measured.
const warmUp = 300 * time.Millisecond

// maxDials bounds the dials of a measurement: each leaves a port that cannot be used again
// for a while.
const maxDials = 3000

// A load is measured for a while.
type load struct {
	name    string
	figures []string // in the order of the table
	measure func(ctx context.Context, s *system, t *target, d time.Duration) (map[string]float64, error)
}

var loads = []load{
	{"dial", []string{"dial_p50_us", "dial_p99_us", "dial_cpu_us"}, dials},
	bulk("down_1", sources, 1), bulk("up_1", discards, 1),
	bulk("down_16", sources, 16), bulk("up_16", discards, 16),
}

// pick returns the loads of these names; all if there are no names.
func pick(names []string) ([]load, error) {
	if len(names) == 0 {
		return loads, nil
	}
	var picked []load
	for _, name := range names {
		i := slices.IndexFunc(loads, func(l load) bool { return l.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no load %q", name)
		}
		picked = append(picked, loads[i])
	}
	return picked, nil
}

// open dials as kube-apiserver does, with a gRPC connection for each of its own, and says
// what the target is to do.
func (s *system) open(ctx context.Context, t *target, what byte) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tunnel, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, context.WithoutCancel(ctx), "unix:"+s.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	c, err := tunnel.DialContext(ctx, "tcp", net.JoinHostPort(s.host, t.port))
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{what}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ready waits until a dial succeeds.
func (s *system) ready(ctx context.Context, t *target) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		c, err := s.open(ctx, t, echoes)
		if err == nil {
			_ = c.Close()
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// dials are connections one by one, to the first byte of the answer.
func dials(ctx context.Context, s *system, t *target, d time.Duration) (map[string]float64, error) {
	var took []float64
	cpu, err := s.cpu()
	for end := time.Now().Add(d); err == nil && time.Now().Before(end) && len(took) < maxDials; {
		began := time.Now()
		var c net.Conn
		if c, err = s.open(ctx, t, echoes); err != nil {
			break
		}
		if _, err = c.Write([]byte{'x'}); err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		took = append(took, float64(time.Since(began).Nanoseconds())/1e3)
		_ = c.Close() // konnectivity answers, or does not
	}
	if err != nil {
		return nil, err
	}
	after, err := s.cpu()
	slices.Sort(took)
	return map[string]float64{
		"dial_p50_us": took[len(took)/2],
		"dial_p99_us": took[len(took)*99/100],
		"dial_cpu_us": float64((after - cpu).Microseconds()) / float64(len(took)),
	}, err
}

// bulk is what so many connections move.
func bulk(name string, what byte, count int) load {
	figures := []string{name + "_MBps", name + "_s_per_GB", name + "_client_s_per_GB"}
	return load{name, figures, func(ctx context.Context, s *system, t *target, d time.Duration) (map[string]float64, error) {
		var received atomic.Int64 // by clients
		var stop atomic.Bool
		var moving sync.WaitGroup
		t.sending.Store(true)
		defer moving.Wait()
		defer stop.Store(true)
		defer t.sending.Store(false)
		for range count {
			c, err := s.open(ctx, t, what)
			if err != nil {
				return nil, err
			}
			moving.Go(func() {
				defer c.Close()
				if what == sources {
					read(c, &received)
					return
				}
				for b := make([]byte, piece); !stop.Load(); {
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			})
		}
		moved := &received
		if what == discards {
			moved = &t.received
		}
		return during(ctx, s, name, moved, d)
	}}
}

// read reads until the end.
func read(c net.Conn, received *atomic.Int64) {
	for b := make([]byte, 64<<10); ; {
		n, err := c.Read(b)
		if received.Add(int64(n)); err != nil {
			return
		}
	}
}

// during is what is moved and used in d.
func during(ctx context.Context, s *system, name string, moved *atomic.Int64, d time.Duration) (map[string]float64, error) {
	if err := pause(ctx, warmUp); err != nil {
		return nil, err
	}
	began, bytes, own := time.Now(), moved.Load(), ownCPU()
	cpu, err := s.cpu()
	if err == nil {
		err = pause(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	took, gb := time.Since(began).Seconds(), float64(moved.Load()-bytes)/1e9
	after, err := s.cpu()
	if err == nil && gb == 0 {
		err = fmt.Errorf("%s: nothing was moved in %s", name, d)
	}
	return map[string]float64{
		name + "_MBps":            gb * 1e3 / took,
		name + "_s_per_GB":        (after - cpu).Seconds() / gb,
		name + "_client_s_per_GB": (ownCPU() - own).Seconds() / gb,
	}, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cpu is what the system's processes have used so far.
func (s *system) cpu() (time.Duration, error) {
	var seconds float64
	for _, pid := range s.pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return 0, fmt.Errorf("a process of %s: %w", s.name, err)
		}
		stat, err := p.Stat()
		if err != nil {
			return 0, fmt.Errorf("a process of %s: %w", s.name, err)
		}
		seconds += stat.CPUTime()
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// ownCPU is what this process has used.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // it has no other reason than a bad argument
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
