// Clients of an etcd cluster run elsewhere.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// dialTimeout bounds the wait for an external cluster at start.
const dialTimeout = 20 * time.Second

// External names an etcd cluster and how to prove oneself to it.
type External struct {
	// Servers are the members' client URLs, required, such as
	// https://10.0.0.1:2379.
	Servers []string

	// CAFile verifies the members, CertFile and KeyFile are what this server
	// shows them; all PEM. Without CertFile none is shown.
	CAFile, CertFile, KeyFile string

	// Dial makes the connections, TLS aside. Nil means that they are dialed.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Dial connects to the cluster e and waits until one of its members answers, at
// most 20 s. The caller closes the client. Log gets the client's warnings until
// ctx is done; nil means discard.
func Dial(ctx context.Context, e External, log *slog.Logger) (*clientv3.Client, error) {
	if len(e.Servers) == 0 {
		return nil, errors.New("etcd: no servers given")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg := clientv3.Config{
		Endpoints:            e.Servers,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second,
		Logger:               zapLogger(ctx, log),
	}
	if e.Dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if _, after, ok := strings.Cut(addr, "//"); ok { // a URL
				addr = after
			}
			return e.Dial(ctx, "tcp", addr)
		}))
	}
	if e.CAFile != "" || e.CertFile != "" {
		info := transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
		tc, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd: client certificate: %w", err)
		}
		cfg.TLS = tc
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err = client.Get(ctx, "health"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("etcd: no answer from %s: %w", strings.Join(e.Servers, ","), err)
	}
	return client, nil
}
