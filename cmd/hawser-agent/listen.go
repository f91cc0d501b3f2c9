// A port of this machine's loopback that is the API server, --apiserver-listen: for
// kubelets, kube-proxy and whatever else speaks to it from here.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// maxAPIConns is how many connections the port has at a time. Above that a new one
	// replaces the oldest one of the user that has most.
	maxAPIConns = 256
	// maxPodAPIConns is the same for the port of a pod.
	maxPodAPIConns = 32
	// maxReplaced is how many connections that were replaced may not have ended yet.
	maxReplaced = 64
	// answerWithin is how long the API server may take to answer what a client has sent before
	// connections are made through another server: less than the ten seconds after which
	// kubelets give up a TLS handshake.
	answerWithin = 8 * time.Second
)

// checkListen refuses what others than this machine would reach, naming the flag.
func (o *options) checkListen() error {
	if o.apiListen == "" && o.apiNets != "" {
		return fmt.Errorf("--apiserver-listen-in %s needs --apiserver-listen, which is the address in pods too, such as 127.0.0.1:6443", o.apiNets)
	}
	if o.apiListen == "" {
		return nil
	}
	if o.standalone {
		return errors.New("--apiserver-listen needs --server or --kubeconfig: there is no API server")
	}
	addr, err := netip.ParseAddrPort(o.apiListen)
	switch {
	case err != nil || addr.Port() == 0:
		return fmt.Errorf("--apiserver-listen %q: want ADDRESS:PORT such as 127.0.0.1:6443", o.apiListen)
	case !addr.Addr().IsLoopback():
		return fmt.Errorf("--apiserver-listen %s: other machines could reach it there, want a loopback address such as 127.0.0.1:%d", o.apiListen, addr.Port())
	case o.transport == setup.SSH:
		return errors.New("--apiserver-listen does not go with --transport ssh: there is no tunnel")
	}
	return nil
}

// listenAt opens a port for this machine only. Errors name the flag.
func listenAt(ctx context.Context, flag, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is in use by another process: stop that one first or choose another port", flag, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return l, nil
}

// An apiPort joins each connection of its listener to a stream to the API server. TLS
// is between its client and the API server, so the port cannot know who is entitled. It
// knows the user of each connection: none keeps others out.
type apiPort struct {
	listener net.Listener // its own
	// dial connects to the API server. It bounds how long it waits for the tunnel.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// suspect has the next dials made through another server.
	suspect func()
	log     *slog.Logger
	pod     bool // it is in a pod's network namespace, whose users are unknown

	told strangers.LogLimiter
}

// run serves until ctx is done, and then cuts what is open.
func (p *apiPort) run(ctx context.Context) error {
	listener := strangers.Steady(p.listener, p.log)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	limit, sourceOf := maxAPIConns, localSource
	if p.pod {
		limit, sourceOf = maxPodAPIConns, func(c net.Conn) strangers.Source { return strangers.SourceOf(c.RemoteAddr()) }
	}
	places, all := strangers.NewPending(limit), make(chan struct{}, limit+maxReplaced)
	for {
		c, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case err != nil:
			return fmt.Errorf("accept on %s: %w", p.listener.Addr(), err)
		}
		select {
		case all <- struct{}{}: // those that were replaced end soon
		case <-ctx.Done():
			_ = c.Close()
			return nil
		}
		lost := places.Lost()
		source := sourceOf(c)
		held, leave := places.Hold(ctx, source, c)
		if places.Lost() > lost {
			p.tell("too many connections, closing the oldest of the user that has most", fmt.Errorf("%d are open", limit))
		}
		group.Go(func() {
			defer func() { leave(); <-all }()
			p.serve(held, c, source == strangers.UserSource(0))
		})
	}
}

// serve joins one connection to the API server. Only root's, which kubelets are, say what server
// is suspected: anybody can send what no API server answers.
func (p *apiPort) serve(ctx context.Context, c net.Conn, root bool) {
	suspect := func() {
		if root {
			p.suspect()
		}
	}
	began := time.Now()
	api, err := p.dial(ctx, "tcp", apiTarget)
	if err == nil && time.Since(began) >= answerWithin/2 {
		suspect() // another one has answered
	}
	if err != nil {
		if ctx.Err() == nil {
			p.tell("the API server cannot be reached for now, closing a connection", err)
			if !tunnel.CodeOf(err).Away() { // the server has answered, or has taken too long
				suspect()
			}
		}
		_ = tunnel.Abort(c)
		return
	}
	// In TLS the client speaks first, and every API server answers that.
	var asked, answered atomic.Bool
	silent := time.AfterFunc(answerWithin, func() {
		if !answered.Load() {
			suspect()
		}
	})
	silent.Stop() // until the client has spoken
	defer silent.Stop()
	api = &tunnel.Tap{Conn: api, Sent: func(int) {
		if !asked.Swap(true) {
			silent.Reset(answerWithin)
		}
	}, Received: func(n int) {
		if n > 0 && !answered.Swap(true) {
			silent.Stop()
		}
	}}
	if _, err = tunnel.Splice(ctx, c, api); err != nil {
		p.log.Debug("a connection to the API server was cut", "client", c.RemoteAddr().String(), "err", err)
	}
}

// tell logs what every client may run into, of each kind once a minute.
func (p *apiPort) tell(what string, err error) {
	if kept, now := p.told.Allow(what); now {
		p.log.Warn(what, "listen", p.listener.Addr().String(), "err", err, "more", kept)
	}
}
