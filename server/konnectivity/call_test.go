// Tests of the packets of a call, by a client that sends any packets.

package konnectivity

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A dial is cancelled as soon as the client gives it up, by a packet or by the end of its
// direction. Only after the end of the call it gets no answer.
func TestDialIsGivenUp(t *testing.T) {
	dials := make(chan context.Context, 2)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		dials <- ctx
		<-ctx.Done()
		return nil, ctx.Err()
	}
	onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
		r := h.raw()
		r.send(dialReq(1))
		r.send(dialReq(2))
		first, second := <-dials, <-dials
		r.send(dialCls(1))
		r.send(dialCls(2))
		<-first.Done()
		<-second.Done()
		r.send(dialReq(3))
		third := <-dials
		r.close()
		<-third.Done()
		synctest.Wait()
		if n := h.conns.Load() + h.calls.Load(); n != 0 {
			t.Errorf("%d connections and calls are left", n)
		}
	})
}

// A dial that succeeds after it was given up makes no connection and gets no answer.
func TestDialIsGivenUpAsItSucceeds(t *testing.T) {
	near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
	first := true
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if first {
			first = false
			<-ctx.Done()
			return near, nil
		}
		return nil, tunnel.Refused
	}
	onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
		r := h.raw()
		r.send(dialReq(1))
		synctest.Wait()
		r.send(dialCls(1))
		synctest.Wait()
		r.send(dialReq(2))
		if p := r.recv().GetDialResponse(); p.GetRandom() != 2 {
			t.Errorf("answer %v", p)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// A dial whose answer crosses with DIAL_CLS leaves no connection.
func TestDialIsGivenUpTooLate(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		r := h.raw()
		id := r.dial(1)
		far := h.target()
		r.send(dialCls(1))
		if p := r.recv().GetCloseResponse(); p.GetConnectID() != id || p.GetError() != errDialOver.Error() {
			t.Errorf("answer %v", p)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// A target that does not read ends its own connection, and no other.
func TestTargetThatDoesNotReadAmongOthers(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		r := h.raw()
		stalled, lively := r.dial(1), r.dial(2)
		_ = h.target()
		far := h.target()
		began := time.Now()
		piece := strings.Repeat("x", 256<<10)
		for range 16 {
			r.send(dataOf(stalled, piece))
		}
		r.send(dataOf(lively, "hello"))
		reads(t, far, "hello")
		if p := r.recv().GetCloseResponse(); p.GetConnectID() != stalled || p.GetError() != errFull.Error() {
			t.Errorf("answer %v", p)
		}
		if d := time.Since(began); d > answerTime {
			t.Errorf("the neighbour waited for %v", d)
		}
	})
}

// The packets of a client that does not read are still handled. Its targets are not read
// beyond the data under way.
func TestClientThatDoesNotRead(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		h.hold = 0
		r := h.raw()
		r.dial(1)
		silent := r.dial(2)
		loud, far := h.target(), h.target()
		var written int
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				n, err := loud.Write(make([]byte, 64<<10))
				written += n
				if err != nil {
					return
				}
			}
		})
		synctest.Wait()
		r.send(dataOf(silent, "hello"))
		reads(t, far, "hello")
		r.send(closeReq(silent))
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		synctest.Wait()
		r.close()
		wg.Wait()
		if written > 2<<20 {
			t.Errorf("%d bytes were read for a client that does not", written)
		}
	})
}

// Invalid packets are counted and have no effect.
func TestPacketsThatMeanNothing(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		r := h.raw()
		for reason, packets := range map[string][]*client.Packet{
			unexpected: {
				{},
				{Type: client.PacketType_DATA},
				{Type: client.PacketType_CLOSE_REQ},
				{Type: client.PacketType_DIAL_CLS},
				{Type: client.PacketType_DRAIN},
				{Type: 77},
				{Type: client.PacketType_CLOSE_REQ, Payload: dialReq(1).Payload},
				{Type: client.PacketType_DIAL_REQ, Payload: dataOf(1, "x").Payload},
				{Type: client.PacketType_DIAL_RSP, Payload: &client.Packet_DialResponse{DialResponse: &client.DialResponse{ConnectID: 1}}},
			},
			noConnection: {dataOf(1, "before the dial"), dataOf(math.MaxInt64, "x"), dataOf(math.MinInt64, ""), closeReq(0), closeReq(-1)},
			noDial:       {dialCls(5), dialCls(math.MinInt64)},
		} {
			for _, p := range packets {
				r.send(p)
			}
			synctest.Wait()
			if n := testutil.ToFloat64(h.metrics.ignored.WithLabelValues(reason)); n != float64(len(packets)) {
				t.Errorf("%s: %v of %d", reason, n, len(packets))
			}
		}
		id := r.dial(0)
		r.send(dataOf(id, "hello"))
		reads(t, h.target(), "hello")
	})
}

