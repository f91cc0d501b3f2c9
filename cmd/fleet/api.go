// The clients of the fleet's administrator and of a simulated node.

package fleet

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node"
)

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
		// The server would compress each change of each node.
		DisableCompression: true,
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

// newAPI makes the node's client, whose connections go through link.
func (m *member) newAPI(link *agent.Agent) (*apiclient.API, *node.Connections, error) {
	return node.NewAPI(node.APIConfig{
		Host: net.JoinHostPort(apiName, "443"), TLS: func() *tls.Config { return m.identity.ClientTLS(apiName) }, Dial: m.dialAPI(link),
	})
}
