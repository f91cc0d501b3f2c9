// Clients of an etcd cluster run elsewhere.

package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
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

// dialTimeout is how long an external cluster is waited for at start.
const dialTimeout = 20 * time.Second

// tellAfter is how long it is waited for in silence.
const tellAfter = 2 * time.Second

// External names an etcd cluster and how to prove oneself to it.
type External struct {
	// Servers are the members' client URLs, required, such as
	// https://10.0.0.1:2379.
	Servers []string

	// CAFile verifies the members, CertFile and KeyFile are what this server
	// shows them; all PEM. Without CertFile none is shown.
	CAFile, CertFile, KeyFile string

	// Wait is how long Dial waits for an answer; zero means 20 s.
	Wait time.Duration

	// Dial makes the connections, TLS aside. Nil means that they are dialed.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Dial connects to the cluster e and waits until one of its members answers, at
// most e.Wait. If none does, the error is a *DialError. The caller closes the client. Log is
// told when none has answered for two seconds, and gets the client's warnings until ctx is done;
// nil means discard.
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
		Logger:               zapLogger(ctx, log, nil),
	}
	if e.Dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if _, after, ok := strings.Cut(addr, "//"); ok { // a URL
				addr = after
			}
			return e.Dial(ctx, "tcp", addr)
		}))
	}
	var err error
	if cfg.TLS, err = e.tls(); err != nil {
		return nil, fmt.Errorf("etcd: client certificate: %w", err)
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	wait := cmp.Or(e.Wait, dialTimeout)
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	telling := time.AfterFunc(tellAfter, func() { log.Warn("etcd does not answer yet", "servers", e.Servers, "wait", wait) })
	defer telling.Stop()
	if _, err = client.Get(waiting, "health"); err != nil {
		_ = client.Close()
		return nil, e.diagnose(ctx, cfg.TLS, err)
	}
	return client, nil
}

// tls is how the members are met; nil if e names no files.
func (e External) tls() (*tls.Config, error) {
	if e.CAFile == "" && e.CertFile == "" {
		return nil, nil //nolint:nilnil // as clientv3.Config has it
	}
	return transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}.ClientConfig()
}
