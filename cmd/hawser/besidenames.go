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
	"strings"
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

// asker is how the API server is asked, without a look at what it permits.
func asker(client *clientrest.Config) (transport http.RoundTripper, url string, err error) {
	if transport, err = clientrest.TransportFor(client); err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	at, _, err := clientrest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	return transport, at.JoinPath("version").String(), nil
}

// learnNames adds those in the certificate that the API server shows. Until it does,
// nothing can be asked of it either, and learnNames waits. It logs what is the matter with
// it and returns what it was when it answered.
func learnNames(ctx context.Context, client *clientrest.Config, names *auth.ServerNames, log *slog.Logger) ([]remark, error) {
	transport, url, err := asker(client)
	if err != nil {
		return nil, err
	}
	last := ""
	for {
		resp, err := ask(ctx, transport, url)
		if err == nil {
			learn(resp, names)
			found := answered(resp, client)
			for i := range found {
				found[i].log(log)
			}
			return found, nil
		}
		if r := unanswered(err, client); r.text != last && ctx.Err() == nil {
			last = r.text
			r.log(log)
		}
		if !pause(ctx, askAgain) {
			return nil, nil
		}
	}
}

// learn adds the names in the certificate of the server that has answered.
func learn(resp *http.Response, names *auth.ServerNames) {
	if resp.TLS == nil {
		return
	}
	cert := resp.TLS.PeerCertificates[0]
	names.Add(cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		names.Add(ip.String())
	}
}

// notAccepted is said of an API server that does not know who the hub is. Files that a kubeconfig
// names are followed, and what it says itself is read once.
func notAccepted(client *clientrest.Config) string {
	const refused, wrong = "the API server does not accept ", ", which --kubeconfig names: it is wrong, or has expired; replace "
	switch {
	case client.BearerTokenFile != "":
		return refused + "the token in " + client.BearerTokenFile + wrong + client.BearerTokenFile + ", which is followed"
	case client.BearerToken != "", client.Username != "", len(client.CertData) > 0:
	case client.CertFile != "":
		return refused + "the certificate in " + client.CertFile + wrong + client.CertFile + " and " + client.KeyFile + ", which are followed"
	case client.ExecProvider != nil:
		return refused + "what the program " + client.ExecProvider.Command + " gives, which --kubeconfig names; it is asked again, and the hub goes on when it gives what is accepted"
	}
	return refused + "the token or the certificate in --kubeconfig: it is wrong, or has expired; put another into the file and start the hub again"
}

// answered is what is the matter with an API server that has answered: everybody who is
// authenticated may ask for the version.
func answered(resp *http.Response, client *clientrest.Config) (found []remark) {
	clock, _ := http.ParseTime(resp.Header.Get("Date")) // none is zero
	if off := time.Since(clock).Round(time.Second); !clock.IsZero() && off.Abs() >= maxSkew {
		found = append(found, remark{
			text:  "the clocks of this machine and of the API server differ: certificates and leases are judged wrongly until they agree (NTP)",
			attrs: []any{"here", time.Now().UTC().Format(time.RFC3339), "there", clock.UTC().Format(time.RFC3339), "ahead", off},
		})
	}
	if resp.StatusCode == http.StatusUnauthorized {
		found = append(found, remark{text: notAccepted(client), attrs: []any{"cluster", client.Host}})
	}
	return found
}

// unanswered is what is the matter with an API server that is of no use now.
func unanswered(err error, client *clientrest.Config) remark {
	text := "the API server cannot be reached; the hub goes on when it can"
	var invalid x509.CertificateInvalidError
	switch {
	case client.ExecProvider != nil && strings.HasPrefix(err.Error(), "getting credentials: "): // client-go has no type for it
		text = "the program that --kubeconfig names gives no credentials; the hub goes on when it does"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		text = "the API server's certificate is not valid by the clock of this machine: set the clock, or renew the certificate; the hub goes on when it is"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		text = "what answers as the API server is not it, by the kubeconfig; the hub goes on when it is"
	}
	return remark{text: text, attrs: []any{"cluster", client.Host, "here", time.Now().UTC().Format(time.RFC3339), "error", err}}
}

// maxSkew is how far clocks are apart when it is told: certificates that were just
// signed count from five minutes before.
const maxSkew = 5 * time.Minute

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
