// Package bootstrap gets a node its certificates.
//
// A machine that joins has the server's address, a join token and a hash of the
// cluster's CA. Join makes an identity of them: it trusts the CA that the server shows
// if its hash matches, requests a client certificate with the token, waits until it is
// approved and signed, and stores key and certificate in the data directory. From then
// on it needs no token. A Rotation renews the certificate before it expires, and gets
// and renews the serving certificate of the node's own API. It also follows changes of
// the cluster's authorities: of the server, and of the clients of the node's API.
//
// A node whose certificate has expired while it was disconnected is still that node,
// and its pods continue. So an expired certificate is still an identity. No server
// admits it, and the Rotation tries to replace it: it joins again if it has a token, with
// the key that it has, because that key holds the node's name. Without a token it logs what
// an administrator can do. The same holds for a certificate that is refused for another reason
// (Rotation.Refused): its authority was replaced. It holds, with another key, for a node that is
// not admitted any more with a valid certificate (Rotation.Reject): its Node was deleted, it was
// revoked, or another machine has taken its name.
//
// This is the TLS bootstrapping of Kubernetes, with the same signers, subjects and
// usages; the hash is that of kubeadm: SHA-256 over the CA's public key
// (SubjectPublicKeyInfo, RFC 7469 section 2.4). Only a CA with such a hash is ever
// trusted. A permanent failure is returned at once.
package bootstrap

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/apiclient"
)

// Names of the files in DIR/pki.
const (
	caFile      = "ca.crt"                     // of the server
	clientsFile = "client-ca.crt"              // of clients of the kubelet API
	formerFile  = "former-ca.crt"              // of the server, before
	nameFile    = "apiserver-name"             // of the API server, if it was found out
	clientFile  = "kubelet-client-current.pem" // certificate and key
	servingFile = "kubelet-server-current.pem" // certificate and key
	pendingFile = "kubelet-client.key.pending" // until there is a certificate for it
)

// Config configures Join.
type Config struct {
	// Servers are https://HOST:PORT, tried in turn. Required.
	Servers []string
	// Token and Pins are needed while there is no certificate. If the stored one has
	// expired, Token is enough: the CA is stored too.
	Token Token
	Pins  []Pin
	// TokenFile is read in place of Token each time a token is needed, so that the token can
	// be replaced while the node runs. The file need not exist before.
	TokenFile string
	// APIServerName is the name in the certificate of the API server. Empty means the host of
	// the server, or, if the API server is another program than the hub, the name that the
	// cluster publishes (ConfigMap kube-public/cluster-info, as with kubeadm). That is stored
	// in the data directory.
	APIServerName string
	// NodeName is the name of the node. Required.
	NodeName string
	// Dir is the data directory; keys and certificates are in DIR/pki. Required.
	Dir string
	// Lifetime to ask for; zero leaves it to the signer.
	Lifetime time.Duration
	// TokenPatience is how long a refused token is tried again: an API server that has just
	// started may not have read its tokens yet. Zero means no retry.
	TokenPatience time.Duration
	// ApprovalTimeout bounds the wait for the certificate: 15 min.
	ApprovalTimeout time.Duration
	// Dial makes connections; nil dials TCP, through HTTPS_PROXY if that is set.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	Log  *slog.Logger // nil discards
}

// Back-off between rounds of all servers.
const (
	retryFirst = time.Second
	retryLimit = 30 * time.Second
)

