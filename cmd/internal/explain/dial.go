package explain

// A dial through the tunnel: which layer refuses it.

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/tunnel"
)

// Layers that can refuse a dial.
const (
	DialAPI     Layer = "api"     // the API server does not let this user, or not this target
	DialObject  Layer = "object"  // there is no such node, pod, service or endpoint
	DialSession Layer = "session" // the node has no session that works
	DialPolicy  Layer = "policy"  // the node's agent does not lead there
	DialTarget  Layer = "target"  // the agent tried, and the target refused
	DialTimeout Layer = "timeout" // nobody answered in time
	DialLimit   Layer = "limit"   // there are too many dials or streams
	DialTunnel  Layer = "tunnel"  // a fault in the tunnel, or one that is not known
)

// dialLayers are those that codes of the tunnel mean; DialTunnel is that of the others.
var dialLayers = map[tunnel.Code]Layer{
	tunnel.NoNode: DialSession, tunnel.Parked: DialSession, tunnel.Draining: DialSession, tunnel.Replaced: DialSession,
	tunnel.Lost: DialSession, tunnel.Dead: DialSession, tunnel.Revoked: DialSession, tunnel.Ambiguous: DialSession,
	tunnel.Refused: DialTarget, tunnel.Unreachable: DialTarget, tunnel.Unresolved: DialTarget,
	tunnel.Denied: DialPolicy, tunnel.Timeout: DialTimeout, tunnel.Busy: DialLimit,
}

// proxyError begins what an API server says of a request that its proxy could not pass on.
const proxyError = "error trying to reach service: "

// A Dial is a dial that was tried. Its layer is Healthy if the target was reached.
type Dial struct {
	Target  string     `json:"target"`
	Verdict Verdict    `json:"verdict"`
	Steps   []DialStep `json:"steps"`
}

// A DialStep is one of its steps.
type DialStep struct {
	Name string        `json:"name"`
	Took time.Duration `json:"tookNanoseconds"`
	Text string        `json:"text"`
}

// Judge makes the verdict of what the API server's proxy answered. Cause is the type of the
// cause that its Status has if the dial failed, whose message is the tunnel's code.
func (d *Dial) Judge(status int, body []byte, cause metav1.CauseType) {
	var said metav1.Status
	if status < http.StatusBadRequest || json.Unmarshal(body, &said) != nil || said.Kind != "Status" {
		d.Verdict = verdict(Healthy, "reached: it answered HTTP %d", status)
		return
	}
	message, proxied := strings.CutPrefix(setup.Printable(strings.Join(strings.Fields(said.Message), " ")), proxyError)
	if said.Details != nil {
		for _, c := range said.Details.Causes {
			if c.Type == cause {
				d.Verdict = verdict(dialLayer(c.Message), "%s", message)
				return
			}
		}
	}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusBadRequest:
		d.Verdict = verdict(DialAPI, "the API server refuses: %s", message)
	case !proxied && status == http.StatusTooManyRequests:
		d.Verdict = verdict(DialLimit, "the API server takes no more requests for now: %s", message)
	case !proxied && status == http.StatusInternalServerError:
		d.Verdict = verdict(DialAPI, "the API server fails: %s", message)
	case !proxied:
		d.Verdict = verdict(DialObject, "there is nothing to dial: %s", message)
	case strings.Contains(message, "dial "): // of an API server that does not say why
		d.Verdict = verdict(DialTunnel, "%s", message)
	default:
		d.Verdict = verdict(Healthy, "reached: what is there does not speak HTTP as it was asked to: %s", message)
	}
}

// dialLayer is the layer that a code's text means.
func dialLayer(code string) Layer {
	for c, layer := range dialLayers {
		if c.String() == code {
			return layer
		}
	}
	return DialTunnel
}

// NoSession reports whether err, that of a request through the API server's proxy, says that the node
// has no session that works. cause is as in Judge.
func NoSession(err error, cause metav1.CauseType) bool {
	c, ok := apierrors.StatusCause(err, cause)
	return ok && dialLayer(c.Message) == DialSession
}

// Fail makes a verdict.
func (d *Dial) Fail(l Layer, format string, args ...any) { d.Verdict = verdict(l, format, args...) }

// Silent makes the verdict of a dial that had no answer for so long. Connected is that the
// node says that it has a session that works, or nothing of one.
func (d *Dial) Silent(patience time.Duration, connected bool) {
	if connected {
		d.Fail(DialTimeout, "no answer within %v: what is there keeps silent, or the API server still dials", patience)
		return
	}
	d.Fail(DialSession, "no answer within %v, and the node's tunnel is down", patience)
}

// WriteText writes d for people.
func (d *Dial) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "Target\t%s\n", d.Target)
	by := ""
	if d.Verdict.Layer != Healthy {
		by = string(d.Verdict.Layer) + " refuses: "
	}
	fmt.Fprintf(t, "Verdict\t%s%s\n", by, d.Verdict.Text)
	for _, s := range d.Steps {
		fmt.Fprintf(t, "%s\t%v: %s\n", s.Name, s.Took.Round(10*time.Microsecond), s.Text)
	}
	return t.Flush()
}
