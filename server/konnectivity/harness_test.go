// The harness of the tests: a front end on a network in memory, targets, and both kinds of
// clients: konnectivity's own, and one that sends any packets.

package konnectivity

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A harness is a front end and its targets, on the bubble's clock.
type harness struct {
	*Server
	t       *testing.T
	net     tunneltest.Network
	log     strings.Builder // read only once all goroutines are idle
	targets chan *memnet.Conn
	stop    context.CancelFunc
	stopped chan struct{}
}

// onFront runs f with a front end. If c has no Dial, every dial sends the other end of its
// target to targets.
func onFront(t *testing.T, c Config, f func(t *testing.T, h *harness)) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{t: t, targets: make(chan *memnet.Conn, 4*maxCallConns), stopped: make(chan struct{})}
		if c.Dial == nil {
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
				h.targets <- far
				return near, nil
			}
		}
		c.Log = slog.New(slog.NewTextHandler(&h.log, nil))
		var err error
		if h.Server, err = New(c); err != nil {
			t.Fatal(err)
		}
		l, err := h.net.Listen(t.Context(), "tcp", "front")
		if err != nil {
			t.Fatal(err)
		}
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.WithoutCancel(t.Context()))
		defer func() {
			h.stop()
			<-h.stopped
		}()
		go func() {
			defer close(h.stopped)
			if err := h.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		}()
		f(t, h)
	})
}

// target is the other end of the next dial's target.
func (h *harness) target() *memnet.Conn {
	h.t.Helper()
	far := <-h.targets
	h.t.Cleanup(func() { _ = far.Close() })
	return far
}

// options are how gRPC reaches the front end.
func (h *harness) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.net.Dial(ctx, "tcp", "front") }),
	}
}

// dial connects as kube-apiserver does.
func (h *harness) dial(ctx context.Context, addr string) (net.Conn, error) {
	return singleUse(ctx, addr, "passthrough:///front", h.options()...)
}

// singleUse makes a connection with konnectivity's client.
func singleUse(ctx context.Context, addr, front string, options ...grpc.DialOption) (net.Conn, error) {
	t, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, context.Background(), front, options...)
	if err != nil {
		return nil, err
	}
	return t.DialContext(ctx, "tcp", addr)
}

// mustDial is dial to somewhere. The connection is closed when the test ends.
func (h *harness) mustDial() net.Conn {
	h.t.Helper()
	c, err := h.dial(h.t.Context(), "node-1:10250")
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// A rawClient makes one call and sends any packets.
type rawClient struct {
	t      *testing.T
	stream client.ProxyService_ProxyClient
	conn   *grpc.ClientConn
	cancel context.CancelFunc
}

func (h *harness) raw() *rawClient {
	h.t.Helper()
	r := &rawClient{t: h.t}
	var err error
	if r.conn, err = grpc.NewClient("passthrough:///front", h.options()...); err != nil {
		h.t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(h.t.Context())
	if r.stream, err = client.NewProxyServiceClient(r.conn).Proxy(ctx); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(r.close)
	return r
}

func (r *rawClient) close() {
	r.cancel()
	_ = r.conn.Close()
}

func (r *rawClient) send(p *client.Packet) {
	r.t.Helper()
	if err := r.stream.Send(p); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rawClient) recv() *client.Packet {
	r.t.Helper()
	p, err := r.stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// dial opens a connection and returns its connectID.
func (r *rawClient) dial(random int64) int64 {
	r.t.Helper()
	r.send(dialReq(random))
	p := r.recv().GetDialResponse()
	if p.GetRandom() != random || p.GetError() != "" || p.GetConnectID() == 0 {
		r.t.Fatalf("answer to %d: %v", random, p)
	}
	return p.GetConnectID()
}

func dialReq(random int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_REQ, Payload: &client.Packet_DialRequest{
		DialRequest: &client.DialRequest{Protocol: "tcp", Address: "node-1:10250", Random: random},
	}}
}

func dialCls(random int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_DIAL_CLS, Payload: &client.Packet_CloseDial{CloseDial: &client.CloseDial{Random: random}}}
}

func dataOf(id int64, text string) *client.Packet {
	return &client.Packet{Type: client.PacketType_DATA, Payload: &client.Packet_Data{Data: &client.Data{ConnectID: id, Data: []byte(text)}}}
}

func closeReq(id int64) *client.Packet {
	return &client.Packet{Type: client.PacketType_CLOSE_REQ, Payload: &client.Packet_CloseRequest{CloseRequest: &client.CloseRequest{ConnectID: id}}}
}

// reads fails the test unless it reads want from c.
func reads(t *testing.T, c io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %.100q, %v; want %.100q", got, err, want)
	}
}

// echo has c's target answer what it reads until its end.
func echo(wg *sync.WaitGroup, c net.Conn) {
	wg.Go(func() {
		_, _ = io.Copy(c, c)
		_ = tunnel.CloseWrite(c)
	})
}