// Of two dials with one random the second is ignored while the first is being made.
func TestDuplicateRandom(t *testing.T) {
	var let chan struct{} // of the bubble
	var targets sync.WaitGroup
	dial := func(context.Context, string, string) (net.Conn, error) {
		<-let
		near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
		echo(&targets, far)
		return near, nil
	}
	onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
		let = make(chan struct{})
		r := h.raw()
		r.send(dialReq(7))
		r.send(dialReq(7))
		synctest.Wait()
		if n := testutil.ToFloat64(h.metrics.ignored.WithLabelValues(duplicateDial)); n != 1 {
			t.Errorf("%v ignored", n)
		}
		close(let)
		first := r.recv().GetDialResponse().GetConnectID()
		second := r.dial(7) // the random is free again
		if first == second {
			t.Errorf("both are %d", first)
		}
		for _, id := range []int64{second, first} {
			r.send(closeReq(id))
			if p := r.recv().GetCloseResponse(); p.GetConnectID() != id || p.GetError() != "" {
				t.Errorf("answer %v", p)
			}
		}
		targets.Wait()
	})
}

// Above a limit the client gets an error. The call ends only if its client does not read the
// error.
func TestLimits(t *testing.T) {
	onFront(t, Config{MaxConns: 2, MaxCalls: 2}, func(t *testing.T, h *harness) {
		r, other := h.raw(), h.raw()
		r.dial(1)
		other.dial(1)
		r.send(dialReq(2))
		if p := r.recv().GetDialResponse(); !strings.Contains(p.GetError(), "too many connections") || p.GetRandom() != 2 {
			t.Errorf("answer %v", p)
		}
		if _, err := h.raw().stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
		long := dialReq(3)
		long.GetDialRequest().Address = strings.Repeat("x", maxTarget+1)
		r.send(long)
		if p := r.recv().GetDialResponse(); !strings.Contains(p.GetError(), "too long") {
			t.Errorf("answer %v", p)
		}
		udp := dialReq(3)
		udp.GetDialRequest().Protocol = "udp"
		r.send(udp)
		if p := r.recv().GetDialResponse(); !strings.Contains(p.GetError(), "tcp") {
			t.Errorf("answer %v", p)
		}
	})
}

func TestLimitOfCall(t *testing.T) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	onFront(t, Config{Dial: dial}, func(t *testing.T, h *harness) {
		r := h.raw()
		for i := range maxCallConns + 1 {
			r.send(dialReq(int64(i)))
		}
		if p := r.recv().GetDialResponse(); !strings.Contains(p.GetError(), "too many connections") || p.GetRandom() != maxCallConns {
			t.Errorf("answer %v", p)
		}
	})
}

// The data of a client that has ended its direction is delivered.
func TestClientEndsItsDirection(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		r := h.raw()
		r.send(dataOf(r.dial(1), "last words"))
		if err := r.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		far := h.target()
		if b, err := io.ReadAll(far); err != nil || string(b) != "last words" {
			t.Errorf("%q, %v", b, err)
		}
		if p := r.recv().GetCloseResponse(); p.GetError() != "" {
			t.Errorf("answer %v", p)
		}
		if _, err := r.stream.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// A client that may not dial stays on the pending list, regardless of its number of calls.
func TestDeniedClients(t *testing.T) {
	deny := func(*tls.ConnectionState) error { return errors.New("not you") }
	onFront(t, Config{Authorize: deny, MaxCalls: 1}, func(t *testing.T, h *harness) {
		var clients []*rawClient
		for range maxPending + 1 {
			clients = append(clients, h.raw())
		}
		synctest.Wait()
		if _, err := clients[0].stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the oldest keeps its place: %v", err)
		}
		last := clients[maxPending]
		last.send(dialReq(1))
		if p := last.recv().GetDialResponse(); p.GetRandom() != 1 || p.GetError() != "dial node-1:10250: not you" {
			t.Errorf("answer %v", p)
		}
		if _, err := last.stream.Recv(); status.Code(err) != codes.PermissionDenied {
			t.Error(err)
		}
	})
}

