// Clients of a load balancer at the server: whom it serves, what endpoints learn of them, and TLS
// from end to end.

package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/e2e/await"
)

// clients: the ranges and the annotation of the Service echo, which listens at an address.
func (c *cloud) clients(t *testing.T, at string) {
	ranges := func(cidr string) {
		c.mustKubectl(t, "", "patch", "service", "echo", "-p", fmt.Sprintf(`{"spec":{"loadBalancerSourceRanges":[%q]}}`, cidr))
	}
	ranges("192.0.2.0/24")
	eventually(t, "a client of another range is not served", func() error {
		if echoesAt(t, at) == nil {
			return errNotYet
		}
		return nil
	})
	ranges("127.0.0.0/8")
	eventually(t, "a client of the range is served", func() error { return echoesAt(t, at) })
	c.mustKubectl(t, "", "annotate", "service", "echo", "hawser.dev/proxy-protocol=v2")
	eventually(t, "the endpoint is told who connects", func() error { return introduced(t, at) })
	c.mustKubectl(t, "", "annotate", "service", "echo", "hawser.dev/proxy-protocol-")
	eventually(t, "it is told no more", func() error { return echoesAt(t, at) })
}

// introduced reports whether what the endpoint got, which it echoes, begins with the client's address.
func introduced(t *testing.T, at string) error {
	t.Helper()
	conn := dialEcho(t, at)
	if conn == nil {
		return errNotYet
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "ahoy"); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	if b, err := in.Peek(5); err != nil || string(b) == "ahoy\n" {
		return fmt.Errorf("it got %q: %w", b, errNotYet)
	}
	h, err := proxyproto.Read(in)
	if err != nil || h.Version != 2 || h.SourceAddr.String() != conn.LocalAddr().String() || h.DestinationAddr.String() != at {
		return fmt.Errorf("%+v of a connection from %v to %s: %w", h, conn.LocalAddr(), at, err)
	}
	return nil
}

// encrypts: a pod does TLS itself, and its certificate is what a client gets.
func (c *cloud) encrypts(t *testing.T) {
	port, target := await.FreePort(t), await.FreePort(t)
	c.roleInPodWith(t, "tls", fmt.Sprintf(`,"ports":[{"containerPort":%d}]`, target), `,"nodeName":"node-2"`, fmt.Sprintf("admission-webhook :%d", target))
	c.mustKubectl(t, "", "label", "pod", "tls", "app=tls")
	c.mustKubectl(t, "", "create", "service", "loadbalancer", "tls", fmt.Sprintf("--tcp=%d:%d", port, target))
	roots := x509.NewCertPool()
	if printed := c.mustKubectl(t, "", "logs", "tls"); !roots.AppendCertsFromPEM([]byte(printed)) {
		t.Fatalf("no certificate: %s", printed)
	}
	conf := &tls.Config{RootCAs: roots, ServerName: hookName, MinVersion: tls.VersionTLS13}
	eventually(t, "the pod's certificate is shown", func() error {
		conn, err := (&tls.Dialer{Config: conf}).DialContext(t.Context(), "tcp", net.JoinHostPort(balancerAddr, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	c.mustKubectl(t, "", "delete", "service", "tls")
	c.mustKubectl(t, "", "delete", "pod", "tls", "--now")
}

// drains: none of 10,000 connections fails while one of two endpoints ends in good order.
func (c *cloud) drains(t *testing.T, at string) {
	var clients errgroup.Group
	var n atomic.Int64
	gone := make(chan struct{})
	const clientsAtOnce, connections = 4, 10_000
	for range clientsAtOnce {
		clients.Go(func() error {
			for {
				select {
				case <-gone:
					if n.Load() >= connections {
						return nil
					}
				default:
				}
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
				if err == nil {
					err = errors.Join(echoes(conn), conn.Close())
				}
				if err != nil {
					return fmt.Errorf("after %d connections: %w", n.Load(), err)
				}
				n.Add(1)
			}
		})
	}
	c.mustKubectl(t, "", "delete", "pod", "echo-1", "--grace-period=20")
	close(gone)
	must(t, clients.Wait())
	t.Logf("%d connections", n.Load())
}
