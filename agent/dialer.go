// Dialer: from a server's name to a connection, whichever of its addresses
// answers.

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// addressHeadStart is how long an address may take before the next one is
	// tried beside it (RFC 8305, 5).
	addressHeadStart = 250 * time.Millisecond
	// resolveTimeout bounds the wait for a name server: one that does not answer
	// should cost less than the attempt.
	resolveTimeout = 2500 * time.Millisecond
	// dialTimeout bounds the coming about of a connection: five tries of TCP's, after
	// which the next is sixteen seconds away and a new attempt is better.
	dialTimeout = 20 * time.Second
	// maxAddresses bounds how many addresses of a name are tried.
	maxAddresses = 16
)

// A dialFunc connects to one address.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// A dialer makes connections to servers.
type dialer struct {
	// custom, if not nil, is what the configuration has in place of all this but
	// the proxy.
	custom  func(ctx context.Context, network, addr string) (net.Conn, error)
	one     dialFunc
	small   dialFunc // for small packets
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	proxy   func(addr string) (*url.URL, error)

	mu sync.Mutex // guards the following
	// known is what each name has led to, what worked last first. There are no
	// more names than servers and proxies.
	known map[string][]netip.Addr
}

func newDialer(c *Config) *dialer {
	return &dialer{
		custom:  c.Dial,
		one:     carrier.NetDialer(false).DialContext,
		small:   carrier.NetDialer(true).DialContext,
		resolve: net.DefaultResolver.LookupNetIP,
		proxy:   c.Proxy,
		known:   make(map[string][]netip.Addr),
	}
}

// NewDial returns what connects to servers as an Agent does, for who keeps no
// tunnel: to whichever address of a name answers, and through the HTTP proxy that
// proxy names, if any. A nil proxy means none. With small packets the connections do
// where large ones vanish, and carry a sixth less.
func NewDial(proxy func(server string) (*url.URL, error), small bool) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := newDialer(&Config{Proxy: proxy})
	if small {
		return d.DialSmall
	}
	return d.DialContext
}

// DialContext makes the connection below TLS, through the proxy if there is one
// for addr.
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.connect(ctx, network, addr, d.one)
}

// DialSmall is DialContext for paths on which large packets vanish.
func (d *dialer) DialSmall(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.connect(ctx, network, addr, d.small)
}

func (d *dialer) connect(ctx context.Context, network, addr string, one dialFunc) (net.Conn, error) {
	via, err := d.proxyFor(addr)
	if err != nil {
		return nil, err
	}
	if via != nil {
		return d.dialProxy(ctx, via, addr, one)
	}
	return d.direct(ctx, network, addr, one)
}

// proxyFor is the proxy by which addr is reached; nil if there is none.
func (d *dialer) proxyFor(addr string) (*url.URL, error) {
	if d.proxy == nil {
		return nil, nil //nolint:nilnil // documented
	}
	via, err := d.proxy(addr)
	if err != nil {
		return nil, fmt.Errorf("choose proxy for %s: %w", addr, err)
	}
	return via, nil
}

// direct dials without a proxy.
func (d *dialer) direct(ctx context.Context, network, addr string, one dialFunc) (net.Conn, error) {
	if d.custom != nil {
		return d.custom(ctx, network, addr)
	}
	addrs, err := d.addresses(ctx, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var losers sync.WaitGroup
	defer losers.Wait() // they stop at once
	c, err := race(ctx, &losers, len(addrs), addressHeadStart, func(ctx context.Context, i int) (net.Conn, error) {
		return one(ctx, network, addrs[i].String())
	}, func(c net.Conn) { _ = c.Close() })
	if err != nil {
		return nil, err
	}
	d.worked(addr, c.RemoteAddr())
	return c, nil
}

// addresses are those of addr, HOST:PORT, in the order in which to try them.
// When no name server answers they are what they last were.
func (d *dialer) addresses(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, port, err := splitPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	if ip, perr := netip.ParseAddr(host); perr == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip, port)}, nil
	}
	lookup, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := d.resolve(lookup, "ip", host)
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.known[host]
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case (err != nil || len(found) == 0) && len(known) > 0:
		found = known
	case err != nil:
		if errors.Is(err, context.DeadlineExceeded) {
			err = &net.DNSError{Err: fmt.Sprintf("no answer within %v", resolveTimeout), Name: host, IsTimeout: true}
		}
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	case len(found) == 0:
		return nil, fmt.Errorf("resolve %s: %w", host, &net.DNSError{Err: "no address", Name: host, IsNotFound: true})
	default:
		found = arrange(found, known)
		d.known[host] = found
	}
	out := make([]netip.AddrPort, len(found))
	for i, ip := range found {
		out[i] = netip.AddrPortFrom(ip, port)
	}
	return out, nil
}

// arrange puts the families in turn, beginning with that of the first, which
// the resolver has sorted (RFC 6724), and the address that worked last in front
// of all if it is still one of them.
func arrange(found, known []netip.Addr) []netip.Addr {
	var first, second []netip.Addr
	for _, ip := range found {
		ip = ip.Unmap()
		switch {
		case len(first) == 0 || ip.Is4() == first[0].Is4():
			first = append(first, ip)
		default:
			second = append(second, ip)
		}
	}
	out := make([]netip.Addr, 0, len(found)+1)
	if len(known) > 0 && (slices.Contains(first, known[0]) || slices.Contains(second, known[0])) {
		out = append(out, known[0])
	}
	for i := range max(len(first), len(second)) {
		for _, family := range [][]netip.Addr{first, second} {
			if i < len(family) && !slices.Contains(out, family[i]) {
				out = append(out, family[i])
			}
		}
	}
	return out[:min(len(out), maxAddresses)]
}

// worked remembers which address of addr answered.
func (d *dialer) worked(addr string, remote net.Addr) {
	ip := addrOf(remote)
	host, _, err := net.SplitHostPort(addr)
	if err != nil || !ip.IsValid() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.known[host]
	if i := slices.Index(known, ip); i > 0 {
		rest := slices.Delete(slices.Clone(known), i, i+1)
		d.known[host] = append([]netip.Addr{ip}, rest...)
	}
}

// addrOf is the address in a; not valid if there is none.
func addrOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// hostPort is net.JoinHostPort for a number.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
