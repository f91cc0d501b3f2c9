// A call: one gRPC stream and its packets.

package konnectivity

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// Why a connection was closed before its end.
var (
	errGone     = errors.New("the client is gone")
	errDialOver = errors.New("the client gave the dial up")
	errFull     = errors.New("the target does not read, and no more can wait for it")
	errNotTaken = errors.New("the target did not take the rest in time")
)

// A call is read by run alone. All of its connections send on it.
type call struct {
	*front
	ctx     context.Context // of its dials and connections
	cancel  context.CancelCauseFunc
	arrival *arrival       // the gRPC connection
	client  string         // its address, for logs
	denied  error          // the error of Authorize
	busy    sync.WaitGroup // connections

	sending chan struct{} // holds one while out is called
	out     func(packet any) error

	mu     sync.Mutex // guards the following
	lastID int64
	owing  int             // connections and dials that have not ended
	live   int             // those whose end was not sent to the client
	dials  map[int64]*conn // by random
	open   map[int64]*conn // by connectID
}

// newCall makes a call of a connection. It sends by out. The caller calls run or deny.
func newCall(ctx context.Context, f *front, a *arrival, out func(packet any) error) *call {
	c := &call{front: f, sending: make(chan struct{}, 1), out: out, dials: map[int64]*conn{}, open: map[int64]*conn{}}
	c.arrival, c.client = a, a.RemoteAddr().String()
	state := a.state()
	if f.cfg.Authorize != nil {
		c.denied = f.cfg.Authorize(state)
	}
	if f.cfg.Caller != nil {
		ctx = auth.WithCaller(ctx, auth.Caller{Name: f.cfg.Caller(state)})
	}
	if f.cfg.Trace != nil {
		ctx = f.cfg.Trace(ctx, headers(ctx))
	}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	return c
}

// headers are a call's metadata in the shape of HTTP's.
func headers(ctx context.Context) http.Header {
	md, _ := metadata.FromIncomingContext(ctx)
	h := make(http.Header, len(md))
	for name, values := range md {
		h[http.CanonicalHeaderKey(name)] = values
	}
	return h
}

