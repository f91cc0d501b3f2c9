// This file makes the client with which a node talks to the API server.

package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// APIConfig configures the client of the API server.
type APIConfig struct {
	// Host is the server's host and port, for requests and their errors. Required.
	Host string
	// TLS returns the CA, the name in the server's certificate if that is not Host's, and, in
	// GetClientCertificate, the node's certificate. It is called at the start and by Renew.
	// Required.
	TLS func() *tls.Config
	// Dial makes connections, through the tunnel or otherwise. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Answered, if not nil, is called with the HTTP status of each answer. It must not block.
	Answered func(status int)
	// Failed, if not nil, is called with why a request has no answer. It must not block.
	Failed func(err error)
	// UserAgent is what the server logs.
	UserAgent string
	// QPS and Burst bound requests: 50 a second, 100 at once.
	QPS   float32
	Burst int
}

// Timings of a connection to the API server. Watches are idle for minutes, so a dead
// connection must be detected by pings.
const (
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// headerTable bounds the tables of HPACK, in bytes, which both ends keep for each connection.
// The headers that all requests of a node have fit. 4096, the default, keeps the paths of the
// last 40 requests too.
const headerTable = 1024

// NewAPI makes a client that speaks protobuf over HTTP/2, and the connections
// that it uses.
func NewAPI(c APIConfig) (*apiclient.API, *Connections, error) {
	if c.Host == "" || c.TLS == nil || c.Dial == nil {
		return nil, nil, errors.New("node: APIConfig.Host, TLS and Dial are required")
	}
	conns := &Connections{dialer: connrotation.NewDialer(c.Dial), tls: c.TLS}
	conns.current.Store(conns.transport())
	cfg := &rest.Config{
		Host:      "https://" + c.Host,
		UserAgent: cmp.Or(c.UserAgent, "hawser-agent"),
		QPS:       cmp.Or(c.QPS, 50),
		Burst:     cmp.Or(c.Burst, 100),
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	// The client is made with a transport, so that client-go adds no dialer or certificate
	// watcher, whose goroutines cannot be stopped.
	api, err := apiclient.New(cfg, &http.Client{Transport: observed{conns, cfg.UserAgent, c.Answered, c.Failed}})
	if err != nil {
		return nil, nil, fmt.Errorf("make API client: %w", err)
	}
	return api, conns, nil
}

// Connections are a client's connections to the API server. All methods may be
// called at the same time.
type Connections struct {
	dialer  *connrotation.Dialer
	tls     func() *tls.Config
	current atomic.Pointer[http.Transport]
}

func (c *Connections) transport() *http.Transport {
	return &http.Transport{
		DialContext:           c.dialer.DialContext,
		TLSClientConfig:       c.tls().Clone(),
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   4,
		ExpectContinueTimeout: time.Second,
		// A decompressor stays allocated as long as its watch, and there is a watch for
		// each object that pods refer to.
		DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
			MaxEncoderHeaderTableSize: headerTable, MaxDecoderHeaderTableSize: headerTable,
		},
	}
}

// RoundTrip implements http.RoundTripper.
func (c *Connections) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.current.Load().RoundTrip(r)
}

// Close closes all connections and aborts their requests, for dead connections or a new
// certificate. Later requests make new ones.
func (c *Connections) Close() {
	c.dialer.CloseAll()
	c.current.Load().CloseIdleConnections()
}

// Renew makes later requests use new connections. Running requests, such as watches,
// continue; their connections are closed after them.
func (c *Connections) Renew() {
	c.current.Swap(c.transport()).CloseIdleConnections() // busy ones time out when idle
}

// observed names the client in each request, and tells the status of each answer.
type observed struct {
	http.RoundTripper
	userAgent string
	answered  func(status int) // may be nil
	failed    func(err error)  // likewise
}

// RoundTrip implements http.RoundTripper.
func (o observed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", o.userAgent)
	resp, err := o.RoundTripper.RoundTrip(r)
	switch {
	case err == nil && o.answered != nil:
		o.answered(resp.StatusCode)
	case err != nil && o.failed != nil:
		o.failed(err)
	}
	return resp, err
}
