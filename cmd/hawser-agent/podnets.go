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

// run serves until ctx is done. A namespace whose file is gone gets no port any more, and what is
// open in it is cut: a socket would keep it.
func (p *podNets) run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ports, failed := map[netID]context.CancelFunc{}, map[netID]bool{}
	defer func() {
		for _, end := range ports {
			end()
		}
	}()
	tick := time.NewTicker(podNetsPeriod)
	defer tick.Stop()
	for {
		found := p.look()
		for id, end := range ports {
			if _, there := found[id]; !there {
				end()
				delete(ports, id)
			}
		}
		again := map[netID]bool{}
		for id, file := range found {
			if ports[id] != nil {
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
			ports[id] = end
			group.Go(func() {
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

// look returns a file of each namespace that there is.
func (p *podNets) look() map[netID]string {
	found := map[netID]string{}
	files, err := os.ReadDir(p.dir)
	if err != nil && !os.IsNotExist(err) { // a runtime makes it with the first pod
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
	return found
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
