// What the cluster's API server is called, and what it answers when it is first asked.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	last := ""
	for {
		resp, err := ask(ctx, transport, url.JoinPath("version").String())
		if err == nil {
			told(resp, client.Host, names, log)
			return nil
		}
		if text := unanswered(err); text != last && ctx.Err() == nil {
			last = text
			log.Warn(text, "cluster", client.Host, "here", time.Now().UTC().Format(time.RFC3339), "error", err)
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// told adds the names in the certificate of the server that has answered, and warns of what
// is the matter: everybody who is authenticated may ask for the version.
func told(resp *http.Response, cluster string, names *auth.ServerNames, log *slog.Logger) {
	clock, _ := http.ParseTime(resp.Header.Get("Date")) // none is zero
	tellClock(clock, log)
	if resp.StatusCode == http.StatusUnauthorized {
		log.Warn("the API server does not accept the token or the certificate in --kubeconfig: it is wrong, or has expired; put another into the file and start the hub again", "cluster", cluster)
	}
	if resp.TLS == nil {
		return
	}
	cert := resp.TLS.PeerCertificates[0]
	names.Add(cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		names.Add(ip.String())
	}
}

// unanswered says what is the matter with an API server that is of no use yet.
func unanswered(err error) string {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the API server's certificate is not valid by the clock of this machine: set the clock, or renew the certificate; the hub goes on when it is"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "what answers as the API server is not it, by the kubeconfig; the hub goes on when it is"
	}
	return "the API server cannot be reached; the hub goes on when it can"
}

// maxSkew is how far clocks may be apart before it is told: certificates that were just
// signed count from five minutes before.
const maxSkew = 5 * time.Minute

// tellClock warns if the API server's clock, zero if it does not tell, is another than
// that of this machine.
func tellClock(clock time.Time, log *slog.Logger) {
	off := time.Since(clock).Round(time.Second)
	if clock.IsZero() || off.Abs() < maxSkew {
		return
	}
	log.Warn("the clocks of this machine and of the API server differ: certificates and leases are judged wrongly until they agree (NTP)",
		"here", time.Now().UTC().Format(time.RFC3339), "there", clock.UTC().Format(time.RFC3339), "ahead", off)
}

// ask returns what a server answers, without the body.
func ask(ctx context.Context, transport http.RoundTripper, url string) (*http.Response, error) {
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
	return resp, resp.Body.Close()
}