// run handles packets of recv until that fails, and then waits for every connection. If
// the client has ended its direction, connections end after their last byte, else at once.
func (c *call) run(recv func(packet any) error) error {
	defer c.busy.Wait()
	defer c.cancel(errGone)
	var r received
	for {
		err := recv(&r)
		switch {
		case err == nil:
			err = c.handle(r)
			r = received{} // its buffers are not kept until the next packet
		case errors.Is(err, io.EOF):
			c.finish()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// deny answers the first dial of a client that may not make any, and ends the call.
func (c *call) deny(recv func(packet any) error) error {
	defer c.cancel(errGone)
	var first received
	if err := recv(&first); err != nil {
		return err
	}
	r := first.packet.GetDialRequest()
	if more, ok := c.front.denied.Allow(c.denied.Error()); ok { // the error names the client
		c.cfg.Log.Warn("dial refused", "client", c.client, "target", clip(r.GetAddress()), "err", c.denied, "others", more)
	}
	c.metrics.Dials.WithLabelValues(tunnel.Denied.Name()).Inc()
	refused := &tunnel.DialError{Addr: clip(r.GetAddress()), Code: tunnel.Denied, Text: c.denied.Error()}
	if err := c.answer(r.GetRandom(), 0, refused); err != nil {
		return err
	}
	return status.Error(codes.PermissionDenied, text(c.denied))
}

// finish ends every connection as CLOSE_REQ does, and every dial as DIAL_CLS does.
func (c *call) finish() {
	c.mu.Lock()
	for _, k := range c.dials {
		if k.id == 0 {
			k.cancel(errDialOver)
		}
	}
	for _, k := range c.open {
		k.finish()
	}
	c.mu.Unlock()
	c.busy.Wait()
}

// handle handles one packet. It waits only for room for the data of a call's only
// connection. An error ends the call.
func (c *call) handle(r received) error {
	p := r.packet
	if p == nil {
		c.data(r.data)
		return nil
	}
	switch payload := p.GetPayload().(type) {
	case *client.Packet_DialRequest:
		if r := payload.DialRequest; p.GetType() == client.PacketType_DIAL_REQ && r != nil {
			return c.dial(r)
		}
	case *client.Packet_CloseRequest:
		if p.GetType() == client.PacketType_CLOSE_REQ {
			c.closeConn(payload.CloseRequest.GetConnectID())
			return nil
		}
	case *client.Packet_CloseDial:
		if p.GetType() == client.PacketType_DIAL_CLS {
			c.closeDial(payload.CloseDial.GetRandom())
			return nil
		}
	}
	c.ignored(unexpected)
	return nil
}

func (c *call) ignored(reason string) { c.metrics.ignored.WithLabelValues(reason).Inc() }

// dial starts a connection. A refusal is also sent by a goroutine of its own, because
// sending may wait for the client.
func (c *call) dial(r *client.DialRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.dials[r.Random]; k != nil && k.id == 0 {
		c.ignored(duplicateDial)
		return nil
	}
	if c.owing >= 2*maxCallConns {
		return status.Errorf(codes.ResourceExhausted, "the call has %d connections and dials already", c.owing)
	}
	refused := c.refusal(r, c.live)
	k := newConn(c, r.Random)
	c.dials[r.Random] = k
	c.live++
	c.owing++
	if refused == nil {
		c.busy.Go(func() { k.run(r.Address) })
		return nil
	}
	c.metrics.Dials.WithLabelValues(refused.Code.Name()).Inc()
	c.busy.Go(func() { k.refuse(refused) })
	return nil
}

// refusal returns why no dial is made, given the call's number of connections. If it
// returns nil, the connection counts as one of the Server's.
func (c *call) refusal(r *client.DialRequest, live int) *tunnel.DialError {
	no := func(code tunnel.Code, text string) *tunnel.DialError {
		return &tunnel.DialError{Addr: clip(r.Address), Code: code, Text: text}
	}
	switch {
	case c.draining.Load():
		return no(tunnel.Draining, "")
	case len(r.Address) > maxTarget:
		return no(tunnel.Invalid, "the address is too long")
	case r.Protocol != "tcp":
		return no(tunnel.Invalid, "the protocol is to be tcp")
	case c.arrival.isScarce():
		c.metrics.Shed.Inc()
		return no(tunnel.Busy, "the server has no file descriptors to spare")
	case live >= maxCallConns:
		return no(tunnel.Busy, "the call has too many connections")
	case c.conns.Add(1) > int64(c.cfg.MaxConns):
		c.conns.Add(-1)
		return no(tunnel.Busy, "the server has too many connections")
	}
	return nil
}

func (c *call) data(d data) {
	k, alone := c.connection(d.id)
	if k == nil {
		d.bytes.Free()
		c.ignored(noConnection)
		return
	}
	k.markReceived()
	for d.bytes.Len() > 0 && !k.in.put(d.bytes) {
		if !alone {
			k.cancel(errFull)
			return
		}
		select {
		case <-k.in.room:
		case <-k.ctx.Done():
			return
		}
	}
}

// connection returns an open connection, and whether it is the call's only one.
func (c *call) connection(id int64) (k *conn, alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[id], c.live == 1
}

func (c *call) closeConn(id int64) {
	if k, _ := c.connection(id); k != nil {
		k.finish()
		return
	}
	c.ignored(noConnection)
}

// closeDial ends a dial. If the answer was already sent, it ends the connection.
func (c *call) closeDial(random int64) {
	c.mu.Lock()
	k := c.dials[random]
	c.mu.Unlock()
	if k == nil {
		c.ignored(noDial)
		return
	}
	k.cancel(errDialOver)
}

// opened gives k its connectID; false if k was closed meanwhile.
func (c *call) opened(k *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.ctx.Err() != nil {
		return false
	}
	c.lastID++
	k.id = c.lastID
	c.open[k.id] = k
	return true
}

// done is called once by each conn, at its end.
func (c *call) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owing--
}

// forget removes k before its end is sent to the client.
func (c *call) forget(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live--
	delete(c.open, k.id)
	if c.dials[k.random] == k {
		delete(c.dials, k.random)
	}
}

// send sends a *client.Packet or *data. It waits for other senders until ctx is done, and
// then until the client reads. It fails if the call has ended or ctx is done.
func (c *call) send(ctx context.Context, p any) error {
	select {
	case c.sending <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.sending }()
	return c.out(p)
}

// answer sends DIAL_RSP. It makes the error text valid UTF-8.
func (c *call) answer(random, id int64, err error) error {
	return c.send(c.ctx, &client.Packet{Type: client.PacketType_DIAL_RSP, Payload: &client.Packet_DialResponse{
		DialResponse: &client.DialResponse{Error: text(err), ConnectID: id, Random: random},
	}})
}

// over sends CLOSE_RSP.
func (c *call) over(id int64, err error) error {
	return c.send(c.ctx, &client.Packet{Type: client.PacketType_CLOSE_RSP, Payload: &client.Packet_CloseResponse{
		CloseResponse: &client.CloseResponse{Error: text(err), ConnectID: id},
	}})
}

// text is the error text for the client; it is empty only for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(strings.ToValidUTF8(clipTo(err.Error(), maxText), "?"), tunnel.Internal.String())
}

// clip shortens a target.
func clip(s string) string { return clipTo(s, maxTarget) }

func clipTo(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
