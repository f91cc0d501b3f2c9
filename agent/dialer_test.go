// Tests of dialing names.

package agent

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A fakeNet is a network in which some addresses answer, some refuse, and the rest
// are silent.
type fakeNet struct {
	answers []string
	refuses []string
	hosts   map[string][]string
	silent  bool          // the name server
	slow    time.Duration // until it answers

	mu     sync.Mutex // guards the following
	dialed []string
	closed int
}

func (b *fakeNet) dialer() *dialer {
	return &dialer{one: b.dial, small: b.dial, resolve: b.resolve, known: make(map[string][]netip.Addr)}
}

func (b *fakeNet) resolve(ctx context.Context, _, host string) ([]netip.Addr, error) {
	if b.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if httptrace.ContextClientTrace(ctx) != nil {
		return nil, errors.New("connections to the name server are told to the trace of those to servers")
	}
	select {
	case <-time.After(b.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	texts, ok := b.hosts[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out, nil
}

func (b *fakeNet) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	b.mu.Lock()
	b.dialed = append(b.dialed, addr)
	b.mu.Unlock()
	switch {
	case slices.Contains(b.answers, addr):
		near, far := net.Pipe()
		_ = far.Close()
		return &sounded{Conn: near, addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)), bed: b}, nil
	case slices.Contains(b.refuses, addr):
		return nil, tunnel.Refused
	default:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
}

type sounded struct {
	net.Conn
	addr net.Addr
	bed  *fakeNet
}

func (c *sounded) RemoteAddr() net.Addr { return c.addr }

func (c *sounded) Close() error {
	c.bed.mu.Lock()
	defer c.bed.mu.Unlock()
	c.bed.closed++
	return c.Conn.Close()
}

func TestDialer(t *testing.T) {
	many := make([]string, 40)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}).String()
	}
	for name, tt := range map[string]struct {
		bed    *fakeNet
		addr   string
		want   string // the address that answers; empty means none
		within time.Duration
		err    string
		tried  int
	}{
		"address": {bed: &fakeNet{answers: []string{"10.0.0.1:443"}}, addr: "10.0.0.1:443", want: "10.0.0.1:443", tried: 1},
		"IPv6":    {bed: &fakeNet{answers: []string{"[fd00::1]:443"}}, addr: "[fd00::1]:443", want: "[fd00::1]:443", tried: 1},
		"name":    {bed: &fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1"}}, answers: []string{"10.0.0.1:443"}}, addr: "hub:443", want: "10.0.0.1:443", tried: 1},
		"dead entry": {
			bed:  &fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1", "10.0.0.2"}}, answers: []string{"10.0.0.2:443"}},
			addr: "hub:443", want: "10.0.0.2:443", within: addressHeadStart, tried: 2,
		},
		"refusing entry": {
			bed:  &fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1", "10.0.0.2"}}, answers: []string{"10.0.0.2:443"}, refuses: []string{"10.0.0.1:443"}},
			addr: "hub:443", want: "10.0.0.2:443", tried: 2,
		},
		"IPv6 is broken": {
			bed: &fakeNet{
				hosts:   map[string][]string{"hub": {"fd00::1", "fd00::2", "fd00::3", "10.0.0.2"}},
				answers: []string{"10.0.0.2:443"},
			},
			addr: "hub:443", want: "10.0.0.2:443", within: addressHeadStart, tried: 2,
		},
		"all refuse": {
			bed:  &fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1", "10.0.0.2"}}, refuses: []string{"10.0.0.1:443", "10.0.0.2:443"}},
			addr: "hub:443", err: "connection refused; connection refused", tried: 2,
		},
		"all silent": {
			bed:  &fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1", "10.0.0.2"}}},
			addr: "hub:443", err: context.DeadlineExceeded.Error(), within: time.Minute, tried: 2,
		},
		"too many":     {bed: &fakeNet{hosts: map[string][]string{"hub": many}}, addr: "hub:443", err: context.DeadlineExceeded.Error(), within: time.Minute, tried: maxAddresses},
		"no such name": {bed: &fakeNet{}, addr: "hub:443", err: "resolve hub: lookup hub: no such host"},
		"name server":  {bed: &fakeNet{silent: true}, addr: "hub:443", err: "resolve hub: lookup hub: no answer within", within: firstResolveTimeout},
		"second name server": {
			bed:  &fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1"}}, answers: []string{"10.0.0.1:443"}, slow: 5 * time.Second},
			addr: "hub:443", want: "10.0.0.1:443", within: 5 * time.Second, tried: 1,
		},
		"not a port":    {bed: &fakeNet{}, addr: "hub:no", err: "dial hub:no"},
		"nothing found": {bed: &fakeNet{hosts: map[string][]string{"hub": {}}}, addr: "hub:443", err: "no address"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(string, string, error) {}})
				c, err := tt.bed.dialer().DialContext(ctx, "tcp", tt.addr)
				took := time.Since(start)
				switch {
				case tt.want != "" && err != nil:
					t.Fatal(err)
				case tt.want != "" && c.RemoteAddr().String() != tt.want:
					t.Errorf("connected to %v", c.RemoteAddr())
				case tt.want == "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
					t.Errorf("failed with %v, want %q", err, tt.err)
				}
				if took > tt.within || len(tt.bed.dialed) != tt.tried {
					t.Errorf("took %v and %d attempts, want %v and %d", took, len(tt.bed.dialed), tt.within, tt.tried)
				}
				if c != nil {
					_ = c.Close()
				}
			})
		})
	}
}

