package explain

// Nodes whose conditions are of before: a server that was started again has yet to write them.

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// notBack is the reason of conditions that are not believed.
const notBack = "NotBack"

// distrust makes conditions Unknown that nobody stands for any more.
func (r *Report) distrust(a *Away) {
	if a == nil || r.Tunnel == nil || r.Tunnel.Status != corev1.ConditionTrue {
		return
	}
	for _, c := range []*Condition{r.Tunnel, r.DataPath} {
		if c != nil && c.Status == corev1.ConditionTrue {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, notBack, fmt.Sprintf("%s; before that: %s", a.text(), c.Message)
			c.Since = a.Started
		}
	}
}

// text says since when nothing is known, and of what.
func (a *Away) text() string {
	server, session := "its server is gone", "no server has a session of the node"
	if !a.Started.IsZero() {
		server = "the server was started at " + stamp(a.Started)
	}
	if !a.Certain {
		session = "nothing has been told of a session of the node since"
	}
	return server + ", and " + session
}
