// What the cluster's API server is called, and what it answers when it is first asked.

package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	clientrest "k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
)

// askPatience is how long the API server may take to show its certificate, and
// askAgain is the pause before it is asked again.
const askPatience, askAgain = 10 * time.Second, 2 * time.Second

// namesBeside are the names of the cluster's API server as far as they are known before
// it is asked: where it is reached, and what --tls-san says.
func (o *serverOptions) namesBeside(client *clientrest.Config) (*auth.ServerNames, error) {
	url, _, err := clientrest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return auth.NewServerNames(append([]string{url.Hostname(), client.ServerName}, o.tlsSANs...)...), nil
}

// learnNames adds those in the certificate that the API server shows. Until it does,
// nothing can be asked of it either, and learnNames waits.
func learnNames(ctx context.Context, client *clientrest.Config, names *auth.ServerNames, log *slog.Logger) error {
	transport, err := clientrest.TransportFor(client)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	url, _, err := clientrest.DefaultServerUrlFor(client)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	for try := 1; ; try++ {
		cert, err := shownBy(ctx, transport, url.String())
		if err == nil {
			if cert != nil {
				names.Add(cert.DNSNames...)
				for _, ip := range cert.IPAddresses {
					names.Add(ip.String())
				}
			}
			return nil
		}
		if try == 1 && ctx.Err() == nil {
			log.Warn("the API server does not answer; controllers start when it does", "cluster", client.Host, "error", err)
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// shownBy returns the certificate of a server, whatever it answers; nil if it has none.
func shownBy(ctx context.Context, transport http.RoundTripper, url string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.TLS == nil {
		return nil, nil
	}
	return resp.TLS.PeerCertificates[0], nil
}