// Join returns the node's identity: the stored one, even if its certificate is not valid
// now, or else a new one. While no server can be reached it keeps trying, with a log line
// for each new reason. A server that answers with Retry-After is not asked for that time,
// at most 5 min. Permanent errors are returned: ErrTokenRejected after
// Config.TokenPatience, *PinError, *DeniedError, *ClockError, and errors of files.
func Join(ctx context.Context, c Config) (*Identity, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	id, err := load(&c)
	if err != nil || id != nil {
		return id, err
	}
	if err := c.canJoin(); err != nil {
		return nil, err
	}
	have, last, r := c.kept(), "", round{busyUntil: map[string]time.Time{}}
	patience := time.Time{} // when it ends
	for wait := retryFirst; ; wait = min(2*wait, retryLimit) {
		for _, server := range c.Servers {
			if !r.may(server, time.Now()) {
				continue
			}
			id, err := c.join(ctx, server, have)
			r.note(server, err, time.Now())
			if err == nil {
				c.Log.Info("the node has its certificate", "node", c.NodeName, "until", id.expires())
				return id, nil
			}
			if patience.IsZero() && errors.Is(err, ErrTokenRejected) {
				patience = time.Now().Add(c.TokenPatience)
			}
			waits := errors.Is(err, ErrTokenRejected) && time.Now().Before(patience)
			if ctx.Err() != nil || final(err) && !waits {
				return nil, err
			}
			if msg := err.Error(); msg != last {
				c.complain(server, err)
				last = msg
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("join the cluster: %w", context.Cause(ctx))
		case <-time.After(r.pause(c.Servers, wait, time.Now())):
		}
	}
}

// Joined reports whether a client certificate is stored: then Join needs no server.
func (c *Config) Joined() bool {
	_, err := os.Lstat(c.path(clientFile))
	return err == nil
}

// NeedsToken reports whether a join token is needed now: there is no client certificate, or it
// has expired. Its error is that of a file.
func (c *Config) NeedsToken() (bool, error) {
	if err := c.check(); err != nil {
		return false, err
	}
	id, err := load(c)
	return err == nil && (id == nil || time.Now().After(id.expires())), err
}

// Check returns an error if Join would fail before it asks a server. It makes nothing.
func (c *Config) Check() error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Joined() {
		return nil
	}
	return c.canJoin()
}

// canJoin returns an error if something is missing for joining.
func (c *Config) canJoin() error {
	if _, err := c.token(); err != nil {
		return fmt.Errorf("node %q has no certificate in %s yet: a join token is needed (--token-file, HAWSER_TOKEN or --token): %w", c.NodeName, c.pki(), err)
	}
	if len(c.Pins) == 0 {
		return errors.New("the cluster's CA is not known yet: its hash is needed (--discovery-token-ca-cert-hash)")
	}
	return nil
}

// token is the join token; errNoToken if there is none.
func (c *Config) token() (Token, error) {
	if c.TokenFile == "" {
		if c.Token == (Token{}) {
			return Token{}, errNoToken
		}
		return c.Token, nil
	}
	token, err := ReadToken(c.TokenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Token{}, fmt.Errorf("%w; it looks for one in %s", errNoToken, c.TokenFile)
	}
	return token, err
}

// complain logs why a server has not given a certificate yet.
func (c *Config) complain(server string, err error) {
	log := c.Log.With("server", server, "err", err)
	if after := retryAfterIn(err); after > 0 {
		log = log.With("after", after)
	}
	log.Warn("cannot join yet, will keep trying")
}

func (c *Config) check() error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.ApprovalTimeout = cmp.Or(c.ApprovalTimeout, 15*time.Minute)
	if err := auth.CheckNodeName(c.NodeName); err != nil {
		return err
	}
	if c.Dir == "" {
		return errors.New("bootstrap: Config.Dir is required")
	}
	if len(c.Servers) == 0 {
		return errors.New("no server is named (--server)")
	}
	for _, s := range c.Servers {
		if _, err := parseServer(s); err != nil {
			return err
		}
	}
	return nil
}

// parseServer returns host and port of a server's URL.
func parseServer(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil:
		return nil, fmt.Errorf("server %q is not https://HOST:PORT", s)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("server %q is not https://HOST:PORT: nothing may follow the port", s)
	}
	return u, nil
}

func (c *Config) pki() string { return filepath.Join(c.Dir, "pki") }

func (c *Config) path(name string) string { return filepath.Join(c.pki(), name) }