// TestDeniedCalls: of a client that may make no calls one is answered, and others do not wait: a
// client has a connection a call, and the calls of denied ones count nowhere.
func TestDeniedCalls(t *testing.T) {
	deny := func(*tls.ConnectionState) error { return errors.New("not you") }
	onFront(t, Config{Authorize: deny}, func(t *testing.T, h *harness) {
		c := h.raw()
		synctest.Wait()
		for range 3 {
			more, err := client.NewProxyServiceClient(c.conn).Proxy(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := more.Recv(); status.Code(err) != codes.PermissionDenied {
				t.Errorf("a further call: %v", err)
			}
		}
		c.send(dialReq(1))
		if p := c.recv().GetDialResponse(); p.GetError() != "dial node-1:10250: not you" {
			t.Errorf("answer %v", p)
		}
	})
}

// Connections that never have a call are closed, and counted.
func TestConnectionsWithoutCall(t *testing.T) {
	onFront(t, Config{}, func(t *testing.T, h *harness) {
		c, err := h.net.Dial(t.Context(), "tcp", "front")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		began := time.Now()
		_, _ = io.Copy(io.Discard, c)
		if d := time.Since(began); d > idleTimeout {
			t.Errorf("closed after %v", d)
		}
		synctest.Wait()
		if n := testutil.ToFloat64(h.metrics.Closed.WithLabelValues("no_request")); n != 1 {
			t.Errorf("%v closed", n)
		}
	})
}

// FuzzPackets sends any packets on a call. Each dial gets at most one answer, each connection
// ends once, and none is left.
func FuzzPackets(f *testing.F) {
	seed := func(packets ...*client.Packet) {
		var b []byte
		for _, p := range packets {
			m, err := proto.Marshal(p)
			if err != nil || len(m) > math.MaxUint8 {
				f.Fatal(len(m), err)
			}
			b = append(append(b, byte(len(m))), m...)
		}
		f.Add(b)
	}
	seed(dialReq(1), dataOf(1, "hello"), closeReq(1))
	seed(dialReq(1), dialReq(1), dialCls(1), dataOf(1, "x"), dialReq(2), closeReq(2), closeReq(2))
	seed(dataOf(math.MaxInt64, "x"), closeReq(-1), dialCls(0), &client.Packet{Type: client.PacketType_DATA})
	f.Fuzz(func(t *testing.T, b []byte) {
		synctest.Test(t, func(t *testing.T) { feed(t, packetsIn(b)) })
	})
}

// packetsIn are those that b holds, each after its length.
func packetsIn(b []byte) (all []*client.Packet) {
	for len(b) > 0 {
		n := min(int(b[0]), len(b)-1)
		var p client.Packet
		if proto.Unmarshal(b[1:1+n], &p) == nil {
			all = append(all, &p)
		}
		b = b[1+n:]
	}
	return all
}

func feed(t *testing.T, packets []*client.Packet) {
	var targets sync.WaitGroup
	s, err := New(Config{Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
		if len(addr)%2 == 1 {
			return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Refused, Text: addr}
		}
		near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
		echo(&targets, far)
		return near, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked, open := map[int64]int{}, map[int64]bool{}
	near, far := memnet.Pipe(memnet.Addr("server"), memnet.Addr("client"))
	defer near.Close()
	defer far.Close()
	c := newCall(t.Context(), &front{Server: s}, &arrival{Conn: near, server: s}, func(sent any) error {
		p := asSent(t, sent)
		mu.Lock()
		defer mu.Unlock()
		switch r, end := p.GetDialResponse(), p.GetCloseResponse(); {
		case r != nil:
			if asked[r.Random]--; asked[r.Random] < 0 || r.Error == "" == (r.ConnectID == 0) {
				t.Errorf("answer %v", r)
			}
			open[r.ConnectID] = r.Error == ""
		case end != nil && !open[end.ConnectID] || end == nil && !open[p.GetData().GetConnectID()]:
			t.Errorf("no such connection: %v", p)
		case end != nil:
			delete(open, end.ConnectID)
		}
		return nil
	})
	_ = c.run(func(packet any) error {
		if len(packets) == 0 {
			return io.EOF
		}
		p := packets[0]
		packets = packets[1:]
		mu.Lock()
		if r := p.GetDialRequest(); r != nil {
			asked[r.Random]++
		}
		mu.Unlock()
		b, err := proto.Marshal(p)
		if err != nil {
			t.Error(err)
		}
		return codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, packet)
	})
	targets.Wait()
	if n := s.conns.Load(); n != 0 || c.owing != 0 || c.live != 0 || len(c.dials)+len(c.open) != 0 {
		t.Errorf("%d connections are left, %d owing, %d live", n, c.owing, c.live)
	}
}

// TestCallsOfOneClient: a client may make all its calls on one gRPC connection, as many as
// the server has.
func TestCallsOfOneClient(t *testing.T) {
	const calls = 300
	onFront(t, Config{MaxCalls: calls}, func(t *testing.T, h *harness) {
		conn, err := grpc.NewClient("passthrough:///front", h.options()...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i := range calls {
			stream, err := client.NewProxyServiceClient(conn).Proxy(ctx)
			if err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
			r := rawClient{t: t, stream: stream}
			r.dial(int64(i) + 1)
			defer func(far *memnet.Conn) { _ = far.Close() }(h.target())
		}
		stream, err := client.NewProxyServiceClient(conn).Proxy(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one call more: %v", err)
		}
		cancel()
	})
}
