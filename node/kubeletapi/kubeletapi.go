// Package kubeletapi serves the API of a kubelet: logs, exec, attach, port
// forwarding, statistics and the list of pods.
//
// The control plane is its only client. It comes through the tunnel, speaks TLS
// to this package inside a stream of the tunnel and shows a client certificate
// of the cluster; the node itself listens on no network port for it. Serve takes
// whatever net.Listener the streams come from.
//
// It keeps no state of its own: which pods there are it asks Pods, what runs it
// asks the runtime, and log files it reads where the runtime says they are.
//
// It is not a place for policy. Who may ask is one function, Config.Authorize: see
// package reviews. Admission happens in the API server before.
package kubeletapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// Pods is where the API learns what is meant to run on this node.
type Pods interface {
	// Pods lists the pods of the node with their current status. The caller does
	// not change them.
	Pods(ctx context.Context) ([]*corev1.Pod, error)
	// Pod finds one, with its current status; an empty uid means whichever
	// incarnation there is. Errors wrap runtime.ErrNotFound when there is none.
	Pod(ctx context.Context, name types.NamespacedName, uid types.UID) (*corev1.Pod, error)
}

// Containers is what the API needs of a runtime; every runtime.Runtime has it.
type Containers interface {
	Containers(ctx context.Context) ([]runtime.ContainerStatus, error)
	Watch(ctx context.Context, ch chan<- runtime.PodID) error
	Exec(ctx context.Context, id string, argv []string, s runtime.Stdio) (exit int, err error)
	Attach(ctx context.Context, id string, s runtime.Stdio) error
	DialPod(ctx context.Context, id runtime.PodID, port uint16, declared bool) (net.Conn, error)
	Usage(ctx context.Context, id string) (runtime.Usage, error)
}

// An Authorizer says whether a request may be answered, by returning nil. Its error is
// what the client reads; a *RefusedError has a status, all others are 403. Of a client
// certificate it can rely on r.TLS.VerifiedChains.
type Authorizer func(r *http.Request) error

// A RefusedError is why a request is not answered.
type RefusedError struct {
	Status int
	Text   string // may be empty
}

func (e *RefusedError) Error() string {
	if e.Text == "" {
		return http.StatusText(e.Status)
	}
	return http.StatusText(e.Status) + ": " + e.Text
}

// Config configures a Server.
type Config struct {
	NodeName string     // required
	Pods     Pods       // required
	Runtime  Containers // required

	// TLS is required. It has the serving certificate (GetCertificate, so that it
	// may be rotated) and ClientCAs, the CA of the cluster. It is cloned; whether
	// and how client certificates are asked for is set here, not by the caller.
	TLS *tls.Config
	// ClientCAs, unless nil, is asked anew for each handshake instead of
	// TLS.ClientCAs, so that the authority of clients may be replaced.
	ClientCAs func() *x509.CertPool
	// Authorize decides about each request; nil means ControlPlaneOnly.
	Authorize Authorizer

	// Wrap stands between clients and everything else that answers a request; nil
	// means nothing.
	Wrap func(http.Handler) http.Handler
	// Seen is told, with the context of each request, whether its user is known: who is
	// refused with a status other than 403 is not. Nil means that nobody wants to know.
	Seen func(ctx context.Context, known bool)

	// Gatherer is what /metrics shows; nil means nothing.
	Gatherer Gatherer
	// DataDir is the directory whose file system /stats/summary reports as the
	// node's and the images'; empty means /.
	DataDir string
	// IdleTimeout ends exec, attach and port-forward connections on which nothing
	// moves; zero means 4 h.
	IdleTimeout time.Duration
	// StreamCreationTimeout is how long their streams may take to be opened; zero
	// means 30 s.
	StreamCreationTimeout time.Duration
	Log                   *slog.Logger // nil means discard
}

// The identity that the API server shows to nodes, and the group whose members may
// do everything.
const (
	clientName   = "kube-apiserver-kubelet-client"
	clientGroup  = "hawser:kubelet-admin"
	mastersGroup = "system:masters"
)

// ControlPlaneOnly lets in the API server and cluster administrators, by their
// certificates.
func ControlPlaneOnly(r *http.Request) error {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return &RefusedError{Status: http.StatusUnauthorized}
	}
	subject := r.TLS.VerifiedChains[0][0].Subject
	groups := subject.Organization
	if slices.Contains(groups, mastersGroup) || (subject.CommonName == clientName && slices.Contains(groups, clientGroup)) {
		return nil
	}
	return fmt.Errorf("user %q may not %s %s on this node", subject.CommonName, r.Method, r.URL.Path)
}

// New checks c and makes a Server of it.
func New(c Config) (*Server, error) {
	switch {
	case c.NodeName == "":
		return nil, errors.New("kubelet api: no node name given")
	case c.Pods == nil || c.Runtime == nil:
		return nil, errors.New("kubelet api: no pods or no runtime given")
	case c.TLS == nil || c.TLS.ClientCAs == nil:
		return nil, errors.New("kubelet api: no TLS configuration with the cluster's CA given")
	}
	if c.Authorize == nil {
		c.Authorize = ControlPlaneOnly
	}
	if c.Seen == nil {
		c.Seen = func(context.Context, bool) {}
	}
	if c.DataDir == "" {
		c.DataDir = "/"
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = 4 * time.Hour
	}
	if c.StreamCreationTimeout <= 0 {
		c.StreamCreationTimeout = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return newServer(c), nil
}
