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
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// APIConfig says how to reach the API server.
type APIConfig struct {
	// Host is the server's host and port as its certificate names it. Required.
	Host string
	// TLS has the CA and, in GetClientCertificate, the node's certificate; it is
	// cloned. Required.
	TLS *tls.Config
	// Dial makes connections, through the tunnel or otherwise. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// UserAgent is what the server logs.
	UserAgent string
	// QPS and Burst bound requests: 50 a second, 100 at once.
	QPS   float32
	Burst int
}

// Timings of a connection to the API server. Watches stand still for minutes, so a
// connection that is dead must be found out by asking.
const (
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// NewAPI makes a client that speaks protobuf over HTTP/2. closeConnections drops
// the connections it has, for when they are dead or a new certificate is to be
// shown; requests made afterwards make new ones.
func NewAPI(c APIConfig) (api kubernetes.Interface, closeConnections func(), err error) {
	if c.Host == "" || c.TLS == nil || c.Dial == nil {
		return nil, nil, errors.New("node: APIConfig.Host, TLS and Dial are required")
	}
	dialer := connrotation.NewDialer(c.Dial)
	transport := &http.Transport{
		DialContext:           dialer.DialContext,
		TLSClientConfig:       c.TLS.Clone(),
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   4,
		ExpectContinueTimeout: time.Second,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
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
	// The client is made for the transport, so that client-go adds no dialing or
	// certificate watching of its own, whose goroutines could not be ended.
	api, err = kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: userAgent{transport, cfg.UserAgent}})
	if err != nil {
		return nil, nil, fmt.Errorf("make API client: %w", err)
	}
	return api, func() {
		dialer.CloseAll()
		transport.CloseIdleConnections()
	}, nil
}

// userAgent names the client in each request.
type userAgent struct {
	http.RoundTripper
	name string
}

// RoundTrip implements http.RoundTripper.
func (u userAgent) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", u.name)
	return u.RoundTripper.RoundTrip(r)
}
