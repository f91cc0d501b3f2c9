// The client of a simulated node: what node.NewAPI makes, without what no node
// uses.

package fleet

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	certificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/node"
)

// A narrow client has the three groups of the API that a node talks to. The others
// are nil: there are fifty of them, and each would have a client of its own on
// every one of thousands of nodes.
type narrow struct {
	kubernetes.Interface // nil
	core                 *corev1.CoreV1Client
	coordination         *coordinationv1.CoordinationV1Client
	certificates         *certificatesv1.CertificatesV1Client
}

// CoreV1 implements kubernetes.Interface.
func (n *narrow) CoreV1() corev1.CoreV1Interface { return n.core }

// CoordinationV1 implements kubernetes.Interface.
func (n *narrow) CoordinationV1() coordinationv1.CoordinationV1Interface { return n.coordination }

// CertificatesV1 implements kubernetes.Interface.
func (n *narrow) CertificatesV1() certificatesv1.CertificatesV1Interface { return n.certificates }

// newClient makes a client whose connections are its own, and idle, which closes
// those that nobody uses. client-go would keep them for as long as the process is.
func newClient(c *rest.Config) (_ kubernetes.Interface, idle func(), err error) {
	conf, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, nil, fmt.Errorf("make API client: %w", err)
	}
	t := &http.Transport{
		TLSClientConfig: conf, ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	rt, err := rest.HTTPWrappersForConfig(c, t)
	if err != nil {
		return nil, nil, fmt.Errorf("make API client: %w", err)
	}
	api, err := kubernetes.NewForConfigAndClient(c, &http.Client{Transport: rt})
	if err != nil {
		return nil, nil, fmt.Errorf("make API client: %w", err)
	}
	return api, t.CloseIdleConnections, nil
}

// plain asks for answers that are not compressed. A watch that is holds 45 KiB at
// this end for as long as it lasts, and most last as long as the node.
type plain struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p plain) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept-Encoding", "identity")
	return p.RoundTripper.RoundTrip(r)
}

// newAPI makes the node's client, whose connections go through link.
func (m *member) newAPI(link *agent.Agent) (*narrow, *node.Connections, error) {
	host := net.JoinHostPort(apiName, "443")
	_, conns, err := node.NewAPI(node.APIConfig{Host: host, TLS: func() *tls.Config { return m.identity.ClientTLS(apiName) }, Dial: m.dialAPI(link)})
	if err != nil {
		return nil, nil, err
	}
	cfg := &rest.Config{
		Host: "https://" + host, QPS: 50, Burst: 100,
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	n, client := &narrow{}, &http.Client{Transport: plain{conns}}
	if n.core, err = corev1.NewForConfigAndClient(cfg, client); err == nil {
		n.coordination, err = coordinationv1.NewForConfigAndClient(cfg, client)
	}
	if err == nil {
		n.certificates, err = certificatesv1.NewForConfigAndClient(cfg, client)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make API client: %w", err)
	}
	return n, conns, nil
}
