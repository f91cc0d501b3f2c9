// The tunnel's audit log: whose each dial is, and where it is written that it ended.

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/streamlog"
)

// unixCaller is who comes by the unix socket, which lets in whoever may open it.
const unixCaller = "unix socket"

// openStreams makes the log, if there is to be one, and says how to close it.
func openStreams(file *rotatedFile, log *slog.Logger) (*streamlog.Log, func(), error) {
	if file.path == "" {
		return nil, func() {}, nil
	}
	out, err := file.open()
	if err != nil {
		return nil, nil, err
	}
	s, err := streamlog.New(streamlog.Config{Out: out, Log: log, Metrics: metricsRegisterer()})
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	return s, func() { _ = out.Close() }, nil // what could not be written has been counted
}

// record starts to write. The function it returns waits until all is written; nothing
// may end after that.
func (t *tunnels) record(ctx context.Context) (stop func()) {
	if t.streams == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.streams.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// ended is who wants to know of streams that have; nil if nobody does.
func (t *tunnels) ended() func(server.Ended) {
	if t.streams == nil {
		return nil
	}
	return t.streams.Ended
}

// A dialFunc has the shape of net.Dialer's.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// forUser dials in the name of the API request's user.
func (t *tunnels) forUser(dial dialFunc) dialFunc {
	if t.streams == nil {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var c auth.Caller
		if u, ok := request.UserFrom(ctx); ok {
			c.Name = u.GetName()
		}
		return dial(auth.WithCaller(ctx, c), network, addr)
	}
}

// named dials in the name of a part of the server that acts for others.
func (t *tunnels) named(name string, dial dialFunc) dialFunc {
	if t.streams == nil {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dial(auth.WithCaller(ctx, auth.Caller{Name: name}), network, addr)
	}
}

// own dials in the server's own name.
func (t *tunnels) own(dial dialFunc) dialFunc {
	if t.streams == nil && t.traces == nil {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dial(auth.WithCaller(ctx, auth.Caller{Own: true}), network, addr)
	}
}