// join gets a certificate from one server and stores it. have is as with obtain.
func (c *Config) join(ctx context.Context, server string, have *tls.Certificate) (*Identity, error) {
	data, err := c.obtain(ctx, server, have)
	if err != nil {
		return nil, err
	}
	if err := writeFile(c.path(clientFile), data, 0o600); err != nil {
		return nil, err
	}
	if err := remove(c.path(pendingFile)); err != nil {
		return nil, err
	}
	return load(c)
}

// obtain gets a certificate from one server and returns it with its key, PEM encoded. have is
// the node's present certificate, whose key may hold its name; nil means that the node needs
// another key.
func (c *Config) obtain(ctx context.Context, server string, have *tls.Certificate) ([]byte, error) {
	u, err := parseServer(server)
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	key, err := c.joinKey(have)
	if err != nil {
		return nil, err
	}
	cert, by, found, err := c.certify(ctx, u, token, key, have)
	if err != nil {
		return nil, c.cannotJoin(server, token, err)
	}
	if err := c.keepRoot(by.ca()); err != nil {
		return nil, err
	}
	if found != "" {
		if err := writeFile(c.path(nameFile), []byte(found+"\n"), 0o644); err != nil {
			return nil, err
		}
	}
	return encodePair(cert, key)
}

// cannotJoin turns err into the error of Join.
func (c *Config) cannotJoin(server string, token Token, err error) error {
	var (
		denied *DeniedError
		pin    *PinError
		clock  *ClockError
	)
	switch {
	case errors.As(err, &pin):
		return pin
	case errors.As(err, &clock):
		return clock
	case errors.As(err, &denied), errors.Is(err, errNotOurs):
		// The name of a request depends on its key: another try needs another key.
		return errors.Join(err, c.changeKey())
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w (token id %s at %s)", ErrTokenRejected, token.ID, server)
	}
	return fmt.Errorf("join the cluster at %s: %w", server, err)
}

// certify gets a certificate from one server, and the name of its API server if it had to
// be discovered. by has verified the server. have is as with obtain.
func (c *Config) certify(ctx context.Context, server *url.URL, token Token, key *ecdsa.PrivateKey, have *tls.Certificate) (cert []byte, by *pinned, found string, err error) {
	by = &pinned{host: cmp.Or(c.apiServerName(), server.Hostname()), pins: c.Pins}
	cert, err = c.ask(ctx, server.String(), token, key, have, by)
	if !c.unnamed(err) {
		return cert, by, "", err
	}
	if by, found, err = c.named(ctx, server.String(), token, err); err != nil {
		return nil, nil, "", err
	}
	cert, err = c.ask(ctx, server.String(), token, key, have, by)
	return cert, by, found, err
}

// named returns a verifier of the API server by what the cluster publishes, and the API
// server's name. If nothing is published for this machine the error is err, which led to the
// call.
func (c *Config) named(ctx context.Context, server string, token Token, err error) (*pinned, string, error) {
	info, ierr := c.discover(ctx, server, token)
	if errors.Is(ierr, errNotPublished) || errors.Is(ierr, errNotReadable) {
		if pin := (*PinError)(nil); errors.As(err, &pin) && len(pin.Have) == 0 {
			err = &PinError{Server: pin.Server, Want: pin.Want, Shown: pin.Shown, Unnamed: ierr}
		}
		return nil, "", err
	}
	if ierr != nil {
		return nil, "", ierr
	}
	return &pinned{host: cmp.Or(c.APIServerName, info.name), pins: c.Pins, known: info.cas}, info.name, nil
}

// unnamed reports whether the cause of err may be that the API server is another program
// than the hub: it shows no CA, or its certificate is not for the hub's host.
func (c *Config) unnamed(err error) bool {
	var pin *PinError
	var host x509.HostnameError
	return errors.As(err, &pin) || errors.As(err, &host) && c.APIServerName == ""
}

