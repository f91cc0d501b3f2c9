// hawser explain dial: a dial through the tunnel, by the API server's proxies, step by step.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/cmd/internal/explain"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	"github.com/hawser-project/hawser/controlplane/evidence"
)

const (
	// dialPatience is longer than the API server waits for a dial.
	dialPatience = kubelet.DefaultDialTimeout + 5*time.Second
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 64 << 10
)

func newExplainDial(of *explainFlags) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "dial NODE:PORT | pod/NAME[:PORT] | svc/NAME[:PORT]",
		Short: "Try a dial through the tunnel: say which layer refuses it, and how long each step takes",
		Long: "Has the API server's proxy ask for / at a port of a node, a pod or a service, which takes a dial through the tunnel.\n" +
			"It says whether the target was reached, or which layer refused: api, object, session, policy, target, timeout, limit\n" +
			"or tunnel. It fails if the target was not reached.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := parseDialTarget(args[0], namespace)
			if err != nil {
				return err
			}
			return of.run(cmd, func(ctx context.Context, rc *rest.Config) error {
				return explainDial(ctx, cmd.OutOrStdout(), rc, target, args[0], of.output)
			})
		},
	}
	cmd.ValidArgsFunction = completeDial(&of.kubeconfig)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the pod or service")
	return cmd
}

// A dialTarget is what is dialed: a port of a node, of a pod or of a service.
type dialTarget struct {
	kind      string // nodes, pods or services
	namespace string
	name      string
	port      string // may be empty but for nodes
}

// parseDialTarget reads NODE:PORT, pod/NAME, pod/NAME:PORT, svc/NAME and svc/NAME:PORT.
func parseDialTarget(text, namespace string) (dialTarget, error) {
	bad := fmt.Errorf("%q: want NODE:PORT, pod/NAME or svc/NAME, the latter two with :PORT if they have several", text)
	t := dialTarget{kind: "nodes", name: text}
	if kind, name, ok := strings.Cut(text, "/"); ok {
		t.kind = map[string]string{"pod": "pods", "pods": "pods", "svc": "services", "service": "services", "services": "services"}[kind]
		t.name, t.namespace = name, namespace
		if namespace == "" || strings.ContainsAny(namespace, "/?#%") {
			return dialTarget{}, fmt.Errorf("--namespace %q is no name", namespace)
		}
	}
	var given bool
	t.name, t.port, given = strings.Cut(t.name, ":")
	if t.kind == "" || t.name == "" || given != (t.port != "") || t.kind == "nodes" && !given || strings.ContainsAny(t.name+t.port, "/?#%:") {
		return dialTarget{}, bad
	}
	if n, err := strconv.ParseUint(t.port, 10, 16); given && t.kind != "services" && (err != nil || n == 0) {
		return dialTarget{}, fmt.Errorf("%q: the port is not a number of 1 to 65535", text)
	}
	return t, nil
}

// path is that of the API server's proxy.
func (t *dialTarget) path() string {
	name := t.name
	if t.port != "" {
		name += ":" + t.port
	}
	if t.namespace == "" {
		return "/api/v1/" + t.kind + "/" + name + "/proxy/"
	}
	return "/api/v1/namespaces/" + t.namespace + "/" + t.kind + "/" + name + "/proxy/"
}

func explainDial(ctx context.Context, out io.Writer, rc *rest.Config, t dialTarget, text, output string) error {
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return err
	}
	d := &explain.Dial{Target: text}
	connected := true
	node, err := findTarget(ctx, client, &t, d)
	if err == nil && node != "" {
		connected, err = readTunnel(ctx, client, node, d)
	}
	switch {
	case apierrors.IsNotFound(err):
		d.Fail(explain.DialObject, "%s", setup.Printable(err.Error()))
	case apierrors.IsForbidden(err):
		d.Fail(explain.DialAPI, "%s", setup.Printable(err.Error()))
	case err != nil:
		return fmt.Errorf("explain dial %s: %w", text, err)
	default:
		if err = tryDial(ctx, rc, &t, d, connected); err != nil {
			return fmt.Errorf("explain dial %s: %w", text, err)
		}
	}
	if err = write(out, d, output); err != nil {
		return err
	}
	if d.Verdict.Layer != explain.Healthy { // a script is told by the exit code
		return fmt.Errorf("explain dial %s: not reached", text)
	}
	return nil
}

// step does one step, and notes how long it took.
func step(d *explain.Dial, name string, f func() (string, error)) error {
	began := time.Now()
	text, err := f()
	if err != nil {
		text = err.Error()
	}
	d.Steps = append(d.Steps, explain.DialStep{Name: name, Took: time.Since(began), Text: setup.Printable(text)})
	return err
}

