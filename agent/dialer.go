// Dialer: connects to the first address of a server's name that answers.

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
	// addressHeadStart is the delay before the next address is tried concurrently (RFC
	// 8305, 5).
	addressHeadStart = 250 * time.Millisecond
	// resolveTimeout bounds the wait for a name server if addresses of the name are known.
	resolveTimeout = 2500 * time.Millisecond
	// firstResolveTimeout bounds it if none is known. The resolver asks the next name server
	// after 5 seconds (resolv.conf(5), timeout).
	firstResolveTimeout = 20 * time.Second
	// dialTimeout bounds a TCP connect: it allows five SYNs. The sixth would follow 16
	// seconds later, and a new attempt is faster.
	dialTimeout = 20 * time.Second
	// maxAddresses bounds how many addresses of a name are tried.
	maxAddresses = 16
)

// A dialFunc connects to one address.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// A dialer makes connections to servers.
type dialer struct {
	// custom, if not nil, is Config.Dial, which replaces everything but the proxy.
	custom  func(ctx context.Context, network, addr string) (net.Conn, error)
	one     dialFunc
	small   dialFunc // for small packets
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	proxy   func(addr string) (*url.URL, error)

	mu sync.Mutex // guards the following
	// known has the addresses of each name in the order in which to try them: the one that
	// answered last first, those that failed after they had connected last. There are no more
	// names than servers and proxies.
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

// NewDial returns a dial func that connects to servers as an Agent does, for clients
// without a tunnel: to the first address of a name that answers, and through the HTTP proxy
// that proxy returns, if any. A nil proxy means none. Connections with small packets work
// on paths that drop large ones, at a sixth less throughput.
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

// DialSmall is DialContext for paths that drop large packets.
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

// proxyFor returns the proxy for addr; nil if there is none.
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
	r, err := d.reach(ctx, network, addr, one)
	switch {
	case err != nil:
		return nil, err
	case d.custom != nil:
		return r.Conn, nil
	}
	silence := fmt.Sprintf("%v accepts connections and does not answer", r.RemoteAddr())
	return d.await(ctx, r, r.Conn, addr, unansweredError(silence), r.took), nil
}

// reach connects to the first address of addr's name that accepts a connection.
func (d *dialer) reach(ctx context.Context, network, addr string, one dialFunc) (*reached, error) {
	if d.custom != nil {
		c, err := d.custom(ctx, network, addr)
		return &reached{Conn: c}, err
	}
	addrs, err := d.addresses(ctx, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var losers sync.WaitGroup
	defer losers.Wait() // they stop at once
	return race(ctx, &losers, len(addrs), addressHeadStart, func(ctx context.Context, i int) (*reached, error) {
		began := time.Now()
		c, err := one(ctx, network, addrs[i].String())
		return &reached{Conn: c, took: time.Since(began), others: len(addrs) > 1}, err
	}, func(r *reached) { _ = r.Close() })
}

// addresses resolves addr, HOST:PORT, to addresses in the order in which to try them. If no
// name server answers it returns the last known ones.
func (d *dialer) addresses(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, port, err := splitPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	if ip, perr := netip.ParseAddr(host); perr == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip, port)}, nil
	}
	d.mu.Lock()
	limit := firstResolveTimeout
	if len(d.known[host]) > 0 {
		limit = resolveTimeout
	}
	d.mu.Unlock()
	found, err := d.lookUp(ctx, host, limit)
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
			err = &net.DNSError{Err: fmt.Sprintf("no answer within %v", limit), Name: host, IsTimeout: true}
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

// lookUp asks the name servers. They are given none of ctx's values: a trace of connections
// (httptrace) would be told of those to name servers, too.
func (d *dialer) lookUp(ctx context.Context, host string, limit time.Duration) ([]netip.Addr, error) {
	bare, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return d.resolve(bare, "ip", host)
}

// arrange returns the found addresses. Those that are known come first, in the order of known.
// The others alternate the address families, beginning with that of the first address, as
// sorted by the resolver (RFC 6724).
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
	out := make([]netip.Addr, 0, len(found))
	for _, ip := range known {
		if slices.Contains(first, ip) || slices.Contains(second, ip) {
			out = append(out, ip)
		}
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

// reorder puts an address of addr's host before the others, or after them.
func (d *dialer) reorder(addr string, remote net.Addr, first bool) {
	ip := addrOf(remote)
	host, _, err := net.SplitHostPort(addr)
	if err != nil || !ip.IsValid() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.known[host], ip)
	if i < 0 {
		return
	}
	rest := slices.Delete(slices.Clone(d.known[host]), i, i+1)
	if first {
		d.known[host] = slices.Insert(rest, 0, ip)
	} else {
		d.known[host] = append(rest, ip)
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