// TestDialerRemembers: the address that answered last is tried first, and the last addresses
// of a name are used while no name server answers.
func TestDialerRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeNet{hosts: map[string][]string{"hub": {"10.0.0.1", "10.0.0.2", "10.0.0.3"}}, answers: []string{"10.0.0.3:443"}}
		d := b.dialer()
		dial := func() time.Duration {
			t.Helper()
			start := time.Now()
			c, err := d.DialContext(t.Context(), "tcp", "hub:443")
			if err != nil {
				t.Fatal(err)
			}
			c.(*dialed).Settled(true)
			_ = c.Close()
			return time.Since(start)
		}
		if took := dial(); took != 2*addressHeadStart {
			t.Errorf("the third address after %v", took)
		}
		if took := dial(); took != 0 {
			t.Errorf("the same again after %v", took)
		}
		b.silent = true
		if took := dial(); took != resolveTimeout {
			t.Errorf("without a name server after %v", took)
		}
		b.silent = false
		b.hosts["hub"] = []string{"10.0.0.9"}
		b.answers = []string{"10.0.0.9:443"}
		if took := dial(); took != 0 {
			t.Errorf("the name leads elsewhere, after %v", took)
		}
	})
}

// TestDialerLeavesSilent: an address that accepts a connection and does not answer on it is tried
// after the others of its name, and one that answers before them.
func TestDialerLeavesSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeNet{
			hosts:   map[string][]string{"hub": {"10.0.0.1", "10.0.0.2", "10.0.0.3"}},
			answers: []string{"10.0.0.1:443", "10.0.0.2:443", "10.0.0.3:443"},
		}
		d := b.dialer()
		dial := func(want string, then func(c *dialed)) {
			t.Helper()
			c, err := d.DialContext(t.Context(), "tcp", "hub:443")
			if err != nil {
				t.Fatal(err)
			}
			if got := c.RemoteAddr().String(); got != want {
				t.Errorf("connected to %s, want %s", got, want)
			}
			then(c.(*dialed))
			_ = c.Close()
		}
		silent := func(*dialed) {}
		dial("10.0.0.1:443", silent)
		dial("10.0.0.2:443", silent)
		dial("10.0.0.3:443", func(c *dialed) {
			dial("10.0.0.3:443", func(c *dialed) { c.Settled(false) }) // it was not needed
			c.Settled(true)
		})
		dial("10.0.0.3:443", silent)
		dial("10.0.0.1:443", func(c *dialed) {
			c.Conn = answeringConn{c.Conn}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
		dial("10.0.0.1:443", silent)
	})
}