// findTarget reads what is dialed, and returns its node; empty if that is not known, or one
// of several.
func findTarget(ctx context.Context, client kubernetes.Interface, t *dialTarget, d *explain.Dial) (string, error) {
	node := ""
	switch t.kind {
	case "nodes":
		return t.name, nil
	case "pods":
		err := step(d, "Pod", func() (string, error) {
			pod, err := client.CoreV1().Pods(t.namespace).Get(ctx, t.name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			node = pod.Spec.NodeName
			return fmt.Sprintf("%s on node %q, address %q", pod.Status.Phase, node, pod.Status.PodIP), nil
		})
		return node, err
	}
	var svc *corev1.Service
	if err := step(d, "Service", func() (string, error) {
		var err error
		if svc, err = client.CoreV1().Services(t.namespace).Get(ctx, t.name, metav1.GetOptions{}); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d ports", len(svc.Spec.Ports)), nil
	}); err != nil {
		return "", err
	}
	err := step(d, "Endpoints", func() (string, error) {
		slices, err := client.DiscoveryV1().EndpointSlices(t.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + t.name, Limit: explainSlices})
		if err != nil {
			return "", err
		}
		ready, all, nodes := countEndpoints(slices.Items)
		if len(nodes) == 1 {
			node = nodes[0]
		}
		return fmt.Sprintf("%d of %d are ready, on %d nodes; ", ready, all, len(nodes)) + choiceOf(ready, all, svc), nil
	})
	return node, err
}

// choiceOf says what the API server has to choose from: so many of all endpoints of svc are ready.
func choiceOf(ready, all int, svc *corev1.Service) string {
	switch {
	case ready > 0:
		return "the API server picks one of them"
	case all > 0:
		return "none is ready, and the API server picks none"
	case len(svc.Spec.Selector) == 0:
		return "the service has no endpoints"
	}
	var families []string
	for _, f := range svc.Spec.IPFamilies {
		families = append(families, string(f))
	}
	address := "an " + strings.TrimSpace(strings.Join(families, " or ")+" address")
	return "the service selects no running pod that has " + address
}

// countEndpoints counts those that are ready, and names their nodes.
func countEndpoints(slices []discoveryv1.EndpointSlice) (ready, all int, nodes []string) {
	seen := map[string]bool{}
	for i := range slices {
		for _, e := range slices[i].Endpoints {
			all++
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			ready++
			if e.NodeName != nil && !seen[*e.NodeName] {
				seen[*e.NodeName] = true
				nodes = append(nodes, *e.NodeName)
			}
		}
	}
	return ready, all, nodes
}

// readTunnel reads what the Node says of its tunnel, and returns false if it says that there
// is no session that works.
func readTunnel(ctx context.Context, client kubernetes.Interface, name string, d *explain.Dial) (connected bool, err error) {
	connected = true
	err = step(d, "Tunnel", func() (string, error) {
		n, failed := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if failed != nil {
			return "", failed
		}
		for _, c := range n.Status.Conditions {
			if c.Type == evidence.TunnelConnected {
				connected = c.Status == corev1.ConditionTrue
				return fmt.Sprintf("node %s: %s (%s): %s", name, c.Status, c.Reason, c.Message), nil
			}
		}
		if n.Annotations[setup.TransportAnnotation] == setup.SSH {
			return fmt.Sprintf("node %s keeps no tunnel: the server reaches it by ssh", name), nil
		}
		return fmt.Sprintf("node %s says nothing of a tunnel", name), nil
	})
	return connected, err
}

// tryDial has the API server's proxy ask the target for /.
func tryDial(ctx context.Context, rc *rest.Config, t *dialTarget, d *explain.Dial, connected bool) error {
	base, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return err
	}
	hc, err := rest.HTTPClientFor(rc)
	if err != nil {
		return err
	}
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(t.path()).String(), http.NoBody)
	if err != nil {
		return err
	}
	err = step(d, "Dial", func() (string, error) {
		resp, failed := hc.Do(req)
		if failed != nil {
			return "", failed
		}
		defer resp.Body.Close()
		var body []byte
		if resp.StatusCode >= http.StatusBadRequest { // else it is the target's, and may have no end
			body, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		}
		d.Judge(resp.StatusCode, body, kubelet.DialFailed)
		return "the API server's proxy answered HTTP " + strconv.Itoa(resp.StatusCode), nil
	})
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		d.Silent(dialPatience, connected)
		return nil
	}
	return err
}
