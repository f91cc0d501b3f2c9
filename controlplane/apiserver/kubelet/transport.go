package kubelet

// Transports: how requests leave for a node, and how their failures are told.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/hawser-project/hawser/auth"
)

// Bounds on connections kept for the next request. A connection in use counts
// only while it is used; a followed log is one. A server that stops waits for
// the idle ones of others as well, since it sees no more than streams into nodes.
const (
	maxIdle        = 256
	maxIdlePerHost = 2
	idleTimeout    = 4 * time.Second
)

// handshakeGrace is how much longer than a dial a TLS handshake may take.
const handshakeGrace = time.Second

// transports are the ways to a node.
type transports struct {
	kubelet  *verifying      // with our certificate
	insecure *http.Transport // not verified, with our certificate: logs only, when asked for
	plain    *http.Transport // not verified, no certificate: the proxies

	// For connections that are upgraded. These do TLS themselves, so they are given plain URLs.
	witnessed  *http.Transport // to the kubelet, for exec and attach: tell when they are cut short
	joined     *http.Transport // to the kubelet
	joinedHTTP *http.Transport // as plain
	joinedTLS  *http.Transport // as plain
}

// LoadTLS reads the files of the API server's identity towards kubelets.
//
// caFiles hold the certificates that sign kubelets' serving certificates: the first file the
// cluster's own, see auth.Authorities, the others bundles of further ones. All files are
// followed: each handshake of conf goes by what they say then. Authorities are those of now.
func LoadTLS(files *auth.Files, caFiles []string, certFile, keyFile string) (conf *tls.Config, authorities func() *x509.CertPool, err error) {
	cas, err := files.AnyOf(caFiles[0], caFiles[1:]...)
	if err != nil {
		return nil, nil, fmt.Errorf("authority of kubelets: %w", err)
	}
	pair, err := files.KeyPair(certFile, keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("client certificate for kubelets: %w", err)
	}
	conf = &tls.Config{MinVersion: tls.VersionTLS12, GetClientCertificate: pair.GetClientCertificate}
	cas.Believe(conf)
	return conf, cas.Pool, nil
}

// A verifying transport reaches kubelets whose certificates count. Once their authorities
// are others, it uses no connection of before again: each was verified when it was made.
type verifying struct {
	authorities func() *x509.CertPool // of now
	with        func() *http.Transport

	mu      sync.Mutex // guards the following
	current *http.Transport
	cas     *x509.CertPool // when current was made
}

// RoundTrip implements http.RoundTripper.
func (v *verifying) RoundTrip(r *http.Request) (*http.Response, error) {
	return v.transport().RoundTrip(r)
}

func (v *verifying) transport() *http.Transport {
	cas := v.authorities()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.current == nil || cas != v.cas {
		if v.current != nil {
			v.current.CloseIdleConnections() // the others time out when idle
		}
		v.current, v.cas = v.with(), cas
	}
	return v.current
}

func newTransports(o Options) transports {
	bounded := func(dial DialFunc) DialFunc {
		return func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
			defer cancel()
			return dial(ctx, network, addr)
		}
	}
	secure := o.TLS
	if secure == nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	authorities := o.Authorities
	if authorities == nil {
		authorities = func() *x509.CertPool { return secure.RootCAs }
	}
	insecure := secure.Clone()
	insecure.InsecureSkipVerify, insecure.VerifyConnection = true, nil // the caller of pods/log asked for it, by insecureSkipTLSVerifyBackend
	plain := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // documented: the proxies do not verify what they reach
	}
	with := func(c *tls.Config, dial DialFunc) *http.Transport {
		return &http.Transport{
			DialContext:     bounded(dial),
			TLSClientConfig: c,
			// An early dial may take its time within the handshake, and knows better
			// what it waited for.
			TLSHandshakeTimeout:   o.DialTimeout + handshakeGrace,
			MaxIdleConns:          maxIdle,
			MaxIdleConnsPerHost:   maxIdlePerHost,
			IdleConnTimeout:       idleTimeout,
			DisableKeepAlives:     o.OneRequest,
			ExpectContinueTimeout: time.Second,
			// A log passes through as it was sent.
			DisableCompression: true,
			// HTTP/1 only: each request has a stream of the tunnel to itself, so
			// one that is not read holds up no other.
			Protocols: http1(),
		}
	}
	others := with(plain, o.Dial)
	// Pods may share a node's address, and a port passes from one to the next: which of
	// them a connection reaches is asked at its dial, so none is kept for another request.
	others.DisableKeepAlives = true
	upgraded := func(dial DialFunc, within time.Duration) *http.Transport {
		return &http.Transport{DialContext: answered(dial, within)}
	}
	toKubelet := secured(bounded(o.DialEarly), secure, o.DialTimeout+handshakeGrace)
	return transports{
		kubelet:  &verifying{authorities: authorities, with: func() *http.Transport { return with(secure, o.DialEarly) }},
		insecure: with(insecure, o.DialEarly), plain: others,
		witnessed: upgraded(tracked(toKubelet), answerTimeout), joined: upgraded(toKubelet, answerTimeout),
		joinedHTTP: upgraded(bounded(o.Dial), podAnswerTimeout),
		joinedTLS:  upgraded(secured(bounded(o.Dial), plain, o.DialTimeout+handshakeGrace), podAnswerTimeout),
	}
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// DialFailed is the type of the cause, in a Status, of a dial that failed in the tunnel or at
// the node. Its message is the tunnel's code. hawser explain dial reads it.
const DialFailed metav1.CauseType = "hawser.dev/DialFailed"

// statusError turns a failure to reach a node into the Status that the user
// sees. The text is the transport's own, which names the address and what the
// tunnel said; kubectl prints it after "Error from server: ".
func statusError(err error) error {
	if err == nil {
		return nil
	}
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		return err
	}
	s := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}
	withCode(s, err)
	return s
}

// withCode has s name the tunnel's code if err is of a dial that failed.
func withCode(s *apierrors.StatusError, err error) {
	if dial := (interface{ DialCode() string })(nil); errors.As(err, &dial) { // its type is not known here
		s.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: DialFailed, Message: dial.DialCode()}}}
	}
}

// A noting transport notes the error of the request that it is made for: the library's proxy
// keeps nothing but its text.
type noting struct {
	http.RoundTripper

	err error
}

// RoundTrip implements http.RoundTripper.
func (n *noting) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	resp, err = n.RoundTripper.RoundTrip(r)
	n.err = err
	return resp, err
}

// responder answers for a proxy that failed before it had an answer.
type responder struct {
	rest.Responder

	way *noting // by which it went; nil if it notes nothing
}

func (r responder) Error(_ http.ResponseWriter, _ *http.Request, err error) {
	err = statusError(err)
	if s := (*apierrors.StatusError)(nil); r.way != nil && r.way.err != nil && errors.As(err, &s) {
		withCode(s, r.way.err)
	}
	r.Responder.Error(err)
}