// An answeringConn has something to read.
type answeringConn struct{ net.Conn }

func (answeringConn) Read(p []byte) (int, error) { return len(p), nil }

// TestRaceDropsLosers: attempts that succeed too late are closed, all are joined, and none
// starts once one has succeeded.
func TestRaceDropsLosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			pending sync.WaitGroup
			mu      sync.Mutex
			dropped []int
			started int
		)
		got, err := race(t.Context(), &pending, 4, time.Second, func(_ context.Context, i int) (int, error) {
			mu.Lock()
			started++
			mu.Unlock()
			<-time.After([]time.Duration{5 * time.Second, 1500 * time.Millisecond, 9 * time.Second, 0}[i])
			return i, nil
		}, func(i int) { mu.Lock(); dropped = append(dropped, i); mu.Unlock() })
		if got != 1 || err != nil {
			t.Errorf("won by %d, %v", got, err)
		}
		pending.Wait()
		if !slices.Equal(dropped, []int{0, 2}) || started != 3 {
			t.Errorf("dropped %v of %d", dropped, started)
		}
	})
}

func TestFailuresTellAll(t *testing.T) {
	var pending sync.WaitGroup
	_, err := race(t.Context(), &pending, 2, time.Hour, func(_ context.Context, i int) (int, error) {
		return 0, []error{tunnel.Timeout, &net.DNSError{Err: "no such host", Name: "hub"}}[i]
	}, func(int) {})
	pending.Wait()
	var dns *net.DNSError
	if !errors.Is(err, tunnel.Timeout) || !errors.As(err, &dns) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q", err)
	}
	wrapped := failures{&net.OpError{Op: "dial", Source: &net.TCPAddr{Port: 40000}, Err: tunnel.Refused}, tunnel.Timeout}
	if got := stableText(wrapped); got != "dial connection refused; timed out" {
		t.Errorf("stable part: %q", got)
	}
}

// TestUDPByAddress: a transport over UDP is given the addresses of a name in turn,
// and the name for its handshake.
func TestUDPByAddress(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		b := fakeNet{hosts: map[string][]string{"hub": {"fd00::1", "10.0.0.1"}}}
		var mu sync.Mutex
		var dialed []string
		quic := tunnel.Transport{Name: "quic", Dial: func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			mu.Lock()
			dialed = append(dialed, addr)
			mu.Unlock()
			if o.Dial != nil {
				t.Error("it was given a dialer")
			}
			if addr != "10.0.0.1:1" {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return h.exchange.Dial(ctx, "hub:1", o)
		}}
		a, err := New(Config{Servers: []string{"hub:1"}, NodeName: "node-1", Transport: quic})
		if err != nil {
			t.Fatal(err)
		}
		a.dialer = b.dialer()
		start := time.Now()
		l, err := a.connect(t.Context(), plan{server: "hub:1", sequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != addressHeadStart || !slices.Equal(dialed, []string{"[fd00::1]:1", "10.0.0.1:1"}) {
			t.Errorf("dialed %v, connected after %v", dialed, took)
		}
		_ = l.session.Close()
	})
}

// TestProxyTakesNoPackets: through a proxy there is only TCP, and QUIC fails with that error.
func TestProxyTakesNoPackets(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		fakeTransport := h.fakeTransport()
		fakeTransport.name = "quic"
		c := Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport()}
		c.Proxy = func(string) (*url.URL, error) { return url.Parse("http://proxy:3128") }
		a := h.start(c)
		pass(time.Minute)
		var r *Refusal
		if err := a.State().Err; !errors.As(err, &r) || !strings.Contains(err.Error(), "proxy:3128 cannot carry QUIC") || !strings.Contains(err.Error(), "--transport qmux") || len(fakeTransport.dialed()) != 0 {
			t.Errorf("%v, %d dials", err, len(fakeTransport.dialed()))
		}
	})
}
