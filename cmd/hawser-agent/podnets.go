// The port of --apiserver-listen in the network namespaces of pods, --apiserver-listen-in: for pods
// without the machine's network. It is on the loopback of each pod, and nowhere else.

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// podNetsPeriod is how often the directory is read.
const podNetsPeriod = time.Second

// podNets has a port in each network namespace that a directory has a file of, as runtimes keep
// them, but for the agent's own.
type podNets struct {
	dir, addr string
	port      func(net.Listener) *apiPort
	log       *slog.Logger

	told strangers.LogLimiter
}

// init keeps the process's first thread for main, so that no goroutine enters a namespace on it: a
// thread ends with a goroutine that keeps it (runtime.LockOSThread), but for the first, which would
// stay there, and /proc/self with it.
func init() { runtime.LockOSThread() }

// A netID is a network namespace, whatever file it has.
type netID struct{ dev, inode uint64 }

// A podPort is a port in a namespace, until ctx is done.
type podPort struct {
	ctx context.Context
	end context.CancelFunc
}

// run serves until ctx is done. A namespace whose file is gone gets no port any more, and what is
// open in it is cut: a socket would keep it.
func (p *podNets) run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ports, failed := map[netID]podPort{}, map[netID]bool{}
	defer func() {
		for _, port := range ports {
			port.end()
		}
	}()
	tick := time.NewTicker(podNetsPeriod)
	defer tick.Stop()
	for {
		found, all := p.look()
		for id, port := range ports {
			if _, there := found[id]; all && !there || port.ctx.Err() != nil {
				port.end()
				delete(ports, id)
			}
		}
		again := map[netID]bool{}
		for id, file := range found {
			if _, there := ports[id]; there {
				continue
			}
			l, err := listenIn(ctx, file, p.addr)
			if err != nil {
				if again[id] = true; failed[id] { // of a new namespace the loopback is not up yet
					p.tell(file, err)
				}
				continue
			}
			one, end := context.WithCancel(ctx)
			ports[id] = podPort{one, end}
			group.Go(func() {
				defer end()
				if err := p.port(l).run(one); err != nil {
					p.tell(file, err)
				}
			})
		}
		failed = again
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look returns a file of each namespace that there is, and whether it could see all of them.
func (p *podNets) look() (found map[netID]string, all bool) {
	found = map[netID]string{}
	files, err := os.ReadDir(p.dir)
	if all = err == nil || os.IsNotExist(err); !all { // a runtime makes it with the first pod
		p.tell(p.dir, err)
	}
	for _, f := range files {
		path := filepath.Join(p.dir, f.Name())
		var system unix.Statfs_t
		if id, err := netOf(path); err == nil && unix.Statfs(path, &system) == nil && system.Type == unix.NSFS_MAGIC {
			found[id] = path
		}
	}
	if own, err := netOf("/proc/self/ns/net"); err == nil {
		delete(found, own)
	}
	return found, all
}

func netOf(path string) (netID, error) {
	var s unix.Stat_t
	err := unix.Stat(path, &s)
	return netID{s.Dev, s.Ino}, err
}

// listenIn listens at an address in the network namespace of a file.
func listenIn(ctx context.Context, file, addr string) (net.Listener, error) {
	type result struct {
		l   net.Listener
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- result{nil, err}
			return
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		_ = unix.Close(fd)
		if err != nil {
			done <- result{nil, fmt.Errorf("enter it, which needs CAP_SYS_ADMIN: %w", err)}
			return
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		done <- result{l, err}
	}()
	r := <-done
	return r.l, r.err
}

// tell logs what keeps pods from the API server, of each namespace once a minute.
func (p *podNets) tell(file string, err error) {
	if kept, now := p.told.Allow(file); now {
		p.log.Warn("cannot give pods of a network namespace the API server", "namespace", file, "listen", p.addr, "err", err, "more", kept)
	}
}