// ask requests a client certificate from a server, in place of have if that is not nil.
func (c *Config) ask(ctx context.Context, server string, token Token, key *ecdsa.PrivateKey, have *tls.Certificate, by *pinned) ([]byte, error) {
	transport := c.transport(by.config())
	defer transport.CloseIdleConnections()
	client, err := apiclient.New(
		&rest.Config{Host: server, QPS: -1, ContentConfig: rest.ContentConfig{
			ContentType: "application/json", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		}},
		&http.Client{Transport: bearer{busyTransport{transport}, token}})
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", server, err)
	}
	r := &request{
		api: client.CSRs, log: c.Log, kind: clientCertificate,
		node: c.NodeName, key: key, replaces: have, lifetime: c.Lifetime, timeout: c.ApprovalTimeout,
	}
	return r.certificate(ctx)
}

// apiServerName is the configured or stored name; empty if there is none.
func (c *Config) apiServerName() string {
	if c.APIServerName != "" {
		return c.APIServerName
	}
	kept, _ := os.ReadFile(c.path(nameFile)) // the file exists if a name was discovered
	return strings.TrimSpace(string(kept))
}

func (c *Config) transport(conf *tls.Config) *http.Transport {
	t := &http.Transport{
		TLSClientConfig:       conf,
		TLSHandshakeTimeout:   10 * time.Second,
		ForceAttemptHTTP2:     true,
		ResponseHeaderTimeout: time.Minute,
		DialContext:           c.Dial,
		// A watch without events may be a dead connection.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	if c.Dial == nil {
		t.Proxy = http.ProxyFromEnvironment
		t.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	return t
}

// bearer adds a token to each request, and the name of the client that the API server takes for
// the manager of the request's fields.
type bearer struct {
	http.RoundTripper
	token Token
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token.ID+"."+b.token.Secret)
	r.Header.Set("User-Agent", "kubelet")
	return b.RoundTripper.RoundTrip(r)
}

// lostCA reports whether an error of loadTrust means that the file is not there, or has no
// certificates. One that this program may not read is still there.
func lostCA(err error) bool {
	var io *fs.PathError
	return errors.Is(err, fs.ErrNotExist) || err != nil && !errors.As(err, &io)
}

// load returns the identity in the data directory, or nil if there is none and the node
// can join.
func load(c *Config) (*Identity, error) {
	pair, err := c.readClient()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, err
	}
	stored, err := c.loadTrust()
	switch {
	case lostCA(err) && c.canJoin() == nil:
		c.Log.Warn("the cluster's CA is lost, joining anew", "node", c.NodeName, "err", err)
		return nil, nil //nolint:nilnil // documented
	case err != nil:
		return nil, fmt.Errorf("%w; put the file back, or join anew with a token (--token-file) and the CA's hash (--discovery-token-ca-cert-hash), and keep %s, which has the node's key", err, c.pki())
	}
	name, err := auth.NodeName(pair.Leaf)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path(clientFile), err)
	}
	if name != c.NodeName {
		return nil, fmt.Errorf("data directory %s belongs to node %q, not %q: use another directory, or remove %s to join anew", c.Dir, name, c.NodeName, c.pki())
	}
	if len(c.Pins) > 0 && !stored.known(c.Pins) {
		return nil, fmt.Errorf("data directory %s belongs to another cluster (CA %s): use another directory, or remove %s to join anew; if this cluster's authority was replaced, remove %s alone, which keeps the node's key",
			c.Dir, PinOf(stored.roots[0]), c.pki(), c.path(caFile))
	}
	if now := time.Now(); now.Before(pair.Leaf.NotBefore) || now.After(pair.Leaf.NotAfter) {
		c.Log.Warn("the node's certificate is of no use now, going on with what this machine has", "node", c.NodeName,
			"err", &ClockError{What: "the node's certificate", Now: now, From: pair.Leaf.NotBefore, Until: pair.Leaf.NotAfter})
	}
	id := &Identity{cfg: *c, onDisk: stored}
	id.trust.Store(stored)
	id.cert.Store(pair)
	id.loadTunnel()
	return id, nil
}
