// The front ends through which others use the hub: HTTP CONNECT and konnectivity's gRPC,
// each on a port with mutual TLS and on a unix socket.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/server/konnectivity"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// connectPort is where CONNECT is served.
const connectPort = 8131

// A frontOption says where one kind of front end listens: --KIND-port and --KIND-uds.
type frontOption struct {
	kind, label string // the label is of metrics and logs, before "tls" and "unix"
	alpn        string
	port        int
	uds         string
}

// frontOptions are the kinds.
type frontOptions struct{ connect, konnectivity frontOption }

func (o *frontOptions) addFlags(f *pflag.FlagSet) {
	o.connect = frontOption{kind: "connect", alpn: "http/1.1"}
	o.konnectivity = frontOption{kind: "konnectivity", label: "konnectivity-", alpn: "h2"}
	f.IntVar(&o.connect.port, "connect-port", connectPort, "port of the HTTP CONNECT front end (mutual TLS); 0 turns it off")
	f.StringVar(&o.connect.uds, "connect-uds", "", "unix socket of the HTTP CONNECT front end (mode 0600)")
	f.IntVar(&o.konnectivity.port, "konnectivity-port", 0, "port of the front end that speaks konnectivity's gRPC (mutual TLS); 0 turns it off")
	f.StringVar(&o.konnectivity.uds, "konnectivity-uds", "", "unix socket of the front end that speaks konnectivity's gRPC (mode 0600)")
}

func (o *frontOptions) all() []frontOption { return []frontOption{o.connect, o.konnectivity} }

// check refuses what cannot work, naming the flag. Ports has those that are taken, by the
// flags that take them, and gets more.
func (o *frontOptions) check(ports map[int]string) error {
	sockets := map[string]string{}
	for _, f := range o.all() {
		flag := "--" + f.kind + "-port"
		if f.port < 0 || f.port > 65535 {
			return fmt.Errorf("%s %d: want 0 (off) to 65535", flag, f.port)
		}
		if other := ports[f.port]; f.port != 0 && other != "" {
			return fmt.Errorf("%s and %s are both %d: they need a port each", flag, other, f.port)
		}
		ports[f.port] = flag
		if f.uds == "" {
			continue
		}
		flag = "--" + f.kind + "-uds"
		if err := connect.CheckUnix(f.uds); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		if other := sockets[f.uds]; other != "" {
			return fmt.Errorf("%s and %s are both %s: they need a socket each", flag, other, f.uds)
		}
		sockets[f.uds] = flag
	}
	return nil
}

// A front is a front end and where it listens.
type front struct {
	server interface {
		Serve(ctx context.Context, l net.Listener) error
	}
	listener net.Listener
}

// openFronts opens what o asks for.
func (t *tunnels) openFronts(ctx context.Context, o *serverOptions, keys *keyring) error {
	expiry := &clientExpiry{log: t.log}
	for _, f := range o.fronts.all() {
		if f.port != 0 {
			l, err := listen(ctx, "--"+f.kind+"-port", o.listenAddress(f.port))
			if err != nil {
				return err
			}
			conf, err := carrier.ServerTLS(keys.clients, f.alpn)
			if err != nil {
				return errors.Join(err, l.Close())
			}
			if err := t.addFront(f, "tls", connect.ListenTLS(l, conf), o.shutdown.grace, expiry.after(connectClientsOnly)); err != nil {
				return err
			}
		}
		if f.uds != "" {
			l, err := connect.ListenUnix(ctx, f.uds)
			if err != nil {
				return fmt.Errorf("--%s-uds: %w", f.kind, err)
			}
			if err := t.addFront(f, "unix", l, o.shutdown.grace, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFront takes l over.
func (t *tunnels) addFront(o frontOption, how string, l net.Listener, drain time.Duration, authorize func(*tls.ConnectionState) error) error {
	name := o.label + how
	log := t.log.With("front", name)
	metrics := prometheus.WrapRegistererWith(prometheus.Labels{"front": name}, t.metrics)
	f := front{listener: l}
	var err error
	if o.kind == "connect" {
		f.server, err = connect.New(connect.Config{
			Dial: t.dialNames, Authorize: ofRequest(authorize), Caller: ofRequest(t.callers()), Trace: t.traces.ofRequest(),
			DrainTimeout: drain, Log: log, Metrics: metrics,
		})
	} else {
		f.server, err = konnectivity.New(konnectivity.Config{
			Dial: t.dialNames, Authorize: authorize, Caller: t.callers(), Trace: t.traces.ofRequest(),
			DrainTimeout: drain, Log: log, Metrics: metrics,
		})
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	t.fronts = append(t.fronts, f)
	return nil
}

// dialNames dials what clients of the front ends name: what the hub knows, and services.
func (t *tunnels) dialNames(ctx context.Context, network, addr string) (net.Conn, error) {
	if t.services == nil {
		return t.hub.DialContext(ctx, network, addr)
	}
	return t.services.dial(ctx, t.hub.DialContext, network, addr)
}

// ofRequest has f look at a request's connection; nil if f is.
func ofRequest[T any](f func(*tls.ConnectionState) T) func(*http.Request) T {
	if f == nil {
		return nil
	}
	return func(r *http.Request) T { return f(r.TLS) }
}

// connectClientsOnly lets in those whose certificate is for this: to be a node
// is not enough to reach other nodes.
func connectClientsOnly(s *tls.ConnectionState) error {
	if s == nil || len(s.PeerCertificates) == 0 {
		return errors.New("a client certificate is required")
	}
	subject := s.PeerCertificates[0].Subject
	if subject.CommonName == pki.ConnectClientUser || slices.Contains(subject.Organization, pki.AdminGroup) {
		return nil
	}
	return fmt.Errorf("%q may not connect to nodes: use the certificate %s.crt", subject.CommonName, pki.ConnectClient)
}

// callers names who comes to a front end; nil if nobody wants to know.
func (t *tunnels) callers() func(*tls.ConnectionState) string {
	if t.streams == nil {
		return nil
	}
	return func(s *tls.ConnectionState) string {
		if s == nil || len(s.PeerCertificates) == 0 {
			return unixCaller
		}
		return s.PeerCertificates[0].Subject.CommonName
	}
}
